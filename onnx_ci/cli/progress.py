"""How many cells are done, what is running, and about how long the rest will take: on a terminal, in one line that changes."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import click

from onnx_ci.results.records import Cell, CellResult

_LONGEST_SILENCE = 60.0
"""Seconds. Without a terminal, what is running is said this often while no cell ends."""


class Progress:
    """The progress line of a run's cells, which is shown at once, and must be cleared before anything else is printed.

    Without a terminal, a line is written once in a while. ``durations`` are the seconds of cells in earlier runs, by id.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        durations: Mapping[str, float],
        *,
        is_live: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_live = is_live
        self._cells = cells
        self._clock = clock
        self._began = self._said_at = clock()
        self._done = 0
        self._time_left = TimeLeft(cells, durations)
        self._width = 0
        """How many characters of the line are on the screen."""
        self.show()

    @property
    def is_done(self) -> bool:
        """Whether all cells have a result."""
        return self._done == len(self._cells)

    @property
    def place(self) -> str:
        """``"[2/9] "``: how many cells are done; empty before the first one."""
        return f"[{self._done}/{len(self._cells)}] " if self._done else ""

    def add(self, result: CellResult) -> None:
        """Count the result of the next cell, and clear the line so that the result can be printed."""
        self._done += 1
        self._said_at = self._clock()
        self._time_left.add(result)
        self.clear()

    def show(self, doing: Sequence[str] = ()) -> None:
        """Write the line again, with what is running, in words: by default, the next cell."""
        if self.is_done or not (self.is_live or self._clock() - self._said_at > _LONGEST_SILENCE):
            return
        self._said_at = self._clock()
        seconds = self._time_left.seconds(self._clock() - self._began)
        following = self._cells[self._done]
        line = _fit(
            f"[{self._done}/{len(self._cells)}] ",
            doing or [f"{following.recipe}::{following.label}"],
            "" if seconds is None else f" ({about(seconds)} left)",
            shutil.get_terminal_size().columns - 1,
        )
        if not self.is_live:
            click.echo(line)
            return
        click.echo("\r" + line.ljust(self._width), nl=False)
        self._width = len(line)

    def clear(self) -> None:
        """Remove the line."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False)
            self._width = 0


class TimeLeft:
    """About how long the cells without a result will take.

    Each cell counts as much as it took in an earlier run. A new cell counts as much as the median of the others. The elapsed
    time says what that means in seconds, because cells run in parallel.
    """

    def __init__(self, cells: Sequence[Cell], durations: Mapping[str, float]) -> None:
        usual = statistics.median_low(durations.values()) if durations else 1.0
        self._weights = {cell.id: durations.get(cell.id, usual) for cell in cells}
        self._left = math.fsum(self._weights.values())
        self._ran = 0.0

    def add(self, result: CellResult) -> None:
        """Count the result of a cell."""
        weight = self._weights[result.cell.id]
        self._left -= weight
        if result.timings and not result.cached:
            self._ran += weight

    def seconds(self, elapsed: float) -> float | None:
        """The seconds that are left, ``elapsed`` seconds after the run began; ``None`` before any cell has run."""
        return elapsed * max(0.0, self._left) / self._ran if self._ran else None


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
