"""Two reports compared cell by cell: what moved, for the page of a run and for the comment on a pull request.

What counts is what counts against a baseline, with the same limits. A time also has to change a lot, because machines differ
and their load varies.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx_ci.baseline.changes import Change, Limits, changes, in_bytes, is_near, same_drift
from onnx_ci.baseline.entry import Entry, entry_of
from onnx_ci.config.options import Role, options_with
from onnx_ci.config.values import BASELINE_LIMITS
from onnx_ci.environment.versions import describe_version_changes
from onnx_ci.opsets import format_opsets
from onnx_ci.report.environments import renamed
from onnx_ci.report.grid import grid
from onnx_ci.report.text import format_duration
from onnx_ci.results.records import Cell, CellResult, Status
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict, broken_rules
from onnx_ci.text import listed

_SELECTING = tuple(option.name for option in options_with(Role.MATRIX, Role.SELECTION, Role.DISCOVERY))
"""The settings for which cells run."""
_DECIDING = tuple(option.name for option in options_with(Role.MATRIX, Role.SELECTION, Role.DISCOVERY, Role.VERDICT))
"""Those, and the settings for how cells are judged."""
_TIME_FACTOR = 2.0
_LEAST_SECONDS = 1.0
"""A time has moved if it is this many times longer or shorter, and by at least this many seconds."""
_BEST_FIRST = (Status.PASSED, Status.XFAILED, Status.SKIPPED, Status.XPASSED, Status.FAILED, Status.ERROR)


class Movement(enum.Enum):
    """What became of a cell, the most important first."""

    BROKE = "broke"
    """It fails, and did not before."""
    FAILS_DIFFERENTLY = "fails differently"
    """It failed before, too, but broke other rules."""
    WARNS = "new warning"
    """It does not fail, and warns of what it did not warn of before."""
    GONE = "gone"
    """There is no such cell anymore."""
    CHANGED = "changed"
    """It does not fail, but its status, its warnings, its file or its values are not the same."""
    FIXED = "fixed"
    """It failed before, and does not anymore."""
    NEW = "new"
    """There was no such cell."""


class Measure(enum.StrEnum):
    """What is measured of a cell in each run."""

    VERDICT = "verdict"
    DRIFT = "drift"
    SIZE = "file size"
    TIME = "time"


@dataclass(frozen=True, kw_only=True)
class MeasureChange:
    """One measure of a cell that is not what it was."""

    measure: Measure
    before: str
    after: str
    is_worse: bool
    factor: float
    """How many times larger it is, or smaller; infinite for a verdict, and 1 if only its warnings moved."""

    @property
    def words(self) -> str:
        """``worse verdict``, ``larger drift``, ``shorter time``."""
        directions = {Measure.VERDICT: ("worse", "better"), Measure.TIME: ("longer", "shorter")}
        worse, better = directions.get(self.measure, ("larger", "smaller"))
        return f"{worse if self.is_worse else better} {self.measure}"


@dataclass(frozen=True, kw_only=True)
class CellChange:
    """A cell that is not as it was."""

    cell: Cell
    before: CellResult | None
    after: CellResult | None
    measures: tuple[MeasureChange, ...] = ()
    """The measures that moved, the most important first."""
    rules: str = ""
    """``numeric-drift → checker``: the rules that it breaks if both runs fail; empty if they are the same."""
    changes: tuple[Change, ...] = ()
    """What changed in its file and its values."""

    @property
    def movement(self) -> Movement | None:
        """``None`` if it fails as before, or if only its time moved."""
        if self.after is None:
            return Movement.GONE
        if self.after.status.is_bad:
            if self.before is None or not self.before.status.is_bad:
                return Movement.BROKE
            return Movement.FAILS_DIFFERENTLY if self.rules else None
        if self.before is None:
            return Movement.NEW
        if self.before.status.is_bad:
            return Movement.FIXED
        if _warned_rules(self.after) - _warned_rules(self.before):
            return Movement.WARNS
        return Movement.CHANGED if self.kinds else None

    @property
    def mark(self) -> str:
        """``worse`` or ``better`` if its verdict or its drift moved; otherwise empty."""
        shown = [move for move in self.measures if move.measure in (Measure.VERDICT, Measure.DRIFT)]
        return "" if not shown else "worse" if shown[0].is_worse else "better"

    @property
    def kinds(self) -> frozenset[str]:
        """What moved, without the time."""
        return frozenset([*(kind for kind, _ in self.unmeasured), *(move.measure for move in self.measures)]) - {Measure.TIME}

    @property
    def unmeasured(self) -> list[tuple[str, str]]:
        """What no measure shows, each with its kind: ``("operators", "+1 Conv")``."""
        shown = {"output-drift": Measure.DRIFT, "size": Measure.SIZE}
        measured = {move.measure for move in self.measures}
        rules = [("rules", f"rules {self.rules}")] if self.rules else []
        return rules + [(each.kind, each.text) for each in self.changes if shown.get(each.kind) not in measured]


@dataclass(frozen=True, kw_only=True)
class Total:
    """A measure over all cells for which both runs know it."""

    title: str
    cells: int
    before: str
    after: str
    change: str
    """``+3 %``; empty where there was nothing before."""


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """What is different in a report, compared with an earlier one."""

    before: RunReport | None
    after: RunReport
    moved: tuple[CellChange, ...] = ()
    """The cells that are not as they were, the most important first. Without an earlier report, every cell is new."""

    @property
    def settings(self) -> tuple[str, ...]:
        """``max-drift 16 → 1000``: the settings for what is checked that are different; without an earlier report, none."""
        if self.before is None:
            return ()
        values = zip(_DECIDING, _values(self.before, _DECIDING), _values(self.after, _DECIDING), strict=True)
        return tuple(f"{name} {before or 'none'} → {after or 'none'}" for name, before, after in values if before != after)

    @property
    def versions(self) -> str:
        """``torch 2.12.0 → 2.13.0``: the versions that differ."""
        return "" if self.before is None else describe_version_changes(self.before.environment, self.after.environment)

    @property
    def totals(self) -> list[Total]:
        """The measures of all cells that both runs have."""
        both = [(self.earlier[each.cell], each) for each in self.after.cells if each.cell in self.earlier]
        passed = [(before, after) for before, after in both if before.status is after.status is Status.PASSED]
        drifts = [(before.worst.drift, after.worst.drift) for before, after in passed if before.worst and after.worst]
        sizes = [
            (float(before.facts.file_bytes), float(after.facts.file_bytes))
            for before, after in both
            if before.facts and after.facts
        ]
        times = [(before.seconds, after.seconds) for before, after in both if _is_timed(before) and _is_timed(after)]
        return [
            *_total("drift of passed cells, median", drifts, statistics.median, "{:.2g}".format),
            *_total("file size, total", sizes, sum, in_bytes),
            *_total("time, total", times, sum, format_duration),
        ]

    @functools.cached_property
    def earlier(self) -> Mapping[Cell, CellResult]:
        """The results of the earlier report by their cells."""
        return {} if self.before is None else {result.cell: result for result in self.before.cells}

    @functools.cached_property
    def news(self) -> tuple[CellChange, ...]:
        """The cells that moved, without those that fail as before or of which only the time moved.

        Cells that come or go are no news if it is known why: other cells were selected, or not all of them ran.
        """
        explained: set[Movement | None] = {None}
        if self.before is None or _values(self.after, _SELECTING) != _values(self.before, _SELECTING):
            explained |= {Movement.NEW, Movement.GONE}
        elif self.after.problems or self.after.not_run:
            explained.add(Movement.GONE)
        return tuple(each for each in self.moved if each.movement not in explained)

    @property
    def is_news(self) -> bool:
        """Whether anything is different; without an earlier report, whether anything is wrong."""
        if self.before is None:
            return self.after.verdict is not RunVerdict.PASSED
        problems = set(self.after.problems) != set(self.before.problems)
        verdicts = self.after.verdict is not self.before.verdict
        return bool(self.news or problems or self.settings or self.after.not_run or verdicts)

    @property
    def as_before(self) -> int:
        """How many cells fail as they did before."""
        news = {each.cell for each in self.news}
        return sum(result.status.is_bad and result.cell not in news for result in self.after.cells)

    def results(self, *movements: Movement) -> list[CellResult]:
        """The later results of the cells that moved in one of these ways, as far as they are news."""
        return [each.after for each in self.news if each.movement in movements and each.after is not None]


def compare_runs(after: RunReport, before: RunReport | None, limits: Limits = BASELINE_LIMITS) -> RunComparison:
    """What is different in ``after``, compared with ``before``, if there is that. ``limits`` are those of baselines."""
    before = None if before is None else renamed(before, after)
    comparison = RunComparison(before=before, after=after)
    earlier = comparison.earlier
    later = {result.cell for result in after.cells}
    moved = [CellChange(cell=cell, before=result, after=None) for cell, result in earlier.items() if cell not in later]
    for result in after.cells:
        previous = earlier.get(result.cell)
        if before is None or previous is None:
            moved.append(CellChange(cell=result.cell, before=None, after=result))
            continue
        old, new = _entry(previous, before), _entry(result, after)
        rules = [", ".join(sorted(broken_rules(each.findings))) or "none" for each in (previous, result)]
        both_fail = previous.status.is_bad and result.status.is_bad  # otherwise, the verdict shows it
        both = CellChange(
            cell=result.cell,
            before=previous,
            after=result,
            measures=tuple(_measure_changes(previous, result, limits)),
            rules=" → ".join(rules) if both_fail and rules[0] != rules[1] else "",
            changes=() if old is None or new is None else tuple(changes(old, new, limits)),
        )
        if both.measures or both.rules or both.changes:
            moved.append(both)
    order: list[Movement | None] = [*Movement, None]
    return dataclasses.replace(comparison, moved=tuple(sorted(moved, key=lambda each: order.index(each.movement))))


def _entry(result: CellResult, report: RunReport) -> Entry | None:
    """What a baseline would record of a result; ``None`` if no file was written."""
    return None if result.facts is None else entry_of(result, result.facts, report.environment)


def _values(report: RunReport, names: Iterable[str]) -> list[str | None]:
    """The values of settings; ``None`` for those that are not set."""
    return [setting.value if (setting := report.settings.get(name)) else None for name in names]


def _measure_changes(before: CellResult, after: CellResult, limits: Limits) -> list[MeasureChange]:
    """The measures that moved, the most important first."""
    moves = []
    verdicts = {"before": describe_verdict(before), "after": describe_verdict(after)}
    if before.status is not after.status:
        is_worse = _BEST_FIRST.index(after.status) > _BEST_FIRST.index(before.status)
        moves.append(MeasureChange(measure=Measure.VERDICT, **verdicts, is_worse=is_worse, factor=math.inf))
    elif verdicts["before"] != verdicts["after"]:
        is_worse = bool(_warned_rules(after) - _warned_rules(before))
        moves.append(MeasureChange(measure=Measure.VERDICT, **verdicts, is_worse=is_worse, factor=1.0))  # after what fails
    elif before.worst and after.worst and not same_drift(before.worst.drift, after.worst.drift, limits):
        moves.append(_measure_change(Measure.DRIFT, before.worst.drift, after.worst.drift, "{:.2g}".format))
    if before.facts and after.facts and not is_near(before.facts.file_bytes, after.facts.file_bytes, limits["size"]):
        moves.append(_measure_change(Measure.SIZE, before.facts.file_bytes, after.facts.file_bytes, in_bytes))
    if _is_timed(before) and _is_timed(after):
        least, most = sorted((before.seconds, after.seconds))
        if most - least >= _LEAST_SECONDS and most >= _TIME_FACTOR * least:
            moves.append(_measure_change(Measure.TIME, before.seconds, after.seconds, format_duration))
    return [move for move in moves if move.before != move.after]  # NaN is never near itself


def describe_verdict(result: CellResult) -> str:
    """``passed``, ``passed with edge-mismatch``."""
    warned = _warned_rules(result)
    return f"{result.status.value} with {listed(sorted(warned))}" if warned else result.status.value


def _warned_rules(result: CellResult) -> set[str]:
    return {each.rule for each in result.warnings}


def _measure_change(measure: Measure, before: float, after: float, show: Callable[[float], str]) -> MeasureChange:
    least, most = sorted((before, after))
    factor = most / least if least > 0 and most < math.inf else math.inf
    return MeasureChange(measure=measure, before=show(before), after=show(after), is_worse=not after <= before, factor=factor)


def _is_timed(result: CellResult) -> bool:
    """Whether the times of a cell are those of its run."""
    return bool(result.timings) and not result.cached


def _total(
    title: str, values: Sequence[tuple[float, float]], combine: Callable[[list[float]], float], show: Callable[[float], str]
) -> Iterator[Total]:
    """The total of the values before and after; nothing if there are no values."""
    if values:
        before, after = (combine(list(side)) for side in zip(*values, strict=True))
        share = (after - before) / before if before else math.nan
        change = f"{'+' if share > 0 else '−' if share < 0 else ''}{abs(share):.0%}" if math.isfinite(share) else ""
        yield Total(title=title, cells=len(values), before=show(before), after=show(after), change=change.replace("%", " %"))


@dataclass(frozen=True, kw_only=True)
class ChangedRow:
    """What moved alike in the cells of one row of the grid."""

    title: str
    """The title of the row."""
    opsets: str
    cell: Cell
    """The cell that moved most, whose values are shown."""
    words: str
    """``larger drift``, ``+1 Conv``."""
    mark: str = ""
    """``worse`` or ``better``; empty for what no measure shows."""
    before: str = ""
    after: str = ""


def changed_rows(comparison: RunComparison) -> list[ChangedRow]:
    """What moved in the cells that both runs have, row by row.

    Verdicts come first, and what got worse before what got better. What no measure shows comes last.
    """
    moved = {each.cell: each for each in comparison.moved}
    groups: dict[tuple[str, str, object], list[tuple[Cell, MeasureChange | None]]] = {}
    for line in grid(comparison.after.cells).rows:
        for cell in (result.cell for result in line.results if result is not None and result.cell in moved):
            for move in moved[cell].measures:
                verdicts = (move.before, move.after) if move.measure is Measure.VERDICT else ()
                groups.setdefault((line.title, move.words, verdicts), []).append((cell, move))
            for _, words in moved[cell].unmeasured:
                groups.setdefault((line.title, words, None), []).append((cell, None))

    def rank(alike: Iterable[tuple[Cell, MeasureChange | None]]) -> tuple[int, bool, float]:
        moves = [move for _, move in alike if move is not None]
        if not moves:
            return len(Measure), False, 0.0
        return list(Measure).index(moves[0].measure), not moves[0].is_worse, -max(each.factor for each in moves)

    rows = []
    for (title, words, _), alike in sorted(groups.items(), key=lambda group: rank(group[1])):
        opsets = format_opsets([cell.opset for cell, _ in alike])
        cell, most = max(alike, key=lambda each: each[1].factor if each[1] else 0.0)
        row = ChangedRow(title=title, opsets=opsets, cell=cell, words=words)
        if most is not None:
            row = dataclasses.replace(row, mark="worse" if most.is_worse else "better", before=most.before, after=most.after)
        rows.append(row)
    return rows
