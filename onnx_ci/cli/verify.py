"""``onnx-ci verify``: judge existing files with a recipe, or by all that needs no model to compare with."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import (
    GroupedCommand,
    find_recipes,
    options_of,
    recipe_named,
    settings_from,
    style,
    with_colour,
    with_exit_code,
)
from onnx_ci.config.settings import Settings
from onnx_ci.config.values import EVERY_RECIPE
from onnx_ci.environment.versions import require_runtime
from onnx_ci.errors import ConfigurationError, ExitCode, existing_file, first_line
from onnx_ci.plugins import tool
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import run_in_child
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.report.findings import finding_lines
from onnx_ci.report.text import describe_outcome, describe_result
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Finding, Severity, Status
from onnx_ci.results.rules import finding
from onnx_ci.results.verdict import broken_rules, exit_code, with_severities
from onnx_ci.text import one_line

_OF_EVERY_FILE = ("rules", "isolation", "timeout", "memory-limit")
_OF_A_RECIPE = ("recipe-files", "packages", "runtimes", "weights", "max-drift", "inputs", "report", "save-inputs")


@click.command(cls=GroupedCommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--recipe", "name", metavar="NAME", help="The recipe that FILE is an export of.")
@click.option("--opset", type=click.IntRange(min=1), metavar="N", help="The opset that FILE should have. Default: its own.")
@click.option("--device", metavar="DEVICE", help="Where to run the file. Default: cpu.")
@click.option("--exporter", metavar="NAME", help="torchscript or dynamo. Default: the opset's default exporter.")
@click.option(
    "--pass",
    "graph_pass",
    metavar="NAME",
    help="The pass in the recipe's then= that made the file. Default: none, the exporter did.",
)
@click.option("--no-load", is_flag=True, help="Without a recipe, do not load the files with ONNX Runtime.")
@options_of(*_OF_EVERY_FILE, *_OF_A_RECIPE)
@with_colour
@with_exit_code
def verify(
    file: Path,
    name: str | None,
    opset: int | None,
    device: str | None,
    exporter: str | None,
    graph_pass: str | None,
    no_load: bool,
    paths: tuple[Path, ...],
    **flags: str | None,
) -> NoReturn:
    r"""Judge existing ONNX files, with or without a recipe.

    With --recipe, FILE is judged as an export of that recipe, which is searched for in PATHS, or in the project's recipe files.
    The file must contain the recipe's own weights. It may be optimized or converted: a difference that the rounding of float16,
    bfloat16, int8 or int4 explains is a note. With --pass, the file is judged as a run judges the file of that pass.

    Without a recipe, FILE and PATHS are files. Each must pass onnx.checker with full shape inference, have its external data
    next to it, contain no absolute paths and no probe weights, and load in ONNX Runtime. What it computes is not compared with
    anything.

    \b
    Examples:
      onnx-ci verify lstm.onnx --recipe=lstm
      onnx-ci verify resnet.onnx --recipe=resnet18 --weights=resnet18=trained.pt recipes
      onnx-ci verify optimized.onnx --recipe=lstm --rules=foreign-domain=note
      onnx-ci verify int8.onnx --recipe=quantized --pass=int8-static
      onnx-ci verify --no-load models/*.onnx               without a recipe, and without ONNX Runtime
      onnx-ci verify --rules=absolute-path=note model.onnx dynamo writes paths into every node
    """
    own = {"opset": opset, "device": device, "exporter": exporter, "pass": graph_pass}
    if name is None:
        of_recipe = own | {name: flags[name.replace("-", "_")] for name in _OF_A_RECIPE}
        if given := next((name for name, value in of_recipe.items() if value is not None), None):
            raise click.UsageError(f"--{given} is about the export of a recipe; name it: --recipe=NAME")
        sys.exit(_check_files([file, *paths], settings_from(flags), load=not no_load))
    if no_load:
        raise click.UsageError("--no-load is about files without a recipe")
    settings = settings_from(flags)
    from onnx_ci.api import verify_recipe

    with find_recipes(settings, paths) as recipes:
        recipe_named(name, recipes)
        result = verify_recipe(
            file,
            recipes,
            name,
            opset=opset,
            exporter=exporter,
            device=device or "cpu",
            graph_pass=graph_pass,
            report=settings.report,
            save_inputs=settings.save_inputs,
        )
    outcome = style(describe_outcome(result), result.status)
    click.echo(f"{one_line(str(file))} {outcome}" + (f": {one_line(result.reason)}" if result.reason else ""))
    if result.findings:
        click.echo(describe_result(result, shlex.join(["onnx-ci", *sys.argv[1:]])))
    sys.exit(exit_code([result]))


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """The result of checking one file."""

    findings: tuple[Finding, ...]
    about: str = ""
    """A description of the file: ``opset 17, IR version 8``."""
    log: str = ""
    """The last output of a process that died."""


def _check_files(files: Sequence[Path], settings: Settings, *, load: bool) -> ExitCode:
    """Check files one by one, and show each result; with ``load``, ONNX Runtime loads them, too."""
    if load:
        require_runtime()
    present, failed = [], 0
    for path in files:
        try:
            present.append(existing_file(path))
        except ConfigurationError as error:
            click.echo(one_line(f"onnx-ci: {error}"), err=True)
    for path in present:
        result = _check_apart(path, load, settings)
        findings = with_severities(result.findings, settings.severities_for(EVERY_RECIPE))
        status = Status.FAILED if broken_rules(findings) else Status.PASSED
        failed += status is Status.FAILED
        about = f" ({one_line(result.about)})" if result.about else ""
        click.echo(f"{one_line(str(path))} {style(status.value, status)}{about}")
        for line in (*finding_lines(findings), *result.log.splitlines()):
            click.echo(f"    {one_line(line)}")
    if len(files) > 1:
        click.echo(f"{len(present)} files: {len(present) - failed} passed, {failed} failed")
    if present:
        click.echo("no numbers were compared: name a recipe (--recipe=NAME), or use onnx-ci compare (with another file)")
    return ExitCode.FAILED if failed else ExitCode.PASSED if len(present) == len(files) else ExitCode.USAGE


def _warm_up(load: bool) -> None:
    from onnx_ci.onnx_model import signature as onnx_file  # noqa: F401

    if load:
        import onnxruntime  # noqa: F401


def _send_result(path: Path, load: bool, send: Send) -> None:
    send({LAST: to_json(_check(path, load, announce=lambda step: send({"step": step})))})


def _check_apart(path: Path, load: bool, settings: Settings) -> FileResult:
    """Check a file in a process of its own, so that a crash affects only that file."""
    limits = Limits.of(settings)
    work = functools.partial(_send_result, path, load)
    warm_up = functools.partial(_warm_up, load)
    result, step = FileResult(findings=()), ""
    for event in run_in_child(work, limits, settings.isolation, warm_up=warm_up):
        if isinstance(event, Death):
            death = finding(event.cause, f"the process {event.message} while {step}", remedy=_REMEDIES[event.cause])
            result = FileResult(findings=(death,), log=event.log)
        elif LAST in event:
            result = from_json(FileResult, event[LAST])
        else:
            step = event["step"]
    return result


_REMEDIES = {
    "crash": "Export the file again. If that crashes, too, keep the file: it shows a bug in onnx or ONNX Runtime.",
    "timeout": "Allow more time: --timeout=SECONDS.",
    "out-of-memory": "Allow more memory (--memory-limit), or do not load the file: --no-load.",
}


def _check(path: Path, load: bool, announce: Callable[[str], None]) -> FileResult:
    """Check a file. Each step is announced first: it may kill the process."""
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
        *tool("known-faults")(path),
    ]
    if not load or any(each.rule == "external-data" for each in findings):
        return FileResult(findings=tuple(findings), about=about)
    announce("loading the file")
    from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime

    try:
        OnnxRuntime().load(path, "cpu")
    except Exception as error:  # ONNX Runtime raises its own classes
        remedy = "Operators of other domains need a library that is not available: use --no-load or --rules=load-error=note."
        message = f"onnxruntime cannot load the file: {first_line(error)}"
        findings.append(finding("load-error", message, remedy=remedy if signature.foreign_domains else None))
    return FileResult(findings=tuple(findings), about=about)
