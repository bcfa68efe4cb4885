"""``onnx-ci why``: where a failure begins, and how the error grows from there."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import (
    NamedCell,
    cell_or_file,
    find_recipes,
    options_of,
    recipe_named,
    settings_from,
    style,
    with_colour,
    with_exit_code,
)
from onnx_ci.cli.grouped_help import GroupedCommand
from onnx_ci.config.reproduce import OF_ONE_CELL
from onnx_ci.config.settings import Settings
from onnx_ci.config.values import DEFAULT_ISOLATION, OFF
from onnx_ci.errors import ConfigurationError
from onnx_ci.matrix.plan import plan_of
from onnx_ci.opsets import DEFAULT_OPSETS, default_exporter
from onnx_ci.report.causes import causes_of
from onnx_ci.report.text import finding_lines, outcome, step_lines
from onnx_ci.results.records import Cell, CellResult, Severity
from onnx_ci.results.verdict import broken_rules, exit_code
from onnx_ci.text import listed, one_line


@click.command(cls=GroupedCommand)
@click.argument("target", metavar="CELL|FILE")
@click.option("--recipe", "name", metavar="NAME", help="The recipe that FILE is an export of.")
@click.option(
    "--bundle",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a bug report into this folder: a script that shows the fault without your model, its data, and a text.",
)
@click.option(
    "--versions",
    is_flag=True,
    help="Look for a version of a package with which the cell passes: of the exporter's and the runtime's packages, one at a "
    "time, newer ones first.",
)
@click.option(
    "--with-torch", is_flag=True, help="With --versions: try other versions of torch, too, the last. Each is a large download."
)
@click.option("--pre", is_flag=True, help="With --versions: try pre-releases, too.")
@options_of("recipe-files", "packages", *(option.name for option in OF_ONE_CELL))
@with_colour
@with_exit_code
def why(
    target: str,
    name: str | None,
    bundle: Path | None,
    versions: bool,
    with_torch: bool,
    pre: bool,
    paths: tuple[Path, ...],
    **flags: str | None,
) -> NoReturn:
    r"""Show where the failure of a cell or a file begins.

    Each cause is shown with its line of code, and with the nodes around the fault: what each node computes in the file, what
    the model computes there, and the difference in units of the rounding of that operator. The difference is small before the
    fault and grows from there. A CELL is an id as shown by `onnx-ci list`, with or without the recipe file. Known and allowed
    failures are explained, too. A FILE is judged as by `onnx-ci verify`. Recipes are searched for in PATHS, or in the project's
    recipe files. The exit code is that of the cell.

    \b
    Examples:
      onnx-ci why net::opset13-cpu
      onnx-ci why onnx_recipes.py::net::opset18-cpu
      onnx-ci why model.onnx --recipe=net
      onnx-ci why net::opset18-cpu --versions         which version of which package repairs it
    """
    if (with_torch or pre) and not versions:
        raise click.UsageError(f"{'--with-torch' if with_torch else '--pre'} needs --versions")
    settings = settings_from(flags | {"cache": OFF})
    subject = cell_or_file(target, settings, paths)
    if bundle is not None and not isinstance(subject, NamedCell):
        raise ConfigurationError("--bundle needs a cell: nothing is known about the export of a file")
    if versions and not isinstance(subject, NamedCell):
        raise ConfigurationError("--versions needs a cell: a file is not exported again")
    if isinstance(subject, NamedCell):
        result = _judge(subject, None, settings)
    elif name is None:
        raise ConfigurationError(f"name the recipe that {target} is an export of: --recipe=NAME")
    else:
        file = subject.absolute()  # a recipe may change directory
        result = _judge(_cell_of_file(file, name, settings, paths), file, settings)
    click.echo(f"{one_line(target)} {style(outcome(result), result.status)}")
    for line in _explanation(result):
        click.echo(one_line(line))
    if bundle is not None and isinstance(subject, NamedCell):
        click.echo(f"\n{one_line(_bundled(subject, result, bundle, settings))}")
    if versions and isinstance(subject, NamedCell):
        click.echo()
        _repair_by_version(subject, result, settings, flags, with_torch=with_torch, pre=pre)
    sys.exit(exit_code([result]))


def _repair_by_version(
    subject: NamedCell,
    result: CellResult,
    settings: Settings,
    flags: Mapping[str, str | None],
    *,
    with_torch: bool,
    pre: bool,
) -> None:
    """Look for a version of a package with which the cell passes, and say what was found."""
    from onnx_ci.environment.overlay import Request, installed
    from onnx_ci.matrix.scope import runtimes_of
    from onnx_ci.versions.packages import TORCH, packages_of
    from onnx_ci.versions.repair import repair
    from onnx_ci.versions.runs import Trials, flags_of, only

    broken = broken_rules(result.findings)
    if not broken:
        click.echo("no other version is tried: the cell does not fail")
        return
    scope = subject.recipes.scopes[result.cell.recipe]
    cell = dataclasses.replace(result.cell, source=scope.source)  # the command line need not name the file
    packages = packages_of(cell.exporter, runtimes_of(scope, settings), scope.stages if cell.stage else (), installed())
    tried = [name for name in packages if with_torch or name != TORCH]
    file = os.path.relpath(settings.root / cell.source)
    trials = Trials([*flags_of({**flags, **only([cell], settings)}), file], settings, Request(requirements=(), pre=pre))
    found = repair(cell, broken, tried, trials, lambda words: click.echo(f"  {one_line(words)}"), pre=pre)
    if found is not None:
        click.echo(f"\n{found.words}")
        return
    click.echo(f"\nno other version of {listed(tried) or 'a package'} that was tried repairs it")
    if not with_torch and TORCH in packages:
        click.echo("torch was not tried, because it is a large download: --with-torch tries it")


def _bundled(subject: NamedCell, result: CellResult, folder: Path, settings: Settings) -> str:
    """Write the bug report, and return what to say about it."""
    from onnx_ci.bundle.bundle import NoBundleError, write_bundle

    recipes = subject.recipes
    if settings.isolation == "none":  # what a bug report tries may crash
        settings = dataclasses.replace(settings, isolation=DEFAULT_ISOLATION)
        recipes = find_recipes(settings, (settings.root / recipes.scopes[subject.planned.cell.recipe].source,))
    try:
        with recipes:
            return write_bundle(subject.planned, result.findings, folder, settings, recipes.run_all)
    except NoBundleError as error:
        return f"no bug report is written: {error}"
    except OSError as error:
        raise ConfigurationError(f"--bundle: {folder} cannot be written: {error.strerror or error}") from None


def _cell_of_file(file: Path, name: str, settings: Settings, paths: tuple[Path, ...]) -> NamedCell:
    from onnx_ci.onnx_model.signature import opset_of

    recipes = find_recipes(settings, paths)
    scope = recipe_named(name, recipes)
    opset = opset_of(file) or DEFAULT_OPSETS[-1]
    cell = Cell(source=scope.source, recipe=name, exporter=default_exporter(opset), opset=opset, device="cpu")
    return NamedCell(planned=plan_of(cell, scope, settings), recipes=recipes)


def _judge(subject: NamedCell, file: Path | None, settings: Settings) -> CellResult:
    """The result of a cell without its expected and allowed failures, so that the cause of each failure is searched for."""
    from onnx_ci.engine.session import Session
    from onnx_ci.pipeline.export.exporter import Artifact

    errors = {rule: severity for rule, severity in subject.planned.severities.items() if severity is Severity.ERROR}
    planned = dataclasses.replace(subject.planned, expectations=(), allow=(), severities=errors)
    artifact = None if file is None else Artifact(path=file)
    with Session(settings, subject.recipes, is_reporting=False) as session:
        return session.judge(planned, artifact)


def _explanation(result: CellResult) -> list[str]:
    """The causes of a failure, each with the nodes around it."""
    lines = [result.reason] if result.reason else []
    for cause in causes_of(result.findings):
        findings = (cause.finding, *cause.consequences)
        lines += ["", *finding_lines(findings, code_in=Path.cwd())]
        steps_by_probe = {finding.probe: finding.steps for finding in reversed(findings) if finding.steps}  # the first counts
        for probe, steps in steps_by_probe.items():
            lines += ["", f"    on {probe!r}, node by node:", *step_lines(steps)]
        if cause.finding.severity is Severity.ERROR and cause.finding.probe is not None and not cause.finding.culprits:
            lines.append("    where the wrong values come from was not found")
    return lines
