"""The steps of the actions. The action decides nothing in YAML.

``prepare`` validates the inputs and installs onnx-ci. ``gate`` runs the command and reports its results in the log, in
annotations, on the job's summary page and in outputs. The action's last step ends with the exit code, so that the reports are
uploaded whatever the verdict is. ``publish`` is the step of ``publish/action.yml``, in another workflow.

Inputs come through the environment and are validated before anything is installed. What the command prints is fenced by
``stop-commands``, so that GitHub takes none of it for a command.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import io
import itertools
import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from onnx_ci.config.values import OFF
from onnx_ci.errors import ConfigurationError, ExitCode, OnnxCiError, describe_exception
from onnx_ci.github import runner
from onnx_ci.github.inputs import Inputs, read_inputs
from onnx_ci.github.install import install
from onnx_ci.github.publish import publish
from onnx_ci.report.annotations import Annotation, failures_of, warnings_of
from onnx_ci.report.markdown import escape
from onnx_ci.report.text import summary_lines
from onnx_ci.results.files import read_json, write_json
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.rules import DEATHS
from onnx_ci.results.run_report import RunReport

_OWN_CODE = ("push", "schedule", "workflow_dispatch")
"""The events whose runs judge the code of their own branch. Others, such as ``pull_request_target``, may judge a
stranger's code although their ref is the default branch."""


def main(arguments: Sequence[str]) -> int:
    """Run the step that ``arguments`` names, ``prepare``, ``gate`` or ``publish``, and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # Windows uses a different code page
    step = {"prepare": prepare, "gate": gate, "publish": publish}[arguments[0]]
    try:
        return step()
    except Exception as error:
        with runner.no_commands():
            traceback.print_exc(file=sys.stdout)
        return _give_up(f"the action itself failed: {describe_exception(error)}", ExitCode.INTERNAL)


def prepare() -> ExitCode:
    """Validate the inputs, install onnx-ci, and choose the folders for this use of the action."""
    try:
        inputs = read_inputs(os.environ)
        install(inputs)
    except OnnxCiError as error:
        return _give_up(str(error), error.exit_code)
    places = _Places.new()
    places.inputs.write_text(json.dumps(to_json(inputs)), encoding="utf-8")
    # A name that no other job of the run and no other use of the action in this job has.
    use = places.number if places.number != "1" else ""
    parts = ["onnx-ci", os.environ.get("GITHUB_JOB"), os.environ.get("JOB_INDEX"), use]
    name = inputs.artifact_name or "-".join(filter(None, parts))
    runner.write_output("folder", str(places.folder))
    runner.write_output("artifact-name", name)
    if inputs.cache != OFF and inputs.mode == "run":
        _name_cache(name, places)
        runner.write_output("cache-save", "true" if _saves(inputs.cache) else "")
    return ExitCode.PASSED


def _name_cache(name: str, places: _Places) -> None:
    """Tell the next steps which cache to restore, and the key of the one that they save.

    GitHub's caches cannot be changed, so each job saves a new one. It restores the last one with its name, or else any.
    """
    run, attempt = os.environ.get("GITHUB_RUN_ID", ""), os.environ.get("GITHUB_RUN_ATTEMPT", "")
    lasting_name = name
    for changing in filter(None, (os.environ.get("GITHUB_SHA"), run)):
        lasting_name = lasting_name.replace(changing, "")
    of_any_job = f"onnx-ci/{os.environ.get('RUNNER_OS')}-{os.environ.get('RUNNER_ARCH')}/"
    of_this_job = f"{of_any_job}{lasting_name.replace(' ', '_')}/"  # names have no slash, so none is the beginning of another
    runner.write_output("cache", str(places.cache))
    key = of_this_job + "-".join([run, attempt, os.environ.get("JOB_INDEX", ""), places.number])
    runner.write_output("cache-key", key)
    runner.write_output("cache-restore-keys", f"{of_this_job}\n{of_any_job}")


def _saves(cache: str) -> bool:
    """Whether to save the verdicts of this run. By default, the default branch saves them, and all others only restore them."""
    event, ref, default = (os.environ.get(name, "") for name in ("GITHUB_EVENT_NAME", "GITHUB_REF", "DEFAULT_BRANCH"))
    if cache == "read-write":
        return event in (*_OWN_CODE, "pull_request")
    # A schedule runs on the default branch only. Its payload may lack the name of that branch.
    is_default = event == "schedule" or (default != "" and ref == f"refs/heads/{default}")
    return cache == "true" and event in _OWN_CODE and is_default


def gate() -> ExitCode:
    """Run the command that the inputs request. Its exit code becomes an output of the step, and the step itself succeeds."""
    places = _Places(Path(os.environ.pop("FOLDER")))  # the verdicts in the cache depend on the command's variables
    inputs = from_json(Inputs, json.loads(places.inputs.read_text(encoding="utf-8")))
    places.upload.mkdir()
    code = {"run": _run, "matrix": _matrix, "report": _merge}[inputs.mode](inputs, places)
    runner.write_output("exit-code", str(int(code)))
    return ExitCode.PASSED


class _Places:
    """The files and folders of one use of the action, which has a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = folder / "inputs.json"
        self.summary = folder / "summary.md"
        self.upload = folder / "upload"
        """The folder to upload: the reports and the ONNX files."""
        self.report = self.upload / "report.json"
        self.page = self.upload / "report.html"
        self.artifacts = self.upload / "onnx"
        self.cache = folder.with_name("onnx-ci-cache")
        """One for all uses in a job: the key of a verdict contains everything that the verdict depends on."""
        self.number = folder.name.removeprefix("onnx-ci-")
        """Counts the uses of the action in this job, from 1."""

    @classmethod
    def new(cls) -> _Places:
        """Those of a use of the action that starts now."""
        temporary = Path(os.environ["RUNNER_TEMP"]).absolute()
        folders = (temporary / f"onnx-ci-{number}" for number in itertools.count(1))
        folder = next(folder for folder in folders if not folder.exists())
        folder.mkdir(parents=True)
        return cls(folder)


