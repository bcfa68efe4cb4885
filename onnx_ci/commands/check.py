"""``onnx-ci check``: what can be said of ONNX files that exist, without a recipe."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.commands.common import options_of, settle, style, with_exit_code
from onnx_ci.config import Settings
from onnx_ci.environment import require_runtime
from onnx_ci.errors import ConfigurationError, EnvironmentLacksError, ExitCode, did_you_mean, first_line
from onnx_ci.processes import LAST, Death, Limits, Send, limits_of, run_apart
from onnx_ci.records import Finding, Severity, Status, from_json, to_json
from onnx_ci.report.text import finding_lines
from onnx_ci.rules import RULES, finding


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What is known of one file."""

    findings: tuple[Finding, ...]
    about: str = ""
    """What the file says of itself: ``opset 17, IR version 8``."""
    log: str = ""
    """What was printed last by a process that died."""

    def allowing(self, rules: Sequence[str]) -> Judged:
        """The same, with findings against ``rules`` as notes."""
        told = (dataclasses.replace(f, severity=Severity.NOTE) if f.rule in rules else f for f in self.findings)
        return dataclasses.replace(self, findings=tuple(told))

    @property
    def status(self) -> Status:
        """Passed, unless a finding is an error."""
        return Status.FAILED if any(each.severity is Severity.ERROR for each in self.findings) else Status.PASSED


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE.onnx…", type=click.Path(path_type=Path))
@click.option("--load/--no-load", default=True, show_default=True, help="Whether ONNX Runtime must load the files, too.")
@click.option("--allow", multiple=True, metavar="RULE", help="Report findings against this rule without failing. Repeatable.")
@options_of("isolation", "timeout", "memory-limit", paths=False)
@with_exit_code
def check(files: tuple[Path, ...], load: bool, allow: tuple[str, ...], **flags: str | None) -> NoReturn:
    r"""Check ONNX files that exist, without any recipe.

    Each must pass onnx.checker with full shape inference, have its external data beside it, hold no absolute paths of the
    machine that made it, and be loaded by ONNX Runtime. What a file computes is for `onnx-ci verify` to say.

    \b
    Examples:
      onnx-ci check model.onnx
      onnx-ci check --no-load models/*.onnx           quicker, and without ONNX Runtime
      onnx-ci check --allow=absolute-path model.onnx  what dynamo writes into each node
    """
    settings = settle(flags)
    for rule in allow:
        if rule not in RULES:
            raise ConfigurationError(f"--allow names {rule!r}, which is no rule{did_you_mean(rule, RULES)}")
    if load:
        require_runtime()
    usable = [path for path in files if _is_usable(path)]
    statuses = []
    judge = _judge_of(settings, load)
    for path in usable:
        judged = judge(path).allowing(allow)
        statuses.append(judged.status)
        about = f" ({judged.about})" if judged.about else ""
        click.echo(f"{click.format_filename(path)} {style(judged.status.value, judged.status)}{about}")
        for line in (*finding_lines(judged.findings), *judged.log.splitlines()):
            click.echo(f"    {line}")
    failed = statuses.count(Status.FAILED)
    if len(files) > 1:
        click.echo(f"{len(usable)} files: {len(usable) - failed} passed, {failed} failed")
    sys.exit(ExitCode.FAILED if failed else ExitCode.PASSED if len(usable) == len(files) else ExitCode.USAGE)


def _is_usable(path: Path) -> bool:
    """Whether there is such a file; says what is there instead."""
    if path.is_file():
        return True
    name = click.format_filename(path)
    if path.is_dir():
        said = f"{name} is a directory; name the files in it, such as {name}/*.onnx"
    else:
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        said = f"there is no file {name}{did_you_mean(path.name, siblings)}"
    click.echo(f"onnx-ci: {said}", err=True)
    return False


def _judge_of(settings: Settings, load: bool) -> Callable[[Path], Judged]:
    """What judges a file: in a process of its own, so that a crash of native code costs that file only, unless that is off."""
    from onnx_ci import onnx_file  # noqa: F401 (imported once, here, for all processes to come)

    if load:
        import onnxruntime  # noqa: F401

    if settings.isolation == "none":
        return lambda path: _judge(path, load, lambda doing: None)
    return lambda path: _judge_apart(path, load, limits_of(settings.timeout, settings.memory_limit))


def _judge_apart(path: Path, load: bool, allowed: Limits) -> Judged:
    """:func:`_judge` in a process of its own."""

    def work(send: Send) -> None:
        judged = _judge(path, load, lambda doing: send({"doing": doing}))
        send({LAST: {"about": judged.about, "findings": to_json(judged.findings)}})

    judged, doing = Judged(findings=()), ""
    try:
        for _, event in run_apart({path: work}, allowed):
            if isinstance(event, Death):
                found = finding(event.cause, f"the process {event.message} while {doing}", remedy=_REMEDIES[event.cause])
                judged = Judged(findings=(found,), log=event.log)
            elif LAST in event:
                findings = from_json(tuple[Finding, ...], event[LAST]["findings"])
                judged = Judged(findings=findings, about=event[LAST]["about"])
            else:
                doing = event["doing"]
    except OSError as error:
        raise EnvironmentLacksError(f"no process could be started: {error}; use --isolation=none") from None
    return judged


_REMEDIES = {
    "crash": "Export the file again. If it crashes again, keep it: it shows a fault of onnx or of ONNX Runtime.",
    "timeout": "Allow more time: --timeout=SECONDS.",
    "out-of-memory": "Allow more memory (--memory-limit), or do not load the file: --no-load.",
}


def _judge(path: Path, load: bool, tell: Callable[[str], None]) -> Judged:
    """Everything that can be said of a file without a recipe. Tells what it is doing, in case that kills the process."""
    from onnx_ci import onnx_file

    tell("reading the file")
    signature = onnx_file.read_signature(path)
    if isinstance(signature, Finding):
        return Judged(findings=(signature,))
    facts = [f"opset {signature.opset or 'unknown'}", f"IR version {signature.ir_version}"]
    if signature.foreign_domains:
        facts.append(f"operators of {', '.join(signature.foreign_domains)}")
    about = ", ".join(facts)
    tell("checking the file")
    findings = [*onnx_file.check_paths(signature, Severity.ERROR), *onnx_file.check(path, signature)]
    if not load or any(each.rule == "external-data" for each in findings):
        return Judged(findings=tuple(findings), about=about)
    tell("loading the file")
    from onnx_ci.runtime.onnxruntime import OnnxRuntime

    try:
        OnnxRuntime().load(path, "cpu")
    except Exception as error:  # ONNX Runtime raises classes of its own
        said = f"onnxruntime cannot load the file: {first_line(error)}"
        findings.append(finding("load-error", said, remedy=_FOREIGN if signature.foreign_domains else None))
    return Judged(findings=tuple(findings), about=about)


_FOREIGN = "Operators of foreign domains need a library that is not here: check the file with --no-load, or allow load-error."
