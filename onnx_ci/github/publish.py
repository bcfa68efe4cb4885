"""Publishes the verdict of a run of another workflow, which may have run the code of a fork.

The token of this run can write, so nothing of the other run is executed: nothing is checked out or installed, and this program
has no dependencies. The uploaded report is untrusted data. Which pull request, commit and branch it is about follows from the
event and the API only. What the comment says (``report.pull_request``) and what becomes of it follows from two reports and the
comments that are there.

This is an action, not a job of the reusable workflow: GitHub refuses a call whose jobs ask for more permissions than the caller
grants, even if the jobs are skipped.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.errors import ConfigurationError, ExitCode, OnnxCiError
from onnx_ci.github import runner
from onnx_ci.github.artifact import DOWNLOAD_LIMIT, report_of
from onnx_ci.github.inputs import PublishInputs, read_publish_inputs
from onnx_ci.github.rest import ApiError, Repository
from onnx_ci.report.comparison import RunComparison, compare_runs
from onnx_ci.report.merge import merge
from onnx_ci.report.pull_request import Links, comment, headline
from onnx_ci.results.json_data import NotJsonError, from_json, read_document
from onnx_ci.results.records import Problem
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict
from onnx_ci.text import listed_shortly

_AUTHOR = "github-actions[bot]"
"""Who writes comments with the token of a job. Our marker counts in no comment of anyone else."""
_TITLE_LIMIT = 200
_OF_A_BRANCH = ("push", "schedule", "workflow_dispatch")
"""The events whose runs are about the last commit of a branch of this repository."""
_BASE_RUNS = 5
"""How many runs of the base branch are searched for a report."""
_NEVER_RAN = ("skipped", "action_required")
"""The conclusions of a run in which no job ran: a condition was not met, or the run was not approved."""
_GOOD = ("success", "skipped", "neutral")
"""The conclusions of jobs that do not make a run fail."""
_SHA = re.compile(r"[0-9a-f]{40}")
_MARKER = re.compile(r"<!-- onnx-ci: (?P<gate>[A-Za-z0-9._+ -]+) is (?P<verdict>[a-z-]+) -->")
_TOKEN = re.compile(r"[!-~]+")
"""What a header can contain. For anything else, the HTTP client raises an error that shows the token."""


def publish() -> ExitCode:
    """Publish what the inputs request about the run that this one was started by."""
    try:
        return _publish(read_publish_inputs(os.environ), _repository(), _event())
    except OnnxCiError as error:
        runner.annotate("error", str(error))
        return error.exit_code


def _publish(inputs: PublishInputs, repository: Repository, event: _Event) -> ExitCode:
    run = event.workflow_run
    if run.head_repository is None:
        return _nothing("the repository that the run's commit is from is gone")
    if run.conclusion in _NEVER_RAN:
        return _nothing(f"the run has not run: it is {run.conclusion}")
    # Jobs that are not repeated have their artifacts from an earlier attempt. These count if each job ended well, also one
    # that is allowed to fail.
    jobs = _jobs(repository, run) if run.has_succeeded and run.run_attempt > 1 else []
    is_repeated_well = bool(jobs) and all(job.has_ended_well for job in jobs)
    uploaded, problem = None, None
    try:
        uploaded = _uploaded_report(repository, run, inputs.artifact_name, any_attempt=is_repeated_well)
        if uploaded is None and run.has_succeeded:
            return _nothing(f"the run has no artifact {inputs.artifact_name!r}")
    except ConfigurationError as error:
        problem = error
    report = _checked(uploaded, run, repository)
    publication = _Publication(repository=repository, event=event, inputs=inputs, report=report)
    if run.event == "pull_request":
        _publish_pull_requests(publication)
    elif run.head_repository.id != event.repository.id or run.event not in _OF_A_BRANCH:
        _nothing("the run is about neither a pull request nor a branch of this repository")
    elif inputs.check:
        comparison = compare_runs(report, None)
        _check(publication, comparison, comment(comparison, Links(head=run.html_url)))
    if problem is not None:
        raise problem
    return ExitCode.PASSED


def _nothing(reason: str) -> ExitCode:
    runner.annotate("notice", f"nothing is published: {reason}")
    return ExitCode.PASSED


def _say(text: str) -> None:
    with runner.no_commands():
        print(text)


def _checked(report: RunReport | None, run: _Run, repository: Repository) -> RunReport:
    """The report with the cells that are missing from it, and with a problem if it is better than the run is for GitHub."""
    if report is not None:
        report = merge([("", report)])
        if run.has_succeeded or (run.conclusion == "failure" and report.verdict is not RunVerdict.PASSED):
            return report
    ended = f"the run ended as {(run.conclusion or 'unknown').replace('_', ' ')}"
    bad = [job.name for job in _jobs(repository, run) if not job.has_ended_well]
    jobs = f"; {'jobs' if len(bad) > 1 else 'job'} {listed_shortly(bad)}" if bad else ""
    why = "without a report that can be used" if report is None else f"although its report says {report.verdict}"
    problem = Problem(source="workflow run", message=f"{ended}, {why}{jobs}")
    report = report or RunReport(environment={}, settings={}, cells=())
    return dataclasses.replace(report, problems=(problem, *report.problems))


def _jobs(repository: Repository, run: _Run) -> list[_Job]:
    """The jobs of a run's last attempt; none if GitHub does not list them."""
    try:
        listed = repository.pages(f"actions/runs/{run.id}/attempts/{run.run_attempt}/jobs", key="jobs")
        return [_of_github(_Job, data, "a job") for data in listed]
    except ApiError:
        return []