def _run(inputs: Inputs, places: _Places) -> ExitCode:
    flags = [f"--cache={OFF if inputs.cache == OFF else places.cache}", *inputs.settings, *inputs.args]
    targets = [f"--report={places.report}", f"--summary={places.summary}"]
    return _conclude(inputs, places, _onnx_ci(inputs, "run", *flags, *targets, "--", *inputs.paths))


def _merge(inputs: Inputs, places: _Places) -> ExitCode:
    targets = [f"--json={places.report}", f"--html={places.page}", f"--markdown={places.summary}"]
    return _conclude(inputs, places, _onnx_ci(inputs, "report", *inputs.args, *targets, "--", *inputs.paths))


def _matrix(inputs: Inputs, places: _Places) -> ExitCode:
    file = places.folder / "matrix.json"
    flags = [*inputs.settings, *inputs.args, f"--plan={places.report}"]
    ended = _onnx_ci(inputs, "matrix", *flags, "--", *inputs.paths, output=file)
    with contextlib.suppress(OSError, ValueError):
        matrix = json.loads(file.read_text(encoding="utf-8"))
        if ended.code == ExitCode.PASSED and isinstance(matrix, dict) and matrix.get("include"):
            runner.write_output("matrix", json.dumps(matrix, separators=(",", ":")))
            runner.write_output("verdict", "planned")
            runner.write_output("upload", str(places.upload) if inputs.upload == "always" else "")
            return ExitCode.PASSED
    return _give_up(ended.message, _code_without_report(ended))


def _onnx_ci(inputs: Inputs, *words: str, output: Path | None = None, purpose: str = "") -> runner.Ended:
    """Run the installed command. Its output is a group in the log."""
    with runner.group(f"onnx-ci {words[0]}{purpose}"):
        # With -P, no module is imported from the current folder, as if the command itself was run.
        return runner.run([sys.executable, "-P", "-m", "onnx_ci", *words], directory=inputs.directory, output=output)


def _conclude(inputs: Inputs, places: _Places, ended: runner.Ended) -> ExitCode:
    """Report the results of a command that writes a report. Returns the exit code of the action."""
    if not places.report.is_file():
        return _give_up(ended.message, _code_without_report(ended))
    try:
        report = read_json(places.report)
    except ConfigurationError as error:
        return _give_up(str(error), ExitCode.INTERNAL)
    if (ended.code == ExitCode.PASSED) != (report.verdict == "passed"):
        return _give_up(
            f"the command ended with exit code {ended.code}, but its report says {report.verdict}", ExitCode.INTERNAL
        )
    if inputs.mode == "run" and _is_uploaded(report, inputs) and not report.not_run:
        report = _with_files(report, inputs, places)
        write_json(report, places.report)
    if not places.page.is_file():
        _onnx_ci(inputs, "report", "--part", f"--html={places.page}", "--", str(places.report), output=Path(os.devnull))
    _show(report, inputs, places, ended)
    return ExitCode(ended.code) if ended.code in list(ExitCode) else ExitCode.INTERNAL


def _is_uploaded(report: RunReport, inputs: Inputs) -> bool:
    return inputs.upload == "always" or (inputs.upload == "failed" and report.verdict != "passed")


