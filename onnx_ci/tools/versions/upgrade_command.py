"""``onnx-ci upgrade``: what newer versions of packages change, and which of them breaks a cell."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from onnx_ci.cli.common import options_of, settings_from, style, with_colour, with_exit_code
from onnx_ci.cli.grouped_help import GroupedCommand
from onnx_ci.config.options import Role, options_with
from onnx_ci.errors import ExitCode
from onnx_ci.report.causes import describe_cells_by_recipe, shared_failures
from onnx_ci.report.comparison import Movement, RunComparison, changed_rows
from onnx_ci.report.text import finding_lines
from onnx_ci.results.records import Problem, Status
from onnx_ci.text import count, listed_shortly, one_line

if TYPE_CHECKING:
    from onnx_ci.tools.versions.upgrade import Upgraded

_OPTIONS = [
    option.name
    for option in options_with(Role.MATRIX, Role.SELECTION, Role.DISCOVERY, Role.VERDICT, Role.EXECUTION)
    if option.name != "shard"
]
_MOST_SHOWN = 6


@click.command(cls=GroupedCommand)
@click.option(
    "--to", multiple=True, metavar="REQUIREMENT", help="The versions to compare with, such as torch==2.15.*. Repeatable."
)
@click.option("--pre", is_flag=True, help="Try pre-releases, too.")
@click.option(
    "--constraint",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file with constraints of pip that the newer versions meet, too. Repeatable.",
)
@options_of("cache", *_OPTIONS)
@with_colour
@with_exit_code
def upgrade(
    to: tuple[str, ...], pre: bool, constraint: tuple[Path, ...], paths: tuple[Path, ...], **flags: str | None
) -> NoReturn:
    r"""Show what newer versions change, before you install them.

    The cells are judged twice: with what is installed, and with the newest versions of the exporters' and the runtimes'
    packages that pip finds for this environment, or those that --to names. What the installed project requires of its
    packages holds for both. Nothing is installed: other versions are kept in the user's cache. For cells that break, one
    package at a time is tried, then pairs, then the versions between. The exit code is 1 if a cell breaks, otherwise 0.

    \b
    Examples:
      onnx-ci upgrade
      onnx-ci upgrade --to='torch==2.15.*' --opsets=13,18
      onnx-ci upgrade --pre --select='resnet*'
    """
    from onnx_ci.tools.versions.overlay import Request, installed, resolved
    from onnx_ci.tools.versions.packages import all_packages
    from onnx_ci.tools.versions.runs import Trials, flags_of, only
    from onnx_ci.tools.versions.upgrade import faults, upgraded

    settings = settings_from(flags)
    today = {name: each.version for name, each in installed().items()}
    request = Request(requirements=to or tuple(all_packages(installed())), constraints=constraint, upgrade=True, pre=pre)
    names = request.names
    wheels = resolved(request)
    named = [name for name in names if name in wheels] or list(wheels)
    if not wheels:
        versions = listed_shortly([f"{name} {today.get(name, '')}" for name in names], _MOST_SHOWN)
        click.echo(f"nothing to compare: what is allowed is installed already: {versions}")
        sys.exit(ExitCode.PASSED)
    changes = {name: f"{name} {today.get(name, 'absent')} → {wheel.version}" for name, wheel in wheels.items()}
    needed = [change for name, change in changes.items() if name not in named]
    heading = listed_shortly([changes[name] for name in named], _MOST_SHOWN)
    heading = one_line(heading + (f", with {listed_shortly(needed, _MOST_SHOWN)}" if needed else ""))
    arguments = [*flags_of(flags), *map(str, paths)]
    found = upgraded(wheels, arguments, settings)
    lines = list(_lines(found))
    if not lines:
        click.echo(f"nothing changed in {count(found.cells, 'cell')}: {heading}")
        sys.exit(ExitCode.PASSED)
    click.echo(style(heading, None))
    for line in map(one_line, lines):
        click.echo(style(line, Status.FAILED) if line.startswith("broke: ") else line)
    if found.broken:
        trials = Trials([*flags_of({**flags, **only(found.broken, settings)}), *map(str, paths)], settings, request)
        left = found.broken
        for fault in faults(found.broken, wheels, named, trials, pre=pre):
            verb, right = ("breaks", f" (right with {fault.right})") if fault.right else ("break", "")
            click.echo(one_line(f"{fault.versions} {verb} {describe_cells_by_recipe(fault.cells)}{right}"))
            left = [cell for cell in left if cell not in fault.cells]
        if left:
            click.echo(one_line(f"no package, and no pair of them, breaks by itself {describe_cells_by_recipe(left)}"))
    sys.exit(ExitCode.FAILED if found.broken or found.problems else ExitCode.PASSED)


def _lines(found: Upgraded) -> Iterator[str]:
    """What broke, with its causes, what got better, and what else changed."""
    for problem in found.problems:
        yield f"broke: {problem.source}: {problem.message}" if isinstance(problem, Problem) else f"broke: {problem}"
    for failure in shared_failures(found.results):
        yield f"broke: {failure.title}"
        yield from (f"    {line}" for line in finding_lines(failure.first.findings, code_in=Path.cwd()))
    if found.comparison is not None:
        yield from _other_lines(found.comparison)


def _other_lines(comparison: RunComparison) -> Iterator[str]:
    """What got better, what changed in cells that do not break, and which cells come and go."""
    news = comparison.news
    gained = [each.cell for each in news if each.after is not None and each.after.status is Status.XPASSED]
    if gained:
        yield f"fixed: {describe_cells_by_recipe(gained)}: no longer fails as its recipe expects, so remove the expectation"
    for movement in (Movement.FIXED, Movement.NEW, Movement.GONE):
        if cells := [each.cell for each in news if each.movement is movement]:
            yield f"{movement.value}: {describe_cells_by_recipe(cells)}"
    changed = [each for each in news if each.movement in (Movement.FAILS_DIFFERENTLY, Movement.CHANGED)]
    for row in changed_rows(dataclasses.replace(comparison, moved=tuple(changed))):
        values = f", {row.before} → {row.after}" if row.before else ""
        yield f"{row.mark or 'changed'}: {row.title} at opset {row.opsets}: {row.words}{values}"
