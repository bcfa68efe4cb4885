"""One live line on a terminal: how many cells are done, what is being done, and about how long the rest will take."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import click

from onnx_ci.records import Cell, CellResult


class Progress:
    """The line. It stands only while somebody waits: whoever prints something else clears it first.

    Args:
        cells: all that are to run, in order.
        known: seconds that cells took in earlier runs, by id.
        is_live: whether there is a terminal to show it; otherwise nothing is ever written.
        clock: gives seconds.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        known: Mapping[str, float],
        *,
        is_live: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cells, self._known = cells, known
        self._is_live, self._clock = is_live, clock
        self._began = clock()
        self._results: list[CellResult] = []
        self._shown = 0

    def add(self, result: CellResult) -> None:
        """Count the result of the next cell, and make room for what there is to say of it."""
        self._results.append(result)
        self.clear()

    def show(self, doing: Sequence[str] = ()) -> None:
        """Write the line anew.

        Args:
            doing: what is being done, in words; the next cell unless told.
        """
        done = len(self._results)
        if not self._is_live or done == len(self._cells):
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
        """Take the line away."""
        if self._shown:
            click.echo("\r" + " " * self._shown + "\r", nl=False)
            self._shown = 0


def seconds_left(
    cells: Sequence[Cell], results: Sequence[CellResult], known: Mapping[str, float], elapsed: float
) -> float | None:
    """About how long the cells will take that have no result yet; ``None`` as long as nothing tells.

    A cell weighs what it took in an earlier run; else what it took in this one, or what the cells of its recipe and device
    usually took, or all cells on average. Cells that run at once are taken into account: what weighs as much as what is done
    takes as long again.

    Args:
        cells: all that are to run, in order.
        results: those of the first of them.
        known: seconds that cells took in earlier runs, by id.
        elapsed: seconds since the first one began.
    """
    ran = [result for result in results if result.timings and not result.cached]
    if not ran:
        return None
    own = {result.cell.id: result.seconds for result in ran} | dict(known)
    groups: dict[tuple[str, str], list[float]] = {}
    for result in ran:
        groups.setdefault((result.cell.recipe, result.cell.device), []).append(own[result.cell.id])
    # The first cell of a recipe took the preparation, too: the median forgets it.
    usual = {group: statistics.median_low(seconds) for group, seconds in groups.items()}
    mean = statistics.fmean(own[result.cell.id] for result in ran)
    done = sum(own[result.cell.id] for result in ran)
    rest = sum(own.get(cell.id, usual.get((cell.recipe, cell.device), mean)) for cell in cells[len(results) :])
    return elapsed * rest / done if done else None


def about(seconds: float) -> str:
    """A time in as few words as it is certain."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 95:
        return f"about {10 * round(seconds / 10)} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"


def _fit(head: str, doing: Sequence[str], tail: str, width: int) -> str:
    """A line of at most ``width`` characters that names as much of ``doing`` as there is room for."""
    room = max(0, width - len(head) - len(tail))
    for count in range(len(doing), 0, -1):
        rest = len(doing) - count
        named = ", ".join(doing[:count]) + (f" and {rest} more" if rest else "")
        if len(named) <= room:
            break
    return (head + named[:room] + tail)[:width]
