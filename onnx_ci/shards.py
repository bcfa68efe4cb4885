"""Shards: the cells of a run in even parts, so that several machines can share them without talking to each other.

The parts depend on the set of cells and on the recorded seconds alone, never on the order in which recipes were found.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from onnx_ci.errors import ConfigurationError
from onnx_ci.records import Cell
from onnx_ci.report.json_file import read_reports

_SPEC = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One part of several."""

    index: int
    """Which one, counted from 1."""
    count: int
    """How many there are."""

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(spec: object) -> Shard:
    """Read ``2/5``, the second of five parts.

    Raises:
        ValueError: ``spec`` names no part; the message says what to write.
    """
    if isinstance(spec, Shard):
        return spec
    match = _SPEC.fullmatch(spec) if isinstance(spec, str) else None
    if match is None:
        raise ValueError(f"{spec!r} is no shard; write 2/5 for the second of five")
    index, count = int(match[1]), int(match[2])
    if not count:
        raise ValueError(f"{spec!r} is no shard: there must be at least one; write 1/1 for all cells")
    if not 1 <= index <= count:
        raise ValueError(f"there is no shard {index} of {count}; they count from 1/{count} to {count}/{count}")
    return Shard(index=index, count=count)


def read_seconds(path: Path) -> dict[str, float]:
    """How long each cell took in earlier runs, in seconds by the cell's id.

    Cells without times (skipped ones) are left out: how long they take where they do run is not known. Of several times of
    one cell the longest counts.

    Args:
        path: a JSON report of one run or of several, or a folder of such.

    Raises:
        ConfigurationError: there is no report of this version of onnx-ci. The message names the file and the remedy.
    """
    try:
        reports = read_reports([path])
    except ConfigurationError as error:
        raise ConfigurationError(f"durations: {error}, or leave durations out to count every cell the same") from None
    recorded: dict[str, float] = {}
    for _, report in reports:
        for result in report.cells:
            if result.timings:
                recorded[result.cell.id] = max(recorded.get(result.cell.id, 0.0), result.seconds)
    return recorded


def partition(cells: Iterable[Cell], count: int, seconds: Mapping[str, float]) -> tuple[tuple[Cell, ...], ...]:
    """Share ``cells`` out to ``count`` parts that take about as long as each other.

    The cells of one recipe on one device share their preparation, so they stay together unless they alone are more than a
    fair part. Each part keeps the order of ``cells``. Only where there are fewer cells than parts are there fewer parts.

    Args:
        seconds: how long cells take, by id. Others count as the mean of these; where none is known, all count the same.
    """
    order = {cell: place for place, cell in enumerate(cells)}
    weights = _weights(order, seconds)
    pieces = _pieces(weights, _fair_part(weights.values(), count))
    # The longest piece first, each to the part that has least so far; of equal pieces and parts, the first.
    pieces.sort(key=lambda piece: -sum(weights[cell] for cell in piece))
    parts: list[list[Cell]] = [[] for _ in range(min(count, len(pieces)))]
    loads = [(0, index) for index in range(len(parts))]
    for piece in pieces:
        load, index = loads[0]
        parts[index] += piece
        heapq.heapreplace(loads, (load + sum(weights[cell] for cell in piece), index))
    return tuple(tuple(sorted(part, key=order.__getitem__)) for part in parts)


def _weights(cells: Iterable[Cell], seconds: Mapping[str, float]) -> dict[Cell, int]:
    """Milliseconds, at least 1, in an order of the cells' own. Whole numbers add up to the same on every machine."""
    ordered = sorted(cells, key=lambda cell: (*_group(cell), cell.opset, cell.exporter))
    known = {cell: max(1, round(seconds[cell.id] * 1000)) for cell in ordered if cell.id in seconds}
    mean = round(sum(known.values()) / len(known)) if known else 1
    return {cell: known.get(cell, mean) for cell in ordered}


def _group(cell: Cell) -> tuple[str, str, str]:
    return cell.source, cell.recipe, cell.device


def _fair_part(weights: Iterable[int], count: int) -> Fraction:
    """What each part gets of an even split; a cell that is more than that has a part for itself, and the others share."""
    descending = sorted(weights, reverse=True)
    total, left = Fraction(sum(descending)), count
    for weight in descending:
        if left == 1 or weight * left < total:
            break
        total, left = total - weight, left - 1
    return total / left


def _pieces(weights: Mapping[Cell, int], fair_part: Fraction) -> list[list[Cell]]:
    """The cells group by group, with a cut wherever a group would become more than a fair part."""
    pieces: list[list[Cell]] = []
    group, load = None, 0
    for cell, weight in weights.items():
        if _group(cell) != group or load + weight > fair_part:
            pieces.append([])
            group, load = _group(cell), 0
        pieces[-1].append(cell)
        load += weight
    return pieces
