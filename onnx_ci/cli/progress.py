"""A progress line on a terminal: how many cells are done, what is running, and about how long the rest will take."""

from __future__ import annotations

import shutil
import statistics
import time
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
        self._known: Mapping[str, float] = {}
        self._clock = clock
        self._began = clock()
        self._results: list[CellResult] = []
        self._shown = 0

    def begin(self, cells: Sequence[Cell], known: Mapping[str, float]) -> None:
        """Show the line for a run.

        Args:
            cells: all cells of the run, in order.
            known: how many seconds cells took in earlier runs, by id.
        """
        self._cells, self._known, self._began = cells, known, self._clock()
        self.show()

    def add(self, result: CellResult) -> None:
        """Count the result of the next cell, and clear the line so that the result can be printed."""
        self._results.append(result)
        self.clear()

    def show(self, doing: Sequence[str] = ()) -> None:
        """Write the line again.

        Args:
            doing: what is running, in words. Default: the next cell.
        """
        done = len(self._results)
        if not self.is_live or done == len(self._cells):
            return
        left = seconds_left(self._cells, self._results, self._known, self._clock() - self._began)
        line = _fit(
            f"[{done}/{len(self._cells)}] ",
            doing or [f"{self._cells[done].recipe}::{self._cells[done].label}"],
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


def seconds_left(
    cells: Sequence[Cell], results: Sequence[CellResult], known: Mapping[str, float], elapsed: float
) -> float | None:
    """About how long the cells without a result will take, in seconds; ``None`` if nothing is known.

    A cell is estimated by its time in an earlier run, or else by the median of its recipe and device, or the mean of all
    cells. The estimates are scaled by the elapsed time, which accounts for cells that run in parallel.

    Args:
        cells: all cells of the run, in order.
        results: the results of the first of them.
        known: how many seconds cells took in earlier runs, by id.
        elapsed: seconds since the run began.
    """
    ran = [result for result in results if result.timings and not result.cached]
    if not ran:
        return None
    own = {result.cell.id: result.seconds for result in ran} | dict(known)
    groups: dict[tuple[str, str], list[float]] = {}
    for result in ran:
        groups.setdefault((result.cell.recipe, result.cell.device), []).append(own[result.cell.id])
    # The first cell of a recipe includes the preparation; the median is not affected by it.
    usual = {group: statistics.median_low(seconds) for group, seconds in groups.items()}
    mean = statistics.fmean(own[result.cell.id] for result in ran)
    done = sum(own[result.cell.id] for result in ran)
    rest = sum(own.get(cell.id, usual.get((cell.recipe, cell.device), mean)) for cell in cells[len(results) :])
    return elapsed * rest / done if done else None


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
