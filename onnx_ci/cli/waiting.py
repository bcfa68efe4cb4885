"""Results that wait to be shown, so that the cells of a recipe are one line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from onnx_ci.processes.limits import LONGEST_SILENCE
from onnx_ci.results.records import Cell, CellResult


class WaitingResults:
    """The results of a run that are not shown yet.

    Args:
        cells: all cells of the run, in order.
        clock: returns seconds.
    """

    def __init__(self, cells: Sequence[Cell], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cells = cells
        self._clock = clock
        self._shown_at = clock()
        self._done = 0
        self._waiting: list[CellResult] = []

    def add(self, result: CellResult, *, waits: bool) -> list[CellResult]:
        """Count the result of the next cell, and return the results to show now.

        Args:
            result: the result.
            waits: whether it is to be shown with others; otherwise it is shown already, or not at all.
        """
        self._done += 1
        if waits:
            self._waiting.append(result)
        is_last = self._done == len(self._cells) or _recipe(self._cells[self._done]) != _recipe(result.cell)
        return self.take() if is_last or self._clock() - self._shown_at > LONGEST_SILENCE else []

    def take(self) -> list[CellResult]:
        """Return the results that wait, and forget them."""
        self._shown_at = self._clock()
        results, self._waiting = self._waiting, []
        return results


def _recipe(cell: Cell) -> tuple[str, str]:
    return cell.source, cell.recipe
