"""Distributes cells to pytest-xdist workers: whole recipes, if there are enough of them for all workers.

The cells of a recipe share its preparation, and workers share nothing. All cells on one GPU go to one worker.
"""

from __future__ import annotations

import math

from xdist.scheduler import LoadScopeScheduling

from onnx_ci.results.records import Cell


class ByRecipe(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules the cells of a recipe and device together, and every other test by itself."""

    def schedule(self) -> None:
        """Once the tests are known, decide into how many parts each recipe is split, and schedule the tests."""
        if self.collection is None:
            self._scopes = _scopes(next(iter(self.registered_collections.values())), workers=len(self.nodes))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes.get(nodeid, nodeid)


def _scopes(ids: list[str], workers: int) -> dict[str, str]:
    """The scope of each cell: the name of the part that it is scheduled with."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    on_gpu: dict[str, str] = {}
    for id in ids:
        cell = Cell.from_id(id)
        if cell and cell.gpu:
            on_gpu[id] = f"GPU {cell.gpu}"
        elif cell:
            groups.setdefault((cell.source, cell.recipe, cell.device), []).append(id)
    parts = math.ceil(workers / len(groups)) if groups else 1
    return on_gpu | {
        id: f"{'::'.join(group)} part {place * parts // len(cells)}"
        for group, cells in groups.items()
        for place, id in enumerate(cells)
    }
