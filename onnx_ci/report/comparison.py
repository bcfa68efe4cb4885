"""Two reports compared cell by cell: what a pull request changes against the branch that it is for.

What counts as a change is what counts as one against a baseline, with the same limits.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from onnx_ci.baseline.changes import Change, changes
from onnx_ci.baseline.entry import entry_of
from onnx_ci.config.options import Role, options_with
from onnx_ci.config.values import BASELINE_LIMITS
from onnx_ci.results.records import Cell, CellResult
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict, broken_rules

_SELECTING = tuple(option.name for option in options_with(Role.MATRIX, Role.SELECTION, Role.DISCOVERY))
"""The settings for which cells run."""
_DECIDING = tuple(option.name for option in options_with(Role.MATRIX, Role.SELECTION, Role.DISCOVERY, Role.VERDICT))
"""Those, and the settings for how cells are judged."""


class Movement(enum.Enum):
    """What became of a cell, the most important first."""

    BROKE = "broke"
    """It fails, and did not before."""
    FAILS_DIFFERENTLY = "fails differently"
    """It failed before, too, but broke other rules."""
    GONE = "gone"
    """It is not judged anymore, although both runs should have the same cells."""
    CHANGED = "changed"
    """It does not fail, but its status, its warnings, its file or its values are not the same."""
    FIXED = "fixed"
    """It failed before, and does not anymore."""
    NEW = "new"
    """There was no such cell, although both runs should have the same ones."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A cell that is not as it was."""

    cell: Cell
    movement: Movement
    before: CellResult | None
    after: CellResult | None
    changes: tuple[Change, ...] = ()
    """What changed in its file and its values."""


@dataclass(frozen=True, kw_only=True)
class ChangedSetting:
    """A setting for what is checked that is not as it was."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is different in the report of the head."""

    head: RunReport
    base: RunReport | None
    moved: tuple[Moved, ...] = ()
    """The cells that are not as they were, the most important first; without a base, those that fail."""

    @property
    def settings(self) -> tuple[ChangedSetting, ...]:
        """The settings for what is checked that are different; without a base, none."""
        if self.base is None:
            return ()
        values = zip(_DECIDING, _values(self.base, _DECIDING), _values(self.head, _DECIDING), strict=True)
        return tuple(ChangedSetting(name=name, before=before, after=after) for name, before, after in values if before != after)

    @property
    def is_news(self) -> bool:
        """Whether anything is different; without a base, whether anything is wrong."""
        if self.base is None:
            return self.head.verdict is not RunVerdict.PASSED
        problems = set(self.head.problems) != set(self.base.problems)
        verdicts = self.head.verdict is not self.base.verdict
        return bool(self.moved or problems or self.settings or self.head.not_run or verdicts)

    @property
    def as_before(self) -> int:
        """How many cells fail as they did on the base."""
        news = {each.cell for each in self.moved}
        return sum(result.status.is_bad and result.cell not in news for result in self.head.cells)

    def results(self, *movements: Movement) -> list[CellResult]:
        """The results in the head's report of the cells that moved in one of these ways."""
        return [each.after for each in self.moved if each.movement in movements and each.after is not None]


def compare(head: RunReport, base: RunReport | None) -> Comparison:
    """What is different in ``head``.

    Args:
        head: the report of the pull request.
        base: that of the branch that it is for; ``None`` if there is none.
    """
    before = {result.cell: result for result in base.cells} if base is not None else {}
    is_same_selection = base is not None and _values(head, _SELECTING) == _values(base, _SELECTING)
    found = [_moved(before.get(result.cell), result, head, base) for result in head.cells]
    moved = [each for each in found if each is not None and (each.movement is not Movement.NEW or is_same_selection)]
    if is_same_selection and not head.problems and not head.not_run:  # otherwise it is known why cells are missing
        now = {result.cell for result in head.cells}
        gone = (result for cell, result in before.items() if cell not in now)
        moved += [Moved(cell=result.cell, movement=Movement.GONE, before=result, after=None) for result in gone]
    order = list(Movement)
    return Comparison(head=head, base=base, moved=tuple(sorted(moved, key=lambda each: order.index(each.movement))))


def _values(report: RunReport, names: Iterable[str]) -> list[str | None]:
    """The values of settings; ``None`` for those that are not set."""
    return [each.value if (each := report.settings.get(name)) else None for name in names]


def _moved(before: CellResult | None, after: CellResult, head: RunReport, base: RunReport | None) -> Moved | None:
    changed = [] if before is None else _changes(before, after, head, base)
    movement: Movement | None = None
    if after.status.is_bad:
        if before is None or not before.status.is_bad:
            movement = Movement.BROKE
        elif broken_rules(before.findings) != broken_rules(after.findings):
            movement = Movement.FAILS_DIFFERENTLY
    elif before is None:
        movement = Movement.NEW if base is not None else None
    elif before.status.is_bad:
        movement = Movement.FIXED
    else:
        warned = {each.rule for each in before.warnings} != {each.rule for each in after.warnings}
        movement = Movement.CHANGED if changed or warned or before.status is not after.status else None
    if movement is None:
        return None
    return Moved(cell=after.cell, movement=movement, before=before, after=after, changes=tuple(changed))


def _changes(before: CellResult, after: CellResult, head: RunReport, base: RunReport | None) -> list[Change]:
    if before.facts is None or after.facts is None or base is None:
        return []
    old = entry_of(before, before.facts, base.environment)
    new = entry_of(after, after.facts, head.environment)
    return changes(old, new, BASELINE_LIMITS)
