"""Plan a run: from recipes and settings to its ordered cells, with a reason for each exclusion."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from onnx_ci.collection.discovery import Found
from onnx_ci.collection.expectations import expectations_of
from onnx_ci.collection.post_export import GraphPass
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.config.values import Shard
from onnx_ci.errors import working_directory
from onnx_ci.matrix.drift_limit import DriftLimit, limit_after, limit_of
from onnx_ci.matrix.scope import RecipeScope, choose_cells, runtimes_of, scope_of
from onnx_ci.matrix.shards import Durations, partition
from onnx_ci.results.records import Cell, Exclusion, SettingSource
from onnx_ci.results.verdict import Expectation, Severities


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a file must be, besides right. ``None`` and ``False`` require nothing."""

    operators: tuple[str, ...] | None = None
    max_ir_version: int | None = None
    static: bool = False
    external_data: bool | None = None
    """Whether its weights are in another file."""


@dataclass(frozen=True, kw_only=True)
class InputFiles:
    """Files with inputs."""

    folder: str
    patterns: tuple[str, ...]
    """Globs, relative to the folder."""


@dataclass(frozen=True, kw_only=True)
class CellSpec:
    """A cell, and what the process that decides needs to run it and to decide on its evidence: plain values."""

    cell: Cell
    allow: tuple[str, ...]
    expectations: tuple[Expectation, ...]
    severities: Severities
    is_trained: bool | None
    """Whether the model has trained weights, which are exported unchanged. ``None`` if building it will show that."""
    require_device: bool
    """Whether an absent device is an error; otherwise the cell is skipped."""
    timeout: float
    """Seconds."""
    memory_limit: int | None
    """Bytes; ``None`` for a limit based on the machine's memory."""
    line: int | None
    """The line of the cell's file on which the recipe's definition starts. ``None`` if another file contains it."""
    inputs_of_settings: InputFiles
    """The files with inputs that the settings name. A recipe may change the directory that a flag is relative to."""


