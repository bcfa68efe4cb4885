"""Publishes the verdict of a run of another workflow, which may have run the code of a fork.

The token can write here, so nothing of that run is executed: nothing is checked out or installed, and its report is untrusted.
Which pull request, commit and branch it is about is known from the event and the API only.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.errors import ConfigurationError, ExitCode, OnnxCiError
from onnx_ci.github import runner
from onnx_ci.github.artifact import DOWNLOAD_LIMIT, Artifact
from onnx_ci.github.branch import replace_branch
from onnx_ci.github.comment import Comment, decide
from onnx_ci.github.inputs import PublishInputs, read_publish_inputs
from onnx_ci.github.rest import ApiError, Repository
from onnx_ci.report.comparison import Comparison, compare
from onnx_ci.report.pull_request import Links, badge, comment, headline
from onnx_ci.results.json_data import from_json, read_document
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict

_AUTHOR = "github-actions[bot]"
"""Who writes comments with the token of a job. A marker in the comment of anyone else is not ours."""
_TITLE_LIMIT = 200
_OF_A_BRANCH = ("push", "schedule", "workflow_dispatch")
"""The events whose runs are about the last commit of a branch of this repository."""
_BASE_RUNS = 5
"""How many runs of the base branch are searched for a report."""
_SHA = re.compile(r"[0-9a-f]{40}")
_TOKEN = re.compile(r"[!-~]+")
"""What can stand in a header: an error of the HTTP client would show the rest."""


def publish() -> ExitCode:
    """Publish what the inputs request about the run that this one was started by."""
    try:
        inputs = read_publish_inputs(os.environ)
        repository = _repository(os.environ)
        event = _event(os.environ)
        if event.workflow_run.head_repository is None:
            return _nothing("the repository that the run's commit is from is gone")
        with tempfile.TemporaryDirectory() as folder:
            artifact = _artifact(repository, event.workflow_run, inputs.artifact_name, Path(folder, "head.zip"))
            if artifact is None:
                return _nothing(f"the run has no artifact {inputs.artifact_name!r}")
            report = artifact.report()
            if event.workflow_run.event == "pull_request":
                _publish_pull_requests(repository, event, inputs, artifact, report)
            else:
                _publish_branch(repository, event, inputs, artifact, report)
    except OnnxCiError as error:
        runner.annotate("error", str(error))
        return error.exit_code
    return ExitCode.PASSED


def _nothing(why: str) -> ExitCode:
    runner.annotate("notice", f"nothing is published: {why}")
    return ExitCode.PASSED


def _say(what: str) -> None:
    with runner.no_commands():
        print(what)


# --- what the event and the API say -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Login:
    login: str


@dataclass(frozen=True, kw_only=True)
class _Identity:
    id: int


@dataclass(frozen=True, kw_only=True)
class _HeadRepository:
    id: int
    owner: _Login


@dataclass(frozen=True, kw_only=True)
class _ThisRepository:
    id: int
    full_name: str
    default_branch: str


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run of a workflow."""

    id: int
    workflow_id: int
    event: str
    head_sha: str
    head_branch: str | None
    head_repository: _HeadRepository | None
    run_started_at: str
    html_url: str


@dataclass(frozen=True, kw_only=True)
class _Event:
    """The payload of ``workflow_run``."""

    workflow_run: _Run
    repository: _ThisRepository

    @property
    def is_of_this_repository(self) -> bool:
        """Whether the commit is of this repository and not of a fork."""
        head = self.workflow_run.head_repository
        return head is not None and head.id == self.repository.id


@dataclass(frozen=True, kw_only=True)
class _Head:
    sha: str
    repo: _Identity | None


@dataclass(frozen=True, kw_only=True)
class _Base:
    ref: str
    repo: _Identity


@dataclass(frozen=True, kw_only=True)
class _PullRequest:
    number: int
    head: _Head
    base: _Base


