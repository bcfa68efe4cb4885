"""Distributes cells to pytest-xdist workers: whole recipes, as long as that leaves no workers idle.

The cells of a recipe share its preparation, and workers share nothing. All cells on one GPU go to one worker.
"""

from __future__ import annotations

import math

from xdist.scheduler import LoadScopeScheduling

from onnx_ci.results.records import Cell

_PREPARATION = 3
"""How many times as long as a cell a preparation takes, roughly; nothing is known about the recipes here."""
_HARDLY_LONGER = 1.05
"""How many times as long a run may take, so that fewer recipes are prepared twice."""


class ByRecipe(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules the cells of a recipe and device together, and every other test by itself."""

    def schedule(self) -> None:
        """Once the tests are known, decide into how many parts each recipe is split, and schedule the tests."""
        if self.collection is None:
            self._scopes = scopes(next(iter(self.registered_collections.values())), workers=len(self.nodes))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes.get(nodeid, nodeid)


def scopes(ids: list[str], workers: int) -> dict[str, str]:
    """The scope of each cell: the name of the part of a recipe that it is scheduled with.

    The first recipes stay whole; those left for the last round, in which there are fewer recipes than workers, may be split.

    Args:
        ids: the ids of all tests.
        workers: how many workers there are.
    """
    groups: dict[tuple[str, str, str], list[str]] = {}
    on_gpu: dict[str, str] = {}
    for id in ids:
        cell = Cell.from_id(id)
        if cell and cell.gpu:
            on_gpu[id] = f"GPU {cell.gpu}"
        elif cell:
            groups.setdefault((cell.source, cell.recipe, cell.device), []).append(id)
    whole = len(groups) - len(groups) % workers
    parts = _parts_of_last(len(groups), workers, max(map(len, groups.values()), default=1))
    return on_gpu | {
        id: f"{'::'.join(group)} part {place * (parts if number >= whole else 1) // len(cells)}"
        for number, (group, cells) in enumerate(groups.items())
        for place, id in enumerate(cells)
    }


def _parts_of_last(recipes: int, workers: int, cells: int) -> int:
    """Into how many parts to split the recipes of the last round: as few as possible, if the run hardly takes longer with them.

    Args:
        recipes: how many recipes there are.
        workers: how many workers there are.
        cells: how many cells a recipe has, and thus parts at most.
    """
    rounds, last = divmod(recipes, workers)

    def time(parts: int) -> int:
        """How many times as long as a cell the run takes; each part is prepared by itself."""
        whole, part = _PREPARATION + cells, _PREPARATION + math.ceil(cells / parts)
        return rounds * whole + math.ceil(last * parts / workers) * part

    least = min(map(time, range(1, cells + 1)))
    return next(parts for parts in range(1, cells + 1) if time(parts) <= _HARDLY_LONGER * least)
