"""A progress line on a terminal: how many cells are done, what is running, and about how long the rest will take."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import click

from onnx_ci.results.records import Cell, CellResult


class Progress:
    """The progress line. Before anything else is printed, it must be cleared.

    Args:
        is_live: whether there is a terminal; otherwise nothing is written.
        clock: returns seconds.
    """

    def __init__(self, *, is_live: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_live = is_live
        self._cells: Sequence[Cell] = ()
        self._clock = clock
        self._began = clock()
        self._done = 0
        self._time_left = TimeLeft((), {})
        self._shown = 0

    def begin(self, cells: Sequence[Cell], known: Mapping[str, float]) -> None:
        """Show the line for a run.

        Args:
            cells: all cells of the run, in order.
            known: how many seconds cells took in earlier runs, by id.
        """
        self._cells, self._began = cells, self._clock()
        self._time_left = TimeLeft(cells, known)
        self.show()

    def add(self, result: CellResult) -> None:
        """Count the result of the next cell, and clear the line so that the result can be printed."""
        self._done += 1
        self._time_left.add(result)
        self.clear()

    def show(self, doing: Sequence[str] = ()) -> None:
        """Write the line again.

        Args:
            doing: what is running, in words. Default: the next cell.
        """
        if not self.is_live or self._done == len(self._cells):
            return
        left = self._time_left.seconds(self._clock() - self._began)
        following = self._cells[self._done]
        line = _fit(
            f"[{self._done}/{len(self._cells)}] ",
            doing or [f"{following.recipe}::{following.label}"],
            "" if left is None else f" ({about(left)} left)",
            shutil.get_terminal_size().columns - 1,
        )
        click.echo("\r" + line.ljust(self._shown), nl=False)
        self._shown = len(line)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            click.echo("\r" + " " * self._shown + "\r", nl=False)
            self._shown = 0


class TimeLeft:
    """About how long the cells without a result will take.

    A cell is estimated by its time in an earlier run, or else by the median of its recipe and device, or the mean of all
    cells. The estimates are scaled by the elapsed time, which accounts for cells that run in parallel.

    Args:
        cells: all cells of the run.
        known: how many seconds cells took in earlier runs, by id.
    """

    def __init__(self, cells: Sequence[Cell], known: Mapping[str, float]) -> None:
        self._known = known
        self._known_left = math.fsum(known[cell.id] for cell in cells if cell.id in known)
        self._unknown_left = Counter(_recipe(cell) for cell in cells if cell.id not in known)
        """How many cells of each recipe and device have neither a result nor a known time."""
        self._unknown = self._unknown_left.total()
        self._of_begun: dict[tuple[str, str], list[float]] = {}
        """The times of the cells that ran, of the recipes with such cells left."""
        self._ran, self._done = 0, 0.0

    def add(self, result: CellResult) -> None:
        """Count the result of a cell."""
        recipe, known = _recipe(result.cell), self._known.get(result.cell.id)
        if known is None:
            self._unknown -= 1
            self._unknown_left[recipe] -= 1
        else:
            self._known_left -= known
        if result.timings and not result.cached:
            seconds = result.seconds if known is None else known
            self._ran, self._done = self._ran + 1, self._done + seconds
            self._of_begun.setdefault(recipe, []).append(seconds)
        if not self._unknown_left[recipe]:
            self._of_begun.pop(recipe, None)

    def seconds(self, elapsed: float) -> float | None:
        """The seconds that are left, ``elapsed`` seconds after the run began; ``None`` if nothing is known."""
        if not self._done:
            return None
        # The first cell of a recipe includes the preparation; the median is not affected by it.
        usual = {recipe: statistics.median_low(seconds) for recipe, seconds in self._of_begun.items()}
        of_begun = sum(self._unknown_left[recipe] * seconds for recipe, seconds in usual.items())
        others = self._unknown - sum(self._unknown_left[recipe] for recipe in usual)
        return elapsed * (max(0.0, self._known_left) + of_begun + others * self._done / self._ran) / self._done


def _recipe(cell: Cell) -> tuple[str, str]:
    return cell.recipe, cell.device


def about(seconds: float) -> str:
    """A time, rounded to the precision of an estimate."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 95:
        return f"about {10 * round(seconds / 10)} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"


def _fit(head: str, doing: Sequence[str], tail: str, width: int) -> str:
    """A line of at most ``width`` characters that names as much of ``doing`` as fits."""
    room = max(0, width - len(head) - len(tail))
    for count in range(len(doing), 0, -1):
        rest = len(doing) - count
        named = ", ".join(doing[:count]) + (f" and {rest} more" if rest else "")
        if len(named) <= room:
            break
    return (head + named[:room] + tail)[:width]
