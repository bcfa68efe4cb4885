"""Distributes cells to the workers of pytest-xdist: whole recipes, as long as that leaves no worker idle.

The cells of a recipe share its preparation, but workers share nothing. All cells on one GPU go to one worker.
"""

from __future__ import annotations

import math

from xdist.scheduler import LoadScopeScheduling

from onnx_ci.results.records import Cell

_PREPARATION = 3
"""How many cells take as long as a preparation, roughly. Nothing is known about the recipes here."""
_HARDLY_LONGER = 1.05
"""By which factor a run may become longer so that fewer recipes are prepared twice."""


class ByRecipe(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules the cells of a recipe and device together, and every other test by itself."""

    def schedule(self) -> None:
        """Decide into how many parts each recipe is split, once the tests are known, and schedule the tests."""
        if self.collection is None:
            self._scopes = scopes(next(iter(self.registered_collections.values())), workers=len(self.nodes))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes.get(nodeid, nodeid)


def scopes(ids: list[str], workers: int) -> dict[str, str]:
    """The scope of each cell: the name of the recipe, or part of a recipe, that it is scheduled with.

    Each worker gets whole recipes, one round after another. If the last round has fewer recipes than workers, its recipes may
    be split.
    """
    scope_by_id: dict[str, str] = {}
    recipes: dict[tuple[str, str, str], list[str]] = {}
    for id in ids:
        cell = Cell.from_id(id)
        if cell and cell.gpu:
            scope_by_id[id] = f"GPU {cell.gpu}"
        elif cell:
            recipes.setdefault((cell.source, cell.recipe, cell.device), []).append(id)
    last_round = len(recipes) - len(recipes) % workers
    parts_in_last_round = _parts_of_last(len(recipes), workers, max(map(len, recipes.values()), default=1))
    for number, (recipe, cells) in enumerate(recipes.items()):
        parts = parts_in_last_round if number >= last_round else 1
        for place, id in enumerate(cells):
            scope_by_id[id] = f"{'::'.join(recipe)} part {place * parts // len(cells)}"
    return scope_by_id


def _parts_of_last(recipes: int, workers: int, cells: int) -> int:
    """The fewest parts of each recipe of the last round, each of ``cells``, with which the run hardly takes longer."""
    rounds, last = divmod(recipes, workers)

    def time(parts: int) -> int:
        """How long the run takes, in units of a cell. Each part is prepared by itself."""
        whole, part = _PREPARATION + cells, _PREPARATION + math.ceil(cells / parts)
        return rounds * whole + math.ceil(last * parts / workers) * part

    shortest = min(map(time, range(1, cells + 1)))
    return next(parts for parts in range(1, cells + 1) if time(parts) <= _HARDLY_LONGER * shortest)