@dataclass(frozen=True, kw_only=True)
class _Login:
    login: str


@dataclass(frozen=True, kw_only=True)
class _Repo:
    id: int
    full_name: str


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run of a workflow."""

    id: int
    workflow_id: int
    event: str
    head_sha: str
    head_branch: str | None
    head_repository: _Repo | None
    run_attempt: int
    run_started_at: str
    html_url: str
    conclusion: str | None

    @property
    def has_succeeded(self) -> bool:
        """Whether every job ended well, but for those that the workflow allows to fail."""
        return self.conclusion == "success"


@dataclass(frozen=True, kw_only=True)
class _Job:
    name: str
    conclusion: str | None

    @property
    def has_ended_well(self) -> bool:
        return self.conclusion in _GOOD


@dataclass(frozen=True, kw_only=True)
class _Event:
    """The payload of ``workflow_run``."""

    workflow_run: _Run
    repository: _Repo


@dataclass(frozen=True, kw_only=True)
class _Branch:
    ref: str
    sha: str
    repo: _Repo | None


@dataclass(frozen=True, kw_only=True)
class _PullRequest:
    number: int
    head: _Branch
    base: _Branch


@dataclass(frozen=True, kw_only=True)
class _Upload:
    """An artifact, as the API lists it."""

    id: int
    name: str
    expired: bool
    created_at: str


@dataclass(frozen=True, kw_only=True)
class Comment:
    """A comment on the pull request."""

    id: int
    body: str | None
    user: _Login | None = None


def _of_github(kind: Any, data: Any, subject: str) -> Any:
    """``data`` as a record. Keys that the record does not have are ignored."""
    try:
        return from_json(kind, data)
    except ValueError as error:
        raise ApiError(f"what GitHub says about {subject} cannot be read: {error}") from None


def _repository() -> Repository:
    token = os.environ.get("GITHUB_TOKEN", "").strip()
    if not token:
        raise ConfigurationError("there is no token; use the action publish of onnx-ci, which takes that of the job")
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError("the token contains characters that a token cannot have; pass the one of the job unchanged")
    address = os.environ.get("GITHUB_API_URL", "https://api.github.com")
    return Repository(os.environ.get("GITHUB_REPOSITORY", ""), token, address)


def _event() -> _Event:
    """The event that started this run."""
    if os.environ.get("GITHUB_EVENT_NAME") != "workflow_run":
        raise ConfigurationError("this action publishes the verdict of another workflow; start it with 'on: workflow_run'")
    try:
        event: _Event = _of_github(_Event, read_document(Path(os.environ["GITHUB_EVENT_PATH"]).read_bytes()), "the event")
    except (KeyError, OSError, NotJsonError) as error:
        raise ApiError(f"the event in GITHUB_EVENT_PATH cannot be read: {error}; run the job again") from None
    if event.repository.full_name != os.environ.get("GITHUB_REPOSITORY") or not _SHA.fullmatch(event.workflow_run.head_sha):
        raise ApiError("the event is about another repository, or about no commit")
    return event


def _uploaded_report(repository: Repository, run: _Run, artifact: str, *, any_attempt: bool = False) -> RunReport | None:
    """The report that a run has uploaded, or an earlier attempt of it if ``any_attempt``; ``None`` if there is none."""
    answer = repository.get(f"actions/runs/{run.id}/artifacts", name=artifact, per_page=100)
    listed = answer.get("artifacts") if isinstance(answer, dict) else None
    uploads: tuple[_Upload, ...] = _of_github(tuple[_Upload, ...], listed, "the artifacts")
    usable = [
        upload
        for upload in uploads
        if upload.name == artifact and not upload.expired and (any_attempt or upload.created_at >= run.run_started_at)
    ]
    if not usable:
        return None
    newest = max(usable, key=lambda upload: upload.created_at)
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "artifact.zip")
        repository.download(f"actions/artifacts/{newest.id}/zip", archive, DOWNLOAD_LIMIT)
        return report_of(archive, artifact)


def _pull_requests(repository: Repository, event: _Event) -> list[_PullRequest]:
    """The open pull requests whose head is the commit of the run. The event names none from forks."""
    run = event.workflow_run
    if run.head_repository is None or run.head_branch is None:
        return []
    head = f"{run.head_repository.full_name.partition('/')[0]}:{run.head_branch}"
    listed = repository.pages("pulls", state="open", head=head)
    pulls: list[_PullRequest] = [_of_github(_PullRequest, data, "a pull request") for data in listed]
    ours = run.head_sha, run.head_repository.id, event.repository.id
    return [
        each
        for each in pulls
        if each.head.repo and each.base.repo and (each.head.sha, each.head.repo.id, each.base.repo.id) == ours
    ]


@dataclass(frozen=True, kw_only=True)
class _Publication:
    """What is published, and where."""

    repository: Repository
    event: _Event
    inputs: PublishInputs
    report: RunReport
    """The report in the artifact, with what is missing from it."""


def _base(publication: _Publication, branch: str) -> tuple[RunReport | None, str]:
    """The last report of a branch and the address of its run; without one, nothing is compared."""
    repository, event = publication.repository, publication.event
    answer = repository.get(
        f"actions/workflows/{event.workflow_run.workflow_id}/runs",
        branch=branch, event="push", status="completed", per_page=_BASE_RUNS,
    )  # fmt: skip
    listed = answer.get("workflow_runs") if isinstance(answer, dict) else None
    for run in _of_github(tuple[_Run, ...], listed, "the runs of the base"):
        if run.head_repository is None or run.head_repository.id != event.repository.id or run.head_branch != branch:
            continue
        try:
            report = _uploaded_report(repository, run, publication.inputs.artifact_name, any_attempt=True)
            if report is not None:
                return report, run.html_url
        except OnnxCiError as error:  # for example, another version of onnx-ci wrote it, or it is too large
            _say(f"the report of {run.html_url} is not used: {error}")
    return None, ""


def _publish_pull_requests(publication: _Publication) -> None:
    event, inputs = publication.event, publication.inputs
    pulls = _pull_requests(publication.repository, event)
    if not pulls:
        _nothing("no open pull request has this commit as its head; there is a newer one, or it is closed")
        return
    for number, pull in enumerate(pulls):
        base, page = _base(publication, pull.base.ref)
        comparison = compare_runs(publication.report, base)
        text = comment(comparison, Links(head=event.workflow_run.html_url, base=page, branch=pull.base.ref))
        if inputs.check and number == 0:  # a check is about the commit
            _check(publication, comparison, text)
        if inputs.comment:
            _comment(publication, pull.number, comparison, text)


def _check(publication: _Publication, comparison: RunComparison, text: str) -> None:
    """Add a check to the commit, whose title is the headline."""
    run = publication.event.workflow_run
    passed = comparison.after.verdict is RunVerdict.PASSED
    title = headline(comparison)
    data = {
        "name": f"onnx-ci: {publication.inputs.artifact_name}",
        "head_sha": run.head_sha,
        "status": "completed",
        "conclusion": "success" if passed else "failure",
        "details_url": run.html_url,
        "output": {"title": title if len(title) <= _TITLE_LIMIT else f"{title[: _TITLE_LIMIT - 1]}…", "summary": text},
    }
    publication.repository.send("POST", "check-runs", data)
    _say(f"check: {title}")


def _comment(publication: _Publication, number: int, comparison: RunComparison, text: str) -> None:
    """Create, edit or delete the comment on a pull request."""
    repository = publication.repository
    listed = repository.pages(f"issues/{number}/comments")
    written: list[Comment] = [_of_github(Comment, data, "a comment") for data in listed]
    existing = [each for each in written if each.user is not None and each.user.login == _AUTHOR]
    decision = decide(publication.inputs.artifact_name, comparison.after.verdict, text, existing, is_news=comparison.is_news)
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


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do about the comment on a pull request."""

    create: str | None = None
    """The body of a new comment."""
    edit: tuple[int, str] | None = None
    """The id of the comment to edit, and its new body."""
    delete: tuple[int, ...] = ()
    """The ids of the comments to delete, after the new one is written."""


def decide(gate: str, verdict: RunVerdict, text: str, existing: Sequence[Comment], *, is_news: bool) -> Decision:
    """What to do about the comment on a verdict, given our existing ones, oldest first; each gate has its own.

    GitHub notifies people of new comments, but not of edits. So a new verdict replaces the old comment with a new one, and any
    other change edits it. If nothing differs from the base, no comment is created.
    """
    body = f"<!-- onnx-ci: {gate} is {verdict.value} -->\n{text}"
    # The marker is in the first line, and text from reports comes below it, so that no report can forge one.
    first_lines = ((each, (each.body or "").partition("\n")[0].strip()) for each in existing)
    markers = [(each, _MARKER.fullmatch(line)) for each, line in first_lines]
    ours = [(each, marker["verdict"]) for each, marker in markers if marker and marker["gate"] == gate]
    if not ours:
        return Decision(create=body if is_news else None)
    last, last_verdict = ours[-1]
    older = tuple(each.id for each, _ in ours[:-1])
    if last_verdict != verdict.value:
        return Decision(create=body, delete=(*older, last.id))
    is_same = (last.body or "").replace("\r\n", "\n").strip() == body.strip()
    return Decision(edit=None if is_same else (last.id, body), delete=older)
