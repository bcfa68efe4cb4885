"""``onnx-ci upgrade``: what newer versions of packages change, and which of them breaks a cell."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import click
from packaging.version import Version

from onnx_ci.baseline.changes import describe_renamed
from onnx_ci.cli.common import GroupedCommand, options_of, settings_from, style, with_colour, with_exit_code
from onnx_ci.config.options import Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.report.causes import describe_cells_by_recipe, shared_failures
from onnx_ci.report.comparison import Measure, Movement, RunComparison, changed_rows, compare_runs
from onnx_ci.report.findings import finding_lines
from onnx_ci.results.records import Cell, CellResult, Problem, Status
from onnx_ci.text import count, listed_shortly, one_line
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.newest import describe_held_back
from onnx_ci.tools.versions.overlay import Request, all_packages, in_words, installed, overlay_of, resolved
from onnx_ci.tools.versions.pip import Wheel
from onnx_ci.tools.versions.runs import CachedRuns, NothingReportedError, flags_for, flags_of, reported
from onnx_ci.tools.versions.search import blame, first_that_holds

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
    settings = settings_from(flags)
    today = {name: each.version for name, each in installed().items()}
    request = Request(requirements=to or tuple(all_packages(installed())), constraints=constraint, upgrade=True, pre=pre)
    names = request.names
    wheels = resolved(request)
    free = {name for name, each in zip(names, request.requirements, strict=True) if each == name}  # without a version
    had = {
        name: [wheels[name].version if name in wheels else today[name]] for name in names if name in {*wheels, *today} & free
    }
    held_back = [one_line(line) for line in describe_held_back(had, request)]
    named = [name for name in names if name in wheels] or list(wheels)
    if not wheels:
        versions = listed_shortly([f"{name} {today.get(name, '')}" for name in names], _MOST_SHOWN)
        click.echo(f"nothing to compare: what is allowed is installed already: {versions}")
        for line in held_back:
            click.echo(line)
        sys.exit(ExitCode.PASSED)
    changes = {name: f"{name} {today.get(name, 'absent')} → {wheel.version}" for name, wheel in wheels.items()}
    needed = [change for name, change in changes.items() if name not in named]
    heading = listed_shortly([changes[name] for name in named], _MOST_SHOWN)
    heading = one_line(heading + (f", with {listed_shortly(needed, _MOST_SHOWN)}" if needed else ""))
    arguments = [*flags_of(flags), *map(str, paths)]
    judged = upgraded(wheels, arguments, settings)
    lines = list(_lines(judged))
    if not lines:
        click.echo(f"nothing changed in {count(judged.cells, 'cell')}: {heading}")
        for line in held_back:
            click.echo(line)
        sys.exit(ExitCode.PASSED)
    click.echo(style(heading, None))
    for line in held_back:
        click.echo(line)
    for line in map(one_line, lines):
        click.echo(style(line, Status.FAILED) if line.startswith("broke: ") else line)
    if judged.broken:
        runs = CachedRuns([*flags_of({**flags, **flags_for(judged.broken, settings)}), *map(str, paths)], settings, request)
        left = judged.broken
        for fault in faults(judged.broken, wheels, named, runs, pre=pre):
            verb, right = ("breaks", f" (right with {fault.right})") if fault.right else ("break", "")
            click.echo(one_line(f"{fault.versions} {verb} {describe_cells_by_recipe(fault.cells)}{right}"))
            left = [cell for cell in left if cell not in fault.cells]
        if left:
            click.echo(one_line(f"no package, and no pair of them, breaks by itself {describe_cells_by_recipe(left)}"))
    sys.exit(ExitCode.FAILED if judged.broken or judged.problems else ExitCode.PASSED)


def _lines(judged: Upgraded) -> Iterator[str]:
    """What broke, with its causes, what got better, and what else changed."""
    for problem in judged.problems:
        yield f"broke: {problem.source}: {problem.message}" if isinstance(problem, Problem) else f"broke: {problem}"
    for failure in shared_failures(judged.results):
        yield f"broke: {failure.title}"
        yield from (f"    {line}" for line in finding_lines(failure.first.findings))
        for finding in failure.first.findings:
            if finding.rule == "name-mismatch" and {"role", "declared", "found"} <= finding.details.keys():
                pairs = zip(finding.details["declared"], finding.details["found"], strict=True)
                renamed = describe_renamed(finding.details["role"], [(old, new) for old, new in pairs if old != new])
                yield from (f"    with these versions, {line}" for line in renamed)
    if judged.comparison is not None:
        yield from _other_lines(judged.comparison)


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


@dataclass(frozen=True, kw_only=True)
class Upgraded:
    """The cells with what is installed and with newer versions."""

    comparison: RunComparison | None
    """Without the times, and without what broke; ``None`` if nothing ran with the newer versions."""
    broken: Sequence[Cell]
    """The cells that do not fail with what is installed, and do with the newer versions."""
    results: Sequence[CellResult]
    """Their results, as far as there are any."""
    problems: Sequence[Problem | str]
    """What is wrong with the newer versions besides: problems of recipe files, or why nothing ran."""
    cells: int
    """How many cells were judged with what is installed."""


def upgraded(wheels: Mapping[str, Wheel], arguments: Sequence[str], settings: Settings) -> Upgraded:
    """Judge the cells twice, with what is installed and with the newer versions.

    Raises:
        ConfigurationError: nothing runs with what is installed, or the newer versions cannot be installed.
    """
    overlay = overlay_of(wheels)
    try:
        before = reported(None, arguments, settings)
    except NothingReportedError as error:
        raise ConfigurationError(f"with what is installed, nothing runs: {error}") from None
    right = [result.cell for result in before.cells if not result.status.is_bad and result.status is not Status.SKIPPED]
    try:
        after = reported(overlay, arguments, settings)
    except NothingReportedError as error:
        return Upgraded(comparison=None, broken=right, results=(), problems=(str(error),), cells=len(before.cells))
    results = {result.cell: result for result in after.cells}
    sources = {each.source for each in before.problems}  # their messages can contain the path of an overlay
    problems = [each for each in after.problems if each.source not in sources]
    is_short = bool(problems or after.not_run)
    comparison = _without_times(compare_runs(after, before, settings.baseline_limits))
    new = [each.cell for each in comparison.news if each.movement is Movement.BROKE and each.before is None]
    broken = [cell for cell in (*right, *new) if _is_broken(results.get(cell), is_short=is_short)]
    others = tuple(each for each in comparison.news if each.cell not in broken)
    return Upgraded(
        comparison=replace(comparison, moved=others),
        broken=broken,
        results=[results[cell] for cell in broken if cell in results],
        problems=problems,
        cells=len(before.cells),
    )


def _is_broken(result: CellResult | None, *, is_short: bool) -> bool:
    """Whether a cell fails; one that fails no longer, although its recipe expects that, does not.

    If results are missing that should be there, so may that of the cell. Otherwise, it does not exist with these versions.
    """
    return is_short if result is None else result.status.is_bad and result.status is not Status.XPASSED


def _without_times(comparison: RunComparison) -> RunComparison:
    """Times depend on the machine, and on what is cached."""
    moved = (
        replace(each, measures=tuple(change for change in each.measures if change.measure is not Measure.TIME))
        for each in comparison.moved
    )
    return replace(comparison, moved=tuple(moved))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Newer versions that break cells."""

    versions: str
    """In words."""
    right: str
    """The last version before with which the cells are right; empty for a pair."""
    cells: Sequence[Cell]


