"""What newer versions break, and which packages do: the cells judged with what is installed and with the newer versions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError
from onnx_ci.report.comparison import Measure, Movement, RunComparison, compare_runs
from onnx_ci.results.records import Cell, CellResult, Problem, Status
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.overlay import NONE, in_words, installed, overlay_of
from onnx_ci.tools.versions.pip import Wheel
from onnx_ci.tools.versions.runs import NothingReportedError, Trials, reported
from onnx_ci.tools.versions.search import blame, first_that_holds


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
    """Judge the cells twice.

    Args:
        wheels: the newer versions.
        arguments: flags and paths of ``onnx-ci run``.
        settings: those of the project.

    Raises:
        ConfigurationError: nothing runs with what is installed, or the newer versions cannot be installed.
    """
    overlay = overlay_of(wheels)
    try:
        before = reported(NONE, arguments, settings)
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

    Args:
        result: its result, if there is one.
        is_short: whether results are missing that should be there. Otherwise, a cell without one does not exist with these
            versions.
    """
    return is_short if result is None else result.status.is_bad and result.status is not Status.XPASSED


def _without_times(comparison: RunComparison) -> RunComparison:
    """Times depend on the machine, and on what is cached."""
    moved = (
        replace(each, measures=tuple(move for move in each.measures if move.measure is not Measure.TIME))
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
    broken: Sequence[Cell], wheels: Mapping[str, Wheel], packages: Sequence[str], trials: Trials, *, pre: bool = False
) -> Iterator[Fault]:
    """Which newer versions break which cells: one package at a time, then pairs; of one package, the first version.

    Args:
        broken: the cells that all of the newer versions break.
        wheels: the newer versions.
        packages: those that are tried.
        trials: runs of these cells.
        pre: whether pre-releases count.
    """

    def pins(names: Sequence[str]) -> list[str]:
        return [f"{name}=={wheels[name].version}" for name in names]

    def breaks(*requirements: str) -> Sequence[Cell] | None:
        """The cells that fail with these versions; ``None`` if they cannot be had."""
        needed = trials.wheels(*requirements)
        if needed is None or needed == wheels:
            return needed if needed is None else broken
        results = trials.results(needed)
        if isinstance(results, str):
            return broken
        return [cell for cell in broken if _is_broken(results.get(cell), is_short=True)]

    # A package that needs no other one is tried before those that need it.
    candidates = [name for name in packages if name in wheels]
    candidates.sort(key=lambda name: len(trials.wheels(*pins([name])) or wheels))
    for names, cells in blame(candidates, broken, lambda names: breaks(*pins(names)) or ()).items():
        needed = trials.wheels(*pins(names)) or {}
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
