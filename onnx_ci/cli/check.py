"""``onnx-ci check``: check existing ONNX files without a recipe."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import options_of, settings_from, style, with_exit_code
from onnx_ci.config.settings import Settings
from onnx_ci.environment.versions import require_runtime
from onnx_ci.errors import ConfigurationError, EnvironmentLacksError, ExitCode, did_you_mean, first_line, nearest_file
from onnx_ci.processes.apart import run_apart
from onnx_ci.processes.limits import process_limits
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.report.text import finding_lines
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Finding, Severity, Status
from onnx_ci.results.rules import RULES, finding
from onnx_ci.results.verdict import broken_rules, with_allowed
from onnx_ci.text import one_line


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """The result of checking one file."""

    findings: tuple[Finding, ...]
    about: str = ""
    """A description of the file: ``opset 17, IR version 8``."""
    log: str = ""
    """The last output of a process that died."""

    def allowing(self, rules: Sequence[str]) -> FileResult:
        """The same result, with findings of ``rules`` as notes."""
        return dataclasses.replace(self, findings=tuple(with_allowed(self.findings, rules)))

    @property
    def status(self) -> Status:
        """``PASSED`` unless a finding is an error."""
        return Status.FAILED if broken_rules(self.findings) else Status.PASSED


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE.onnx…", type=click.Path(path_type=Path))
@click.option("--load/--no-load", default=True, show_default=True, help="Whether to load the files with ONNX Runtime, too.")
@click.option("--allow", multiple=True, metavar="RULE", help="Report findings against this rule without failing. Repeatable.")
@options_of("isolation", "timeout", "memory-limit", paths=False)
@with_exit_code
def check(files: tuple[Path, ...], load: bool, allow: tuple[str, ...], **flags: str | None) -> NoReturn:
    r"""Check existing ONNX files without a recipe.

    Each must pass onnx.checker with full shape inference, have its external data next to it, contain no absolute paths and no
    probe weights, and load in ONNX Runtime. What a file computes is not compared with anything: for that, use
    `onnx-ci verify` or `onnx-ci compare`.

    \b
    Examples:
      onnx-ci check model.onnx
      onnx-ci check --no-load models/*.onnx           faster, and without ONNX Runtime
      onnx-ci check --allow=absolute-path model.onnx  dynamo writes paths into every node
    """
    settings = settings_from(flags)
    for rule in allow:
        if rule not in RULES:
            raise ConfigurationError(f"--allow: there is no rule {rule!r}{did_you_mean(rule, RULES)}")
    if load:
        require_runtime()
    usable = [path for path in files if _is_usable(path)]
    statuses = []
    check_one = _checker(settings, load)
    for path in usable:
        result = check_one(path).allowing(allow)
        statuses.append(result.status)
        about = f" ({one_line(result.about)})" if result.about else ""
        click.echo(f"{click.format_filename(path)} {style(result.status.value, result.status)}{about}")
        for line in (*finding_lines(result.findings), *result.log.splitlines()):
            click.echo(f"    {one_line(line)}")
    failed = statuses.count(Status.FAILED)
    if len(files) > 1:
        click.echo(f"{len(usable)} files: {len(usable) - failed} passed, {failed} failed")
    if usable:
        click.echo(_NUMBERS)
    sys.exit(ExitCode.FAILED if failed else ExitCode.PASSED if len(usable) == len(files) else ExitCode.USAGE)


_NUMBERS = "numbers were not compared: for that, use onnx-ci verify (with a recipe) or onnx-ci compare (with another file)"


def _is_usable(path: Path) -> bool:
    """Whether ``path`` is a file; prints an error if it is not."""
    if path.is_file():
        return True
    name = click.format_filename(path)
    if path.is_dir():
        message = f"{name} is a directory; pass the files in it, such as {name}/*.onnx"
    else:
        message = f"there is no file {name}{nearest_file(path)}"
    click.echo(f"onnx-ci: {message}", err=True)
    return False


def _checker(settings: Settings, load: bool) -> Callable[[Path], FileResult]:
    """A function that checks a file, with isolation in its own process, so that a crash affects only that file."""
    if settings.isolation == "none":
        return lambda path: _check(path, load, lambda step: None)
    return lambda path: _check_isolated(path, load, settings)


def _warm_up(load: bool) -> None:
    from onnx_ci.onnx_model import signature as onnx_file  # noqa: F401

    if load:
        import onnxruntime  # noqa: F401


def _send_result(path: Path, load: bool, send: Send) -> None:
    result = _check(path, load, lambda step: send({"step": step}))
    send({LAST: {"about": result.about, "findings": to_json(result.findings)}})


def _check_isolated(path: Path, load: bool, settings: Settings) -> FileResult:
    """:func:`_check` in its own process."""
    limits = process_limits(settings.timeout, settings.memory_limit)
    work = functools.partial(_send_result, path, load)
    warm_up = functools.partial(_warm_up, load)
    result, step = FileResult(findings=()), ""
    try:
        for _, event in run_apart({path: work}, limits, settings.isolation, warm_up=warm_up):
            if isinstance(event, Death):
                found = finding(event.cause, f"the process {event.message} while {step}", remedy=_REMEDIES[event.cause])
                result = FileResult(findings=(found,), log=event.log)
            elif LAST in event:
                findings = from_json(tuple[Finding, ...], event[LAST]["findings"])
                result = FileResult(findings=findings, about=event[LAST]["about"])
            else:
                step = event["step"]
    except OSError as error:
        raise EnvironmentLacksError(f"no process could be started: {error}; use --isolation=none") from None
    return result


_REMEDIES = {
    "crash": "Export the file again. If that crashes, too, keep the file: it shows a bug in onnx or ONNX Runtime.",
    "timeout": "Allow more time: --timeout=SECONDS.",
    "out-of-memory": "Allow more memory (--memory-limit), or do not load the file: --no-load.",
}


def _check(path: Path, load: bool, announce: Callable[[str], None]) -> FileResult:
    """Check a file. Announces each step, in case it kills the process."""
    from onnx_ci.onnx_model import signature as onnx_file

    announce("reading the file")
    signature = onnx_file.read_signature(path)
    if isinstance(signature, Finding):
        return FileResult(findings=(signature,))
    facts = [f"opset {signature.opset or 'unknown'}", f"IR version {signature.ir_version}"]
    if signature.foreign_domains:
        facts.append(f"operators of {', '.join(signature.foreign_domains)}")
    about = ", ".join(facts)
    announce("checking the file")
    findings = [
        *onnx_file.check_paths(signature, Severity.ERROR),
        *onnx_file.check_weights(signature),
        *onnx_file.check(path, signature),
    ]
    if not load or any(each.rule == "external-data" for each in findings):
        return FileResult(findings=tuple(findings), about=about)
    announce("loading the file")
    from onnx_ci.stages.run.onnxruntime import OnnxRuntime

    try:
        OnnxRuntime().load(path, "cpu")
    except Exception as error:  # ONNX Runtime raises its own classes
        message = f"onnxruntime cannot load the file: {first_line(error)}"
        findings.append(finding("load-error", message, remedy=_FOREIGN if signature.foreign_domains else None))
    return FileResult(findings=tuple(findings), about=about)


_FOREIGN = "Operators of other domains need a library that is not available: use --no-load or --allow=load-error."