@dataclass(frozen=True, kw_only=True)
class CellTask(CellSpec):
    """A cell with its recipe, in the process that runs it, and the values that apply to it."""

    recipe: Recipe
    max_drift: DriftLimit
    runtimes: tuple[str, ...]
    weights: str | None
    """The trained weights that the settings specify for the recipe; passed to its function."""
    is_quick: bool
    """Whether the file is compared on the example and on given inputs alone."""
    locates: bool
    """Whether the line at which a failure begins is searched for."""
    inputs: tuple[InputFiles, ...]
    requirements: Requirements
    """What the file must be if it is the one that ships; otherwise nothing."""

    @property
    def passes(self) -> tuple[GraphPass, ...]:
        """The post-export passes that make the cell's file, in order; empty for the exporter's own file."""
        names = [graph_pass.name for graph_pass in self.recipe.then]
        return self.recipe.then[: names.index(self.cell.graph_pass) + 1] if self.cell.graph_pass in names else ()

    @property
    def is_lossy(self) -> bool:
        """Whether one of the passes rounds more coarsely than the model."""
        return any(graph_pass.lossy for graph_pass in self.passes)

    @property
    def opset_of_file(self) -> int:
        """The opset that the cell's file must have: that of the export, unless a pass converts it."""
        return next((each.opset for each in reversed(self.passes) if each.opset), self.cell.opset)

    @property
    def drift_limit(self) -> DriftLimit:
        """The largest drift of the cell's file: ``max_drift``, unless a pass is lossy or has its own limit."""
        return limit_after(self.passes, self.max_drift)

    def before_passes(self, count: int) -> CellTask:
        """The cell of the file after only ``count`` of the passes."""
        return replace(self, cell=replace(self.cell, graph_pass=self.passes[count - 1].name if count else None))


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The cells of a run, in order."""

    cells: tuple[CellSpec, ...]
    exclusions: tuple[Exclusion, ...]
    """The cells that the settings request and the recipes exclude."""


def plan(recipes: Iterable[RecipeScope | Found], settings: Settings) -> Matrix:
    """Every cell that the recipes and the settings both allow: recipe by recipe, then device, opset, exporter, pass.

    The cells of a recipe, and not only of what it declares, are :class:`CellTask`.
    """
    cells: list[CellSpec] = []
    exclusions: list[Exclusion] = []
    for recipe in recipes:
        scope = recipe if isinstance(recipe, RecipeScope) else scope_of(recipe, settings)
        choice = choose_cells([scope], settings)
        for cell in choice.cells:
            spec = spec_of(cell, scope, settings)
            cells.append(spec if isinstance(recipe, RecipeScope) else with_recipe(spec, recipe.recipe, settings))
        exclusions += choice.exclusions
    return Matrix(cells=tuple(cells), exclusions=tuple(exclusions))


def spec_of(cell: Cell, scope: RecipeScope, settings: Settings) -> CellSpec:
    """``cell`` with the values that the process that decides needs."""
    weights = "trained" if settings.weights_for(scope.name) is not None else scope.weights
    folder = settings.root if settings.origins["inputs"].source is SettingSource.PROJECT_FILE else working_directory()
    return CellSpec(
        cell=cell,
        allow=scope.allow,
        expectations=expectations_of(scope.expect, cell.exporter, cell.opset, cell.graph_pass, cell.device),
        severities=settings.severities_for(scope.name),
        is_trained=None if weights is None else weights == "trained",
        require_device=settings.require_devices,
        timeout=scope.timeout or settings.timeout,
        memory_limit=settings.memory_limit,
        line=scope.line if scope.file == cell.source else None,
        inputs_of_settings=InputFiles(folder=str(folder), patterns=settings.inputs),
    )


def with_recipe(spec: CellSpec, recipe: Recipe, settings: Settings) -> CellTask:
    """A cell with its recipe and the values that apply to it."""
    of_recipe = InputFiles(folder=str(Path(recipe.file).absolute().parent), patterns=recipe.inputs)
    return CellTask(
        **{field.name: getattr(spec, field.name) for field in dataclasses.fields(CellSpec)},
        recipe=recipe,
        max_drift=limit_of(recipe, settings),
        inputs=tuple(files for files in (of_recipe, spec.inputs_of_settings) if files.patterns),
        requirements=_requirements(spec.cell, recipe, settings),
        runtimes=runtimes_of(recipe, settings),
        weights=settings.weights_for(recipe.name),
        is_quick=settings.effort == "quick",
        locates=settings.locate,
    )


def without_recipe(spec: CellSpec) -> CellSpec:
    """A cell without its recipe: what can be sent to another process."""
    return CellSpec(**{field.name: getattr(spec, field.name) for field in dataclasses.fields(CellSpec)})


def task_of(cell: Cell, recipe: Recipe, settings: Settings) -> CellTask:
    """A cell of a recipe that this process has, with the values that apply to it."""
    scope = scope_of(Found(recipe, cell.source), settings)
    return with_recipe(spec_of(cell, scope, settings), recipe, settings)


def _requirements(cell: Cell, recipe: Recipe, settings: Settings) -> Requirements:
    """What the file of a cell must be. Only the last one of a recipe ships."""
    if cell.graph_pass != (recipe.then[-1].name if recipe.then else None):
        return Requirements()
    defaults = settings.recipe_defaults
    return Requirements(
        operators=defaults.get("operators") if recipe.operators is None else recipe.operators,
        max_ir_version=recipe.max_ir_version or defaults.get("max_ir_version"),
        static=defaults.get("static", False) if recipe.static is None else recipe.static,
        external_data=recipe.external_data,
    )


def cells_in_shard(cells: Iterable[Cell], shard: Shard, durations: Durations) -> frozenset[Cell]:
    """The cells that belong to ``shard``, of all ``cells`` of the run."""
    parts = partition(cells, shard.count, durations)
    return frozenset(parts[shard.index - 1] if shard.index <= len(parts) else ())


def why_empty(count: int, shard: Shard) -> str:
    """Why ``shard`` of so many cells is empty, and what to do."""
    if count == 1:
        return f"shard {shard} is empty: there is only 1 cell; run without a shard"
    return f"shard {shard} is empty: there are only {count} cells; use {count} shards or fewer, such as 1/{count}"
