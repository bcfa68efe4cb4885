"""What moved since an earlier run: the verdicts, the drift, the size of the files and the times of the cells that both have."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx_ci.baseline.changes import Limits, in_bytes, is_near, same_drift
from onnx_ci.environment.versions import differing_versions
from onnx_ci.opsets import format_opsets
from onnx_ci.report.grid import grid
from onnx_ci.report.templates import duration
from onnx_ci.results.records import Cell, CellResult, Status
from onnx_ci.results.run_report import RunReport

_FACTOR = 2.0
_SECONDS = 1.0
"""A time has moved if it is this many times longer or shorter, and by at least this much: machines differ, and load varies."""


class Measure(enum.StrEnum):
    """What can differ from run to run."""

    VERDICT = "verdict"
    DRIFT = "drift"
    SIZE = "file size"
    TIME = "time"


@dataclass(frozen=True, kw_only=True)
class Move:
    """One measure of a cell that is not what it was."""

    measure: Measure
    before: str
    now: str
    is_worse: bool
    factor: float
    """How many times larger it is, or smaller; infinite for a verdict."""

    @property
    def direction(self) -> str:
        """``worse``, ``larger``, ``shorter``."""
        words = {Measure.VERDICT: ("worse", "better"), Measure.TIME: ("longer", "shorter")}
        worse, better = words.get(self.measure, ("larger", "smaller"))
        return worse if self.is_worse else better


@dataclass(frozen=True, kw_only=True)
class RowMove:
    """The same for the cells of a row of the grid."""

    title: str
    """The title of the row."""
    opsets: str
    move: Move
    """The one with the largest factor."""
    cell: Cell
    """The cell that it is of."""


@dataclass(frozen=True, kw_only=True)
class Total:
    """A measure over all cells for which both runs know it."""

    title: str
    cells: int
    before: str
    now: str
    change: str
    """``+3 %``."""


@dataclass(frozen=True, kw_only=True)
class Since:
    """A run, compared with an earlier one."""

    name: str
    """What the earlier run is called: ``main.json (a1b2c3d on main)``."""
    results: Mapping[str, CellResult]
    """Those of the earlier run, by the ids of their cells."""
    moves: Mapping[str, Sequence[Move]]
    """What moved, by the id of each cell in which anything did."""
    rows: Sequence[RowMove]
    """The same row by row: verdicts first, and what got worse before what got better."""
    totals: Sequence[Total]
    added: int
    """How many cells the earlier run does not have."""
    removed: Sequence[str]
    """The ids of cells that only the earlier run has."""
    versions: str
    """``torch 2.12.0 → 2.13.0``: those that differ."""

    def mark(self, cell: Cell) -> str:
        """``worse`` or ``better`` if the verdict or the drift of a cell moved, else nothing."""
        moves = [each for each in self.moves.get(cell.id, ()) if each.measure in (Measure.VERDICT, Measure.DRIFT)]
        return "" if not moves else "worse" if moves[0].is_worse else "better"


def since(report: RunReport, earlier: RunReport, name: str, limits: Limits) -> Since:
    """What moved from ``earlier`` to ``report``.

    Args:
        report: the run.
        earlier: the run that it is compared with.
        name: what that is called, such as the path of its report.
        limits: how much may differ, as for baselines.
    """
    before = {result.cell.id: result for result in earlier.cells}
    both = [(before[result.cell.id], result) for result in report.cells if result.cell.id in before]
    known = {now.cell.id for _, now in both}
    moves = {now.cell.id: found for was, now in both if (found := _moves(was, now, limits))}
    return Since(
        name=name if earlier.revision is None else f"{name} ({earlier.revision.in_words})",
        results=before,
        moves=moves,
        rows=_rows(report.cells, moves),
        totals=_totals(both),
        added=len(report.cells) - len(known),
        removed=[id for id in before if id not in known],
        versions=differing_versions(earlier.environment, report.environment),
    )


_RANKS = {each: rank for rank, each in enumerate(("passed", "xfailed", "skipped", "xpassed", "failed", "error"))}
"""The verdicts, the best first."""


def _moves(was: CellResult, now: CellResult, limits: Limits) -> list[Move]:
    """What moved in one cell, the most important first."""
    moves = []
    if was.status is not now.status:
        is_worse = _RANKS[now.status] > _RANKS[was.status]
        verdicts = {"before": was.status.value, "now": now.status.value}
        moves.append(Move(measure=Measure.VERDICT, **verdicts, is_worse=is_worse, factor=math.inf))
    elif was.worst and now.worst and not same_drift(was.worst.drift, now.worst.drift, limits):
        moves.append(_move(Measure.DRIFT, was.worst.drift, now.worst.drift, "{:.2g}".format))
    if was.facts and now.facts and not is_near(was.facts.file_bytes, now.facts.file_bytes, limits["size"]):
        moves.append(_move(Measure.SIZE, was.facts.file_bytes, now.facts.file_bytes, in_bytes))
    if _is_timed(was) and _is_timed(now) and _is_other_time(was.seconds, now.seconds):
        moves.append(_move(Measure.TIME, was.seconds, now.seconds, duration))
    return [each for each in moves if each.before != each.now]  # NaN never equals itself


def _move(measure: Measure, was: float, now: float, show: Callable[[float], str]) -> Move:
    least, most = sorted((was, now))
    factor = most / least if least > 0 and most < math.inf else math.inf
    return Move(measure=measure, before=show(was), now=show(now), is_worse=not now <= was, factor=factor)


def _is_timed(result: CellResult) -> bool:
    """Whether the times of a cell are those of its run."""
    return bool(result.timings) and not result.cached


def _is_other_time(was: float, now: float) -> bool:
    least, most = sorted((was, now))
    return most - least >= _SECONDS and most >= _FACTOR * least


def _rows(results: Iterable[CellResult], moves: Mapping[str, Sequence[Move]]) -> list[RowMove]:
    found: dict[tuple[object, ...], list[tuple[Cell, Move]]] = {}
    for row in grid(results).rows:
        for result in filter(None, row.results):
            for move in moves.get(result.cell.id, ()):
                verdicts = (move.before, move.now) if move.measure is Measure.VERDICT else ()
                found.setdefault((row.title, move.measure, move.is_worse, *verdicts), []).append((result.cell, move))
    rows = []
    for (title, *_), cells in found.items():
        cell, largest = max(cells, key=lambda each: each[1].factor)
        opsets = format_opsets([each.opset for each, _ in cells])
        rows.append(RowMove(title=str(title), opsets=opsets, move=largest, cell=cell))
    measures = list(Measure)
    return sorted(rows, key=lambda each: (measures.index(each.move.measure), not each.move.is_worse, -each.move.factor))


def _totals(both: Sequence[tuple[CellResult, CellResult]]) -> list[Total]:
    passed = [(was, now) for was, now in both if was.status is now.status is Status.PASSED]
    drifts = [(was.worst.drift, now.worst.drift) for was, now in passed if was.worst and now.worst]
    sizes = [(float(was.facts.file_bytes), float(now.facts.file_bytes)) for was, now in both if was.facts and now.facts]
    times = [(was.seconds, now.seconds) for was, now in both if _is_timed(was) and _is_timed(now)]
    return [
        *_total("drift of passed cells, median", drifts, statistics.median, "{:.2g}".format),
        *_total("file size, total", sizes, sum, in_bytes),
        *_total("time, total", times, sum, duration),
    ]


def _total(
    title: str,
    values: Sequence[tuple[float, float]],
    combine: Callable[[list[float]], float],
    show: Callable[[float], str],
) -> Iterator[Total]:
    """One total of the values before and now; none if there are no values."""
    if values:
        was, now = (combine(list(each)) for each in zip(*values, strict=True))
        share = (now - was) / was if was else math.nan
        change = f"{'+' if share > 0 else '−' if share < 0 else ''}{abs(share):.0%}" if math.isfinite(share) else ""
        yield Total(title=title, cells=len(values), before=show(was), now=show(now), change=change.replace("%", " %"))