def faults(
    broken: Sequence[Cell], wheels: Mapping[str, Wheel], packages: Sequence[str], runs: CachedRuns, *, pre: bool = False
) -> Iterator[Fault]:
    """Which newer versions break which cells: one package at a time, then pairs; of one package, the first version."""

    def pins(names: Sequence[str]) -> list[str]:
        return [f"{name}=={wheels[name].version}" for name in names]

    def breaks(*requirements: str) -> Sequence[Cell] | None:
        """The cells that fail with these versions; ``None`` if they cannot be had."""
        needed = runs.wheels(*requirements)
        if needed is None or needed == wheels:
            return needed if needed is None else broken
        results = runs.results(needed)
        if isinstance(results, str):
            return broken
        return [cell for cell in broken if _is_broken(results.get(cell), is_short=True)]

    # A package that needs no other one is tried before those that need it.
    candidates = [name for name in packages if name in wheels]
    candidates.sort(key=lambda name: len(runs.wheels(*pins([name])) or wheels))
    for names, cells in blame(candidates, broken, lambda names: breaks(*pins(names)) or ()).items():
        needed = runs.wheels(*pins(names)) or {}
        words = in_words(names, {name: wheel.version for name, wheel in needed.items()})
        if len(names) > 1:
            yield Fault(versions=f"{words} together", right="", cells=cells)
            continue
        (name,) = names
        present = installed().get(name)
        old, new = Version("0" if present is None else present.version), Version(wheels[name].version)
        between = [each for each in pip.available(name, pre=pre) if Version(old.public) < Version(each.public) < new]
        groups: dict[tuple[Version, Version], list[Cell]] = {}
        for cell in cells:
            first, right = first_that_holds([*between, new], functools.partial(_breaks, breaks, name, cell))
            groups.setdefault((first, right or old), []).append(cell)
        for (first, right), group in groups.items():
            yield Fault(versions=words if first == new else f"{name} {first}", right=str(right), cells=group)


def _breaks(breaks: Callable[[str], Sequence[Cell] | None], name: str, cell: Cell, version: Version) -> bool | None:
    cells = breaks(f"{name}=={version}")
    return None if cells is None else cell in cells
