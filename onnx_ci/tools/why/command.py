"""``onnx-ci why``: where a failure begins, how the error grows from there, and what a rule means."""

from __future__ import annotations

import dataclasses
import importlib.resources
import sys
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
from onnx_ci.config.reproduce import OF_ONE_CELL
from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError, ExitCode, did_you_mean
from onnx_ci.matrix.plan import spec_of
from onnx_ci.opsets import DEFAULT_OPSETS, default_exporter
from onnx_ci.plugins import tool
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.report.causes import causes_of
from onnx_ci.report.findings import finding_lines
from onnx_ci.report.text import describe_outcome, step_lines
from onnx_ci.results.records import Cell, CellResult, Severity
from onnx_ci.results.rules import RULES
from onnx_ci.results.stages import PHASES
from onnx_ci.results.verdict import exit_code
from onnx_ci.text import one_line
from onnx_ci.tools.named_cells import NamedCell, failing_cell_or_file


@click.command(cls=GroupedCommand)
@click.argument("target", required=False, metavar="CELL|FILE|RULE")
@click.option("--recipe", "name", metavar="NAME", help="The recipe that FILE is an export of.")
@options_of("recipe-files", "packages", *(option.name for option in OF_ONE_CELL))
@with_colour
@with_exit_code
def why(target: str | None, name: str | None, paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""Show where a failure begins, or what a rule means.

    Each cause is shown with its line of code, and with the nodes around the fault: what each node computes in the file, what
    the model computes there, and the difference in units of the rounding of that operator. The difference is small before the
    fault and grows from there. In another runtime that is wrong, each node is run alone. A CELL is an id as shown by `onnx-ci
    list`, with or without the recipe file. Known and allowed failures are explained, too. A FILE is judged as by `onnx-ci
    verify`. Recipes are searched for in PATHS, or in the project's recipe files. The exit code is that of the cell.

    The page of a RULE explains it, with an example that breaks it, and says how to fix that. Without a target, all rules are
    listed by the phase that reports them. An error fails the cell, a warning marks it, and a note is only reported;
    [tool.onnx-ci.rules] in pyproject.toml has the severities that a project decides otherwise.

    \b
    Examples:
      onnx-ci why net::opset13-cpu
      onnx-ci why onnx_recipes.py::net::opset18-cpu
      onnx-ci why model.onnx --recipe=net
      onnx-ci why baked-value
    """
    if target is None or (target in RULES and not Path(target).exists()):
        _show_rules(target)
        sys.exit(ExitCode.PASSED)
    if not (set(":./") & set(target) or target.isidentifier() or Path(target).exists()) and (
        nearest := did_you_mean(target, RULES)
    ):
        raise ConfigurationError(f"there is no file and no rule {target!r}{nearest}")
    settings = settings_from(flags | {"locate": "true"})
    subject = failing_cell_or_file(target, settings, paths)
    with scratch_folder() as folder:
        settings = dataclasses.replace(settings, save_inputs=folder)
        if isinstance(subject, NamedCell):
            file, result = None, _judge(subject, None, dataclasses.replace(settings, artifacts=folder))
        elif name is None:
            raise ConfigurationError(f"name the recipe that {target} is an export of: --recipe=NAME")
        else:
            file = subject.absolute()  # a recipe may change directory
            result = _judge(_cell_of_file(file, name, settings, paths), file, settings)
        show_explained(result.cell.id if file is None else target, result)
        for line in tool("wrong-nodes")(result, file or result.artifact, folder, settings):
            click.echo(one_line(line))
    sys.exit(exit_code([result]))


def _show_rules(rule: str | None) -> None:
    """Print the page of a rule, or list all with their severities, under the phases that report them."""
    if rule is not None:
        page = importlib.resources.files("onnx_ci.rule_pages").joinpath(f"{rule}.md")
        click.echo(page.read_text(encoding="utf-8"), nl=False)
        return
    width = max(map(len, RULES))
    for phase in PHASES:
        click.echo(f"{phase}:")
        for each in RULES.values():
            if each.phase == phase:
                click.echo(f"  {each.id.ljust(width)}  {each.severity.value.ljust(len('warning'))}  {each.meaning}")


def judged_cell(target: str, settings: Settings, paths: tuple[Path, ...]) -> tuple[NamedCell, CellResult]:
    """The cell that ``target`` names, and its result with the causes of its failure, which is shown. A file is an error."""
    subject = failing_cell_or_file(target, settings, paths)
    if not isinstance(subject, NamedCell):
        raise ConfigurationError(f"{target} is a file: name a cell, as onnx-ci list shows them")
    result = _judge(subject, None, settings)
    show_explained(result.cell.id, result)
    return subject, result


def show_explained(target: str, result: CellResult) -> None:
    """Print the outcome of ``target``, and the causes of its failure with the nodes around them."""
    from onnx_ci.pipeline.compare.attribution import is_of_other_runtime  # with torch

    click.echo(f"{one_line(target)} {style(describe_outcome(result), result.status)}")
    lines = [result.reason] if result.reason else []
    for cause in causes_of(result.findings):
        findings = (cause.finding, *cause.consequences)
        lines += ["", *finding_lines(findings)]
        steps_by_probe = {finding.probe: finding.steps for finding in reversed(findings) if finding.steps}  # the first counts
        for probe, steps in steps_by_probe.items():
            lines += ["", f"    on {probe!r}, node by node:", *step_lines(steps)]
        error = cause.finding
        if error.severity is Severity.ERROR and error.probe is not None and not (error.culprits or is_of_other_runtime(error)):
            lines.append("    where the wrong values come from was not found")
    for line in lines:
        click.echo(one_line(line))


def _cell_of_file(file: Path, name: str, settings: Settings, paths: tuple[Path, ...]) -> NamedCell:
    from onnx_ci.onnx_model.signature import opset_of

    recipes = find_recipes(settings, paths)
    scope = recipe_named(name, recipes)
    opset = opset_of(file) or DEFAULT_OPSETS[-1]
    cell = Cell(source=scope.source, recipe=name, exporter=default_exporter(opset), opset=opset, device="cpu")
    return NamedCell(spec=spec_of(cell, scope, settings), recipes=recipes)


def _judge(subject: NamedCell, file: Path | None, settings: Settings) -> CellResult:
    """The result of a cell without its expected and allowed failures, so that the cause of each failure is searched for."""
    from onnx_ci.engine.session import Session
    from onnx_ci.pipeline.export.export import Artifact

    errors = {rule: severity for rule, severity in subject.spec.severities.items() if severity is Severity.ERROR}
    spec = dataclasses.replace(subject.spec, expectations=(), allow=(), severities=errors)
    artifact = None if file is None else Artifact(path=file)
    with Session(settings, subject.recipes, is_reporting=False) as session:
        return session.judge(spec, artifact)
