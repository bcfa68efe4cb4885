"""Shards: the cells of a run in balanced parts, so that several machines can share them without communicating.

The parts depend only on the set of cells and on the recorded durations, not on the order in which recipes are found. A part
pays for the preparation of each recipe of which it has cells. So a recipe is split only if it exceeds a fair part, or if the
parts would otherwise differ by more than a tenth.
"""

from __future__ import annotations

import bisect
import heapq
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError
from onnx_ci.results.files import read_reports
from onnx_ci.results.records import Cell, CellResult
from onnx_ci.results.stages import SHARED_STAGES

_UNEVEN = 1.1
"""A part above this multiple of a fair part is too large. It gives cells away, even if a recipe is then prepared twice."""
_Key = TypeVar("_Key")
_Group = tuple[str, str, str]
"""The cells of one recipe on one device: its file, its name and the device."""


@dataclass(frozen=True, kw_only=True)
class Durations:
    """How long cells took in earlier runs, in seconds by the cell's id."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    preparation: Mapping[str, float] = field(default_factory=dict)
    """The seconds of these that the cell shares with the other cells of its recipe; 0 for all but the first cell."""


def read_durations(path: Path) -> Durations:
    """How long each cell took, from a JSON report or a folder of reports. Raises ``ConfigurationError``.

    Cells without times, such as skipped ones, are left out. Of several times of a cell, the longest counts.
    """
    try:
        reports = read_reports([path], with_journals=False)  # it may be this run's own
    except ConfigurationError as error:
        raise ConfigurationError(f"durations: {error}, or leave durations out to count every cell the same") from None
    longest: dict[str, CellResult] = {}
    for _, report in reports:
        for result in report.cells:
            id = result.cell.id
            if result.timings and (id not in longest or result.seconds > longest[id].seconds):
                longest[id] = result
    return Durations(
        seconds={id: result.seconds for id, result in longest.items()},
        preparation={
            id: sum(seconds for stage, seconds in result.timings.items() if stage in SHARED_STAGES)
            for id, result in longest.items()
            if result.cell.gpu is None  # otherwise its process has a preparation of its own
        },
    )


def recorded_durations(settings: Settings) -> Durations:
    """How long cells took in earlier runs. Raises ``ConfigurationError`` if shards depend on them and they cannot be read."""
    if settings.durations is None:
        return Durations()
    try:
        return read_durations(settings.durations)
    except ConfigurationError:
        if settings.shard is not None:
            raise
        return Durations()


def partition(cells: Iterable[Cell], count: int, durations: Durations) -> tuple[tuple[Cell, ...], ...]:
    """Split ``cells`` into ``count`` parts that take about equally long.

    The cells of one recipe on one device share their preparation, so they stay together unless they exceed a fair part or,
    where durations are known, the parts would be uneven otherwise. Each part keeps the order of ``cells``. There are fewer
    parts only if there are fewer cells than parts.
    A cell that is not in ``durations`` counts as the mean of the cells of its recipe, or else of its opset, or else of all.
    """
    order = {cell: place for place, cell in enumerate(cells)}
    costs = _Costs.of(order, durations)
    fair_part = costs.fair_part(count)
    pieces = costs.pieces(fair_part)
    while len(pieces) < min(count, len(order)):  # no part stays empty, even if a single cell is more than a fair part
        largest = max(pieces, key=lambda piece: len(piece.cells))
        pieces.append(largest.split())
    # Longest piece first, each to the part with the least load so far; ties go to the first.
    pieces.sort(key=lambda piece: -piece.load)
    parts = [_Part(costs) for _ in range(min(count, len(pieces)))]
    loads = [(0, index) for index in range(len(parts))]
    for piece in pieces:
        _, index = loads[0]
        for group, members in piece.groups.items():
            parts[index].add(group, members)
        heapq.heapreplace(loads, (parts[index].load, index))
    if any(cell.id in durations.seconds for cell in order):
        _even_out(parts, round(fair_part * _UNEVEN))
    return tuple(tuple(sorted(part.cells, key=order.__getitem__)) for part in parts)


def _even_out(parts: Sequence[_Part], limit: int) -> None:
    """Let the heaviest part give cells to another one, as long as it exceeds ``limit`` and that helps."""
    while parts:
        heaviest = max(parts, key=lambda part: part.load)
        if heaviest.load <= limit:
            return
        moves = (move for index, part in enumerate(parts) if part is not heaviest for move in _moves(heaviest, part, index))
        best = min(moves, default=None)
        if best is None or best.load >= heaviest.load:
            return
        group = list(heaviest.groups)[best.group]
        parts[best.receiver].add(group, heaviest.take(group, best.number))


class _Move(NamedTuple):
    """Cells that one part can give to another one. The smallest move is the best."""

    load: int
    """That of the heavier of the two parts afterwards."""
    receiver: int
    """The index of the part that gets the cells."""
    group: int
    """The index of their group in the part that gives them."""
    number: int
    """How many cells move: the last ones of the group."""


def _moves(giver: _Part, receiver: _Part, index: int) -> Iterator[_Move]:
    """All moves from one part to another, whose index is given."""
    for place, (group, cells) in enumerate(giver.groups.items()):
        preparation = giver.costs.preparation[group]
        moved = 0
        for number, cell in enumerate(reversed(cells), start=1):
            moved += giver.costs.of_cell[cell]
            left = giver.load - moved - (preparation if number == len(cells) else 0)
            added = moved + (0 if group in receiver.groups else preparation)
            yield _Move(load=max(left, receiver.load + added), receiver=index, group=place, number=number)


def _group(cell: Cell) -> _Group:
    return cell.source, cell.recipe, cell.device


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """What cells cost, in milliseconds: integers add up to the same on every machine."""

    of_cell: Mapping[Cell, int]
    """By cell, at least 1. The cells are sorted by their group, opset, exporter and pass."""
    preparation: Mapping[_Group, int]
    """By group. A part pays for it once if it has any cell of the group."""

    @classmethod
    def of(cls, cells: Iterable[Cell], durations: Durations) -> _Costs:
        """The costs of cells: as recorded, or else about those of similar cells."""
        ordered = sorted(cells, key=lambda cell: (*_group(cell), cell.opset, cell.exporter, cell.graph_pass or ""))
        timed = [cell for cell in ordered if cell.id in durations.seconds]
        shared = {group: _shared(durations, members) for group, members in cells_by(_group, timed).items()}
        of_cell = {
            cell: max(1, round(1000 * (durations.seconds[cell.id] - shared[_group(cell)].get(cell, 0.0)))) for cell in timed
        }
        preparation = {group: round(1000 * max(seconds.values(), default=0.0)) for group, seconds in shared.items()}
        mean = _means(of_cell)
        mean_preparation = round(statistics.fmean(preparation.values())) if preparation else 0
        return cls(
            of_cell={cell: of_cell[cell] if cell in of_cell else mean(cell) for cell in ordered},
            preparation={_group(cell): preparation.get(_group(cell), mean_preparation) for cell in ordered},
        )

    def fair_part(self, count: int) -> int:
        """The least load with which ``count`` parts can hold the cells, if the cells of a group can be shared out evenly."""
        costs = {group: [self.of_cell[cell] for cell in cells] for group, cells in cells_by(_group, self.of_cell).items()}
        groups = [(sum(of_cells), self.preparation[group]) for group, of_cells in costs.items()]

        def is_enough(load: int) -> bool:
            """Whether parts of this load can hold the cells: a group pays for its preparation in each part that it needs."""
            return sum(cost - preparation * (-cost // (load - preparation)) for cost, preparation in groups) <= count * load

        least = max((max(of_cells) + self.preparation[group] for group, of_cells in costs.items()), default=0)
        return bisect.bisect_left(range(sum(map(sum, groups))), True, lo=least, key=is_enough)

    def pieces(self, limit: int) -> list[_Part]:
        """The cells group by group. A group that exceeds ``limit`` is split."""
        pieces: list[_Part] = []
        for cell, cost in self.of_cell.items():
            group = _group(cell)
            if not pieces or group not in pieces[-1].groups or pieces[-1].load + cost > limit:
                pieces.append(_Part(self))
            pieces[-1].add(group, [cell])
        return pieces


class _Part:
    """Cells for one machine, by recipe and device, and what they cost together."""

    def __init__(self, costs: _Costs) -> None:
        self.costs = costs
        self.groups: dict[_Group, list[Cell]] = {}
        self.load = 0

    @property
    def cells(self) -> list[Cell]:
        """All of its cells."""
        return [cell for cells in self.groups.values() for cell in cells]

    def add(self, group: _Group, cells: Sequence[Cell]) -> None:
        """Add cells of a group."""
        if group not in self.groups:
            self.groups[group] = []
            self.load += self.costs.preparation[group]
        self.groups[group] += cells
        self.load += sum(self.costs.of_cell[cell] for cell in cells)

    def split(self) -> _Part:
        """Remove half of the cells of the only group, and return them as another part."""
        (group,) = self.groups
        part = _Part(self.costs)
        part.add(group, self.take(group, len(self.groups[group]) // 2))
        return part

    def take(self, group: _Group, number: int) -> list[Cell]:
        """Remove the last cells of a group, and return them."""
        cells = self.groups[group]
        taken = cells[-number:]
        del cells[-number:]
        self.load -= sum(self.costs.of_cell[cell] for cell in taken)
        if not cells:
            del self.groups[group]
            self.load -= self.costs.preparation[group]
        return taken


def _shared(durations: Durations, cells: Sequence[Cell]) -> dict[Cell, float]:
    """The seconds of a group's cells that were spent on their preparation; none if each of several cells had its own."""
    seconds = {cell: durations.preparation.get(cell.id, 0.0) for cell in cells}
    return {} if len(cells) > 1 and all(seconds.values()) else seconds


def cells_by(key: Callable[[Cell], _Key], cells: Iterable[Cell]) -> dict[_Key, list[Cell]]:
    """The cells in groups with the same key, in order."""
    groups: dict[_Key, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups


def _means(costs: Mapping[Cell, int]) -> Callable[[Cell], int]:
    """A function from a cell to the mean cost of those cells with ``costs`` that are most like it; 1 without any."""

    def mean_of(cells: Iterable[Cell]) -> int:
        return max(1, round(statistics.fmean(costs[cell] for cell in cells)))

    of_group = {group: mean_of(cells) for group, cells in cells_by(_group, costs).items()}
    of_opset = {opset: mean_of(cells) for opset, cells in cells_by(lambda cell: cell.opset, costs).items()}
    of_all = mean_of(costs) if costs else 1
    return lambda cell: of_group.get(_group(cell), of_opset.get(cell.opset, of_all))
