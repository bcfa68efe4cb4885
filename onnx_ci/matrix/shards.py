"""Shards: the cells of a run in balanced parts, so that several machines can share them without communicating.

The parts depend only on the set of cells and on the recorded seconds, not on the order in which recipes are found.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError
from onnx_ci.results.files import read_reports
from onnx_ci.results.records import Cell


def read_seconds(path: Path) -> dict[str, float]:
    """How long each cell took in earlier runs, in seconds by the cell's id.

    Cells without times (skipped ones) are left out, because it is unknown how long they take. Of several times of one cell,
    the longest counts.

    Args:
        path: a JSON report of a run, a merged one, or a folder of reports.

    Raises:
        ConfigurationError: there is no report that this version of onnx-ci can read. The message names the file and the remedy.
    """
    try:
        reports = read_reports([path], with_journals=False)  # it may be this run's own
    except ConfigurationError as error:
        raise ConfigurationError(f"durations: {error}, or leave durations out to count every cell the same") from None
    recorded: dict[str, float] = {}
    for _, report in reports:
        for result in report.cells:
            if result.timings:
                recorded[result.cell.id] = max(recorded.get(result.cell.id, 0.0), result.seconds)
    return recorded


def recorded_seconds(settings: Settings) -> Mapping[str, float]:
    """How long cells took in earlier runs, from the settings' durations, in seconds by the cell's id.

    Raises:
        ConfigurationError: the durations cannot be used and the settings specify a shard; otherwise they are ignored.
    """
    if settings.durations is None:
        return {}
    try:
        return read_seconds(settings.durations)
    except ConfigurationError:
        if settings.shard is not None:
            raise
        return {}


def partition(cells: Iterable[Cell], count: int, seconds: Mapping[str, float]) -> tuple[tuple[Cell, ...], ...]:
    """Split ``cells`` into ``count`` parts that take about equally long.

    The cells of one recipe on one device share their preparation, so they stay together unless they exceed a fair part.
    Each part keeps the order of ``cells``. There are fewer parts only if there are fewer cells than parts.

    Args:
        seconds: how long cells take, by id. Other cells count as the mean of these; if none is known, all count the same.
    """
    order = {cell: place for place, cell in enumerate(cells)}
    weights = _weights(order, seconds)
    pieces = _pieces(weights, _fair_part(weights.values(), count))
    # Longest piece first, each to the part with the least load so far; ties go to the first.
    pieces.sort(key=lambda piece: -sum(weights[cell] for cell in piece))
    parts: list[list[Cell]] = [[] for _ in range(min(count, len(pieces)))]
    loads = [(0, index) for index in range(len(parts))]
    for piece in pieces:
        load, index = loads[0]
        parts[index] += piece
        heapq.heapreplace(loads, (load + sum(weights[cell] for cell in piece), index))
    return tuple(tuple(sorted(part, key=order.__getitem__)) for part in parts)


def _weights(cells: Iterable[Cell], seconds: Mapping[str, float]) -> dict[Cell, int]:
    """Milliseconds, at least 1, sorted by the cells themselves. Integers add up to the same on every machine."""
    ordered = sorted(cells, key=lambda cell: (*_group(cell), cell.opset, cell.exporter, cell.stage or ""))
    known = {cell: max(1, round(seconds[cell.id] * 1000)) for cell in ordered if cell.id in seconds}
    mean = round(sum(known.values()) / len(known)) if known else 1
    return {cell: known.get(cell, mean) for cell in ordered}


def _group(cell: Cell) -> tuple[str, str, str]:
    return cell.source, cell.recipe, cell.device


def _fair_part(weights: Iterable[int], count: int) -> Fraction:
    """The load of each part in an even split. A cell that exceeds it gets its own part, and the others share the rest."""
    descending = sorted(weights, reverse=True)
    total, left = Fraction(sum(descending)), count
    for weight in descending:
        if left == 1 or weight * left < total:
            break
        total, left = total - weight, left - 1
    return total / left


def _pieces(weights: Mapping[Cell, int], fair_part: Fraction) -> list[list[Cell]]:
    """The cells group by group, where a group that exceeds a fair part is split."""
    pieces: list[list[Cell]] = []
    group, load = None, 0
    for cell, weight in weights.items():
        if _group(cell) != group or load + weight > fair_part:
            pieces.append([])
            group, load = _group(cell), 0
        pieces[-1].append(cell)
        load += weight
    return pieces