@dataclass(frozen=True, kw_only=True)
class _Upload:
    """An artifact, as the API lists it."""

    id: int
    name: str
    expired: bool
    created_at: str


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A comment, as the API lists it."""

    id: int
    body: str | None
    user: _Login | None


def _of_github(kind: Any, data: Any, what: str) -> Any:
    """``data`` as a record; keys that it does not have are ignored."""
    try:
        return from_json(kind, data)
    except ValueError as error:
        raise ApiError(f"what GitHub says about {what} cannot be read: {error}") from None


def _repository(environment: Mapping[str, str]) -> Repository:
    token = environment.get("GITHUB_TOKEN", "").strip()
    if not token:
        raise ConfigurationError("there is no token; use the action publish of onnx-ci, which takes that of the job")
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError("the token contains characters that a token cannot have; pass the one of the job unchanged")
    address = environment.get("GITHUB_API_URL", "https://api.github.com")
    return Repository(environment.get("GITHUB_REPOSITORY", ""), token, address)


def _event(environment: Mapping[str, str]) -> _Event:
    """The event that started this run."""
    if environment.get("GITHUB_EVENT_NAME") != "workflow_run":
        raise ConfigurationError("this action publishes the verdict of another workflow; start it with 'on: workflow_run'")
    event: _Event = _of_github(_Event, read_document(Path(environment["GITHUB_EVENT_PATH"]).read_bytes()), "the event")
    if event.repository.full_name != environment.get("GITHUB_REPOSITORY") or not _SHA.fullmatch(event.workflow_run.head_sha):
        raise ApiError("the event is about another repository, or about no commit")
    return event


def _artifact(repository: Repository, run: _Run, name: str, file: Path, *, any_attempt: bool = False) -> Artifact | None:
    """The artifact called ``name`` of a run, downloaded; ``None`` if it has none.

    Args:
        repository: where the run is.
        run: the run.
        name: the name.
        file: where to write it.
        any_attempt: whether one of an earlier attempt will do.
    """
    answer = repository.get(f"actions/runs/{run.id}/artifacts", name=name, per_page=100)
    listed = answer.get("artifacts") if isinstance(answer, dict) else None
    found: tuple[_Upload, ...] = _of_github(tuple[_Upload, ...], listed, "the artifacts")
    usable = [
        each
        for each in found
        if each.name == name and not each.expired and (any_attempt or each.created_at >= run.run_started_at)
    ]
    if not usable:
        return None
    newest = max(usable, key=lambda each: each.created_at)
    repository.download(f"actions/artifacts/{newest.id}/zip", file, DOWNLOAD_LIMIT)
    return Artifact(file=file, name=name)


def _pull_requests(repository: Repository, event: _Event) -> list[_PullRequest]:
    """The open pull requests whose head is the commit of the run. The event does not name those from forks."""
    run = event.workflow_run
    if run.head_repository is None or run.head_branch is None:
        return []
    head = f"{run.head_repository.owner.login}:{run.head_branch}"
    found = [_of_github(_PullRequest, each, "a pull request") for each in repository.pages("pulls", state="open", head=head)]
    return [
        each
        for each in found
        if each.head.sha == run.head_sha
        and each.head.repo is not None
        and each.head.repo.id == run.head_repository.id
        and each.base.repo.id == event.repository.id
    ]


def _base(repository: Repository, event: _Event, branch: str, name: str, folder: Path) -> tuple[RunReport | None, str]:
    """The last report of a branch and the page of its run; without one, nothing is compared."""
    answer = repository.get(
        f"actions/workflows/{event.workflow_run.workflow_id}/runs",
        branch=branch, event="push", status="completed", per_page=_BASE_RUNS,
    )  # fmt: skip
    listed = answer.get("workflow_runs") if isinstance(answer, dict) else None
    for run in _of_github(tuple[_Run, ...], listed, "the runs of the base"):
        if run.head_repository is None or run.head_repository.id != event.repository.id or run.head_branch != branch:
            continue
        try:
            artifact = _artifact(repository, run, name, folder / "base.zip", any_attempt=True)
            if artifact is not None:
                return artifact.report(), run.html_url
        except OnnxCiError as error:  # it is of another version of onnx-ci, too large or gone, for example
            _say(f"the report of {run.html_url} is not used: {error}")
    return None, ""


# --- what is published --------------------------------------------------------------------------------------------------


def _publish_pull_requests(
    repository: Repository, event: _Event, inputs: PublishInputs, artifact: Artifact, report: RunReport
) -> None:
    found = _pull_requests(repository, event)
    if not found:
        _nothing("no open pull request has this commit as its head; there is a newer one, or it is closed")
        return
    for number, pull in enumerate(found):
        base, page = _base(repository, event, pull.base.ref, inputs.artifact_name, artifact.file.parent)
        comparison = compare(report, base)
        text = comment(comparison, Links(head=event.workflow_run.html_url, base=page, branch=pull.base.ref))
        if inputs.check and number == 0:  # a check is about the commit
            _check(repository, event, inputs.artifact_name, comparison, text)
        if inputs.comment:
            _comment(repository, pull.number, inputs.artifact_name, comparison, text)
        if inputs.sarif:
            if event.is_of_this_repository:
                _sarif(repository, event, f"refs/pull/{pull.number}/head", artifact)
            else:
                _say("code scanning takes no findings of a fork")


def _publish_branch(
    repository: Repository, event: _Event, inputs: PublishInputs, artifact: Artifact, report: RunReport
) -> None:
    if not event.is_of_this_repository or event.workflow_run.event not in _OF_A_BRANCH:
        _nothing("the run is about neither a pull request nor a branch of this repository")
        return
    branch = event.workflow_run.head_branch
    comparison = compare(report, None)
    if inputs.check:
        text = comment(comparison, Links(head=event.workflow_run.html_url))
        _check(repository, event, inputs.artifact_name, comparison, text)
    if inputs.sarif:
        _sarif(repository, event, f"refs/heads/{branch}", artifact)
    if inputs.badge and branch == event.repository.default_branch:
        files = {"badge.json": json.dumps(badge(report)), "index.html": artifact.member("report.html").decode(errors="replace")}
        replace_branch(repository, inputs.badge, files)
        _say(f"the branch {inputs.badge} has the badge and the page")


def _check(repository: Repository, event: _Event, gate: str, comparison: Comparison, text: str) -> None:
    """A check of the commit, whose title is the headline."""
    passed = comparison.after.verdict is RunVerdict.PASSED
    title = headline(comparison)
    data = {
        "name": f"onnx-ci: {gate}",
        "head_sha": event.workflow_run.head_sha,
        "status": "completed",
        "conclusion": "success" if passed else "failure",
        "details_url": event.workflow_run.html_url,
        "output": {"title": title if len(title) <= _TITLE_LIMIT else f"{title[: _TITLE_LIMIT - 1]}…", "summary": text},
    }
    repository.send("POST", "check-runs", data)
    _say(f"check: {title}")


def _comment(repository: Repository, number: int, gate: str, comparison: Comparison, text: str) -> None:
    """One comment on the pull request, or none."""
    listed = [_of_github(_Written, each, "a comment") for each in repository.pages(f"issues/{number}/comments")]
    existing = [
        Comment(id=each.id, body=each.body or "") for each in listed if each.user is not None and each.user.login == _AUTHOR
    ]
    decision = decide(gate, comparison.after.verdict, text, existing, is_news=comparison.is_news)
    if decision.create is not None:
        repository.send("POST", f"issues/{number}/comments", {"body": decision.create})
    if decision.edit is not None:
        id, body = decision.edit
        repository.send("PATCH", f"issues/comments/{id}", {"body": body})
    for id in decision.delete:
        try:
            repository.send("DELETE", f"issues/comments/{id}")
        except ApiError as error:
            if error.status != 404:  # someone else has deleted it
                raise
    done = "created" if decision.create else "edited" if decision.edit else "left as it is"
    _say(f"pull request {number}: the comment is {done}")


def _sarif(repository: Repository, event: _Event, ref: str, artifact: Artifact) -> None:
    """The findings for code scanning."""
    content = artifact.member("report.sarif")
    try:
        read_document(content)
    except ValueError as error:
        raise ConfigurationError(f"the file report.sarif in the artifact is {error}") from None
    packed = base64.b64encode(gzip.compress(content)).decode()
    repository.send("POST", "code-scanning/sarifs", {"commit_sha": event.workflow_run.head_sha, "ref": ref, "sarif": packed})
    _say(f"code scanning has the findings for {ref}")