def _with_files(report: RunReport, inputs: Inputs, places: _Places) -> RunReport:
    """Add the ONNX files of failed cells to the upload, and their paths to the report.

    The failed cells run again for this, because a run that keeps files does not use the cache, and keeps the files of all
    cells, which may not fit on the disk. A cell does not run again if its process died, or if it has no file.
    """
    failed = [
        glob.escape(f"{result.cell.recipe}::{result.cell.label}")  # a path can have commas, which divide the list
        for result in report.cells
        if result.status.is_bad
        and "contract" in result.timings
        and DEATHS.isdisjoint(finding.rule for finding in result.findings)
    ]
    if not failed:
        return report
    again = places.folder / "again.json"
    words = _without_selection([*inputs.settings, *inputs.args])
    flags = [*words, "--shard=1/1", f"--select={','.join(failed)}", f"--cache={OFF}"]
    targets = [f"--artifacts={places.artifacts}", f"--report={again}"]
    # The files that the caller asks for are those of the first run.
    targets += [f"--{form}={places.folder / f'again.{form}'}" for form in ("html", "junit", "code-quality")]
    targets.append(f"--summary={os.devnull}")
    # The log has its output already.
    command = ("run", *flags, *targets, "--", *inputs.paths)
    _onnx_ci(inputs, *command, output=Path(os.devnull), purpose=": the failed cells once more, for their files")
    try:
        kept = {each.cell.id: each.artifact for each in read_json(again).cells if each.artifact is not None}
    except ConfigurationError:  # the log shows what went wrong; the verdict stays the same
        return report
    files = {id: Path(file).relative_to(places.upload).as_posix() for id, file in kept.items()}
    cells = (dataclasses.replace(each, artifact=files.get(each.cell.id, each.artifact)) for each in report.cells)
    return dataclasses.replace(report, cells=tuple(cells))


def _without_selection(words: Iterable[str]) -> Iterator[str]:
    """The words of a command without its flags ``--select``, which would add up with another one."""
    rest = iter(words)
    for word in rest:
        if word == "--select":
            next(rest, None)
        elif not word.startswith("--select="):
            yield word


def _show(report: RunReport, inputs: Inputs, places: _Places, ended: runner.Ended) -> None:
    """Show the results wherever on GitHub the inputs request it."""
    with runner.no_commands():  # the group in the log is collapsed, so its end is printed again
        print("\n".join(summary_lines(report)))
    if inputs.summary:
        runner.add_summary(places.summary.read_text(encoding="utf-8"))
    if inputs.annotations:
        workspace = Path(os.environ.get("GITHUB_WORKSPACE") or ".")
        for note in annotations_of(report, Path(inputs.directory), workspace):
            runner.annotate(note.level, note.message, title=note.title, file=note.file, line=note.line)
        if report.verdict == "nothing-ran":
            runner.annotate("error", ended.message)
    runner.write_output("verdict", report.verdict)
    runner.write_output("failed", str(sum(result.status.is_bad for result in report.cells)))
    runner.write_output("report", _delivered(places.report, inputs))
    runner.write_output("html", _delivered(places.page, inputs))
    runner.write_output("upload", str(places.upload) if _is_uploaded(report, inputs) else "")


def annotations_of(report: RunReport, directory: Path, workspace: Path) -> list[Annotation]:
    """As many annotations as GitHub shows, failures first; the arguments are those of :func:`failures_of`."""
    shown: list[Annotation] = []
    for found in (failures_of(report, directory, workspace), warnings_of(report, directory, workspace)):
        if len(found) <= runner.ANNOTATION_LIMIT:
            shown += found
        else:
            first = found[: runner.ANNOTATION_LIMIT - 1]
            rest = f"… and {len(found) - len(first)} more, in the summary and the report"
            shown += [*first, Annotation(level=first[0].level, message=rest)]
    return shown


def _delivered(file: Path, inputs: Inputs) -> str:
    """The path of ``file`` in the folder that the inputs name, if they name one; empty if there is no such file."""
    if not file.is_file():
        return ""
    return str(shutil.copy(file, inputs.report)) if inputs.report else str(file)


def _code_without_report(ended: runner.Ended) -> ExitCode:
    """The exit code if there is no report: never the code of a verdict."""
    if ended.code in (ExitCode.USAGE, ExitCode.ENVIRONMENT, ExitCode.NOTHING_RAN):
        return ExitCode(ended.code)
    return ExitCode.NOTHING_RAN if ended.code == ExitCode.PASSED else ExitCode.INTERNAL


def _give_up(message: str, code: ExitCode) -> ExitCode:
    """Say why there is no report, whatever the inputs request: they may be the reason."""
    reason = message or "the command printed nothing"
    runner.annotate("error", reason)
    runner.add_summary(f"## ONNX export: ⚠️ no report\n\n{escape(reason)}\n")
    runner.write_output("verdict", "nothing-ran" if code is ExitCode.NOTHING_RAN else "error")
    runner.write_output("failed", "0")
    return code
