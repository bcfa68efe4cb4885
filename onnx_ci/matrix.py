"""From recipes and settings to the ordered cells of a run, each exclusion with its reason."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from onnx_ci.config import Settings
from onnx_ci.discovery import Found
from onnx_ci.opsets import DEFAULT_OPSETS, OPEN_END, default_exporter, format_opsets, sample_opsets
from onnx_ci.packages import newest_opset
from onnx_ci.recipe import Recipe
from onnx_ci.records import Cell, Exclusion
from onnx_ci.shards import Shard, partition, read_seconds

T = TypeVar("T")

DEFAULT_RUNTIMES = ("onnxruntime",)


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell and the recipe that it tries."""

    cell: Cell
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The cells of a run, in order, and what the recipes ruled out."""

    cells: tuple[PlannedCell, ...]
    exclusions: tuple[Exclusion, ...]


_ON_REQUEST = "unless it is asked for by file, --select or --tags"


def plan(found: Iterable[Found], settings: Settings) -> Matrix:
    """Every cell that the recipes and the settings both allow: recipe by recipe, then device, exporter, opset."""
    cells: list[PlannedCell] = []
    exclusions: list[Exclusion] = []
    for each in found:
        recipe = each.recipe
        if settings.tags is not None and not set(settings.tags) & set(recipe.tags):
            continue
        is_asked_for = not recipe.on_request or each.is_named or settings.tags is not None
        if not is_asked_for and settings.select is None:
            exclusions.append(Exclusion(recipe=recipe.name, reason=f"every opset, {_ON_REQUEST}: {recipe.on_request}"))
            continue
        opsets, ruled_out = _both(_known(settings.opsets), _known(recipe.opsets), DEFAULT_OPSETS)
        if ruled_out:
            exclusions.append(
                _exclusion(recipe, f"opset {format_opsets(ruled_out)}", f"opsets {format_opsets(recipe.opsets or ())}")
            )
        if settings.sample is not None:
            opsets = sample_opsets(opsets, settings.sample)
        # Absent devices and devices that nobody asked for differ: only the first become skipped cells.
        devices, refused = _both(settings.devices, recipe.devices, ("cpu",))
        if refused:
            exclusions.append(_exclusion(recipe, ", ".join(refused), f"devices {', '.join(recipe.devices or ())}"))
        exporters: tuple[str, ...] | None = None
        if settings.exporters or recipe.exporters:
            exporters, not_written = _both(settings.exporters, recipe.exporters, ())
            if not_written:
                exclusions.append(_exclusion(recipe, ", ".join(not_written), f"exporter {', '.join(recipe.exporters or ())}"))
        left, others = _both(settings.runtimes, recipe.runtimes, DEFAULT_RUNTIMES)
        if not left:
            exclusions.append(_exclusion(recipe, ", ".join(others), f"runtimes {', '.join(recipe.runtimes or ())}"))
            continue
        for device in devices:
            for opset in opsets:
                for exporter in (default_exporter(opset),) if exporters is None else exporters:
                    cell = Cell(source=each.source, recipe=recipe.name, exporter=exporter, opset=opset, device=device)
                    if is_selected(cell, settings, by_name=not is_asked_for):
                        cells.append(PlannedCell(cell=cell, recipe=recipe))
    return Matrix(cells=tuple(cells), exclusions=tuple(exclusions))


def runtimes_of(recipe: Recipe, settings: Settings) -> tuple[str, ...]:
    """What runs the files of ``recipe``: what the settings ask for and the recipe declares."""
    return _both(settings.runtimes, recipe.runtimes, DEFAULT_RUNTIMES)[0]


def in_shard(matrix: Matrix, shard: Shard | None, seconds: Mapping[str, float]) -> Matrix:
    """The part of ``matrix`` that ``shard`` names; all of it if there is none.

    Args:
        seconds: how long cells take, by id, as far as it is known.
    """
    if shard is None:
        return matrix
    parts = partition((planned.cell for planned in matrix.cells), shard.count, seconds)
    chosen = set(parts[shard.index - 1]) if shard.index <= len(parts) else set()
    return replace(matrix, cells=tuple(planned for planned in matrix.cells if planned.cell in chosen))


def why_empty(matrix: Matrix, shard: Shard) -> str:
    """Why ``shard`` has none of the cells of ``matrix``, and what to do."""
    count = len(matrix.cells)
    if count == 1:
        return f"shard {shard} is empty: there is only 1 cell; leave the shard out"
    return f"shard {shard} is empty: there are only {count} cells; use {count} shards or fewer, such as 1/{count}"


def seconds_for_shard(settings: Settings) -> Mapping[str, float]:
    """How long cells took by the settings' durations, which are read only if the settings name a shard.

    Raises:
        ConfigurationError: the durations cannot be used.
    """
    return read_seconds(settings.durations) if settings.shard is not None and settings.durations is not None else {}


def is_selected(cell: Cell, settings: Settings, *, by_name: bool = False) -> bool:
    """Whether the settings' globs, if any, name the cell by its whole id, by ``recipe::cell`` or by its recipe.

    Args:
        by_name: a glob that begins with ``*`` will not do: it asks for any recipe, and so for none.
    """
    if settings.select is None:
        return True
    names = (cell.id, f"{cell.recipe}::{cell.label}", cell.recipe)
    globs = [glob for glob in settings.select if not (by_name and glob.startswith("*"))]
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in names)


def _known(opsets: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The opsets up to the newest one, if they go on without an end."""
    if opsets is None or opsets[-1] < OPEN_END:
        return opsets
    newest = newest_opset()
    return tuple(opset for opset in opsets if opset <= newest)


def _both(
    asked: tuple[T, ...] | None, declared: tuple[T, ...] | None, default: tuple[T, ...]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """What is asked for and declared, and what is asked for and not declared."""
    if asked is None:
        return declared or default, ()
    if declared is None:
        return asked, ()
    return tuple(each for each in asked if each in declared), tuple(each for each in asked if each not in declared)


def _exclusion(recipe: Recipe, what: str, declared: str) -> Exclusion:
    return Exclusion(recipe=recipe.name, reason=f"{what}: the recipe declares {declared}")
