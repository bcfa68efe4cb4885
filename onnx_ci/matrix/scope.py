"""Which cells recipes have, chosen from what they declare about it: plain values, which can be sent and kept."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from onnx_ci.collection.discovery import Found, relative_source
from onnx_ci.collection.expectations import ExpectedFailures
from onnx_ci.collection.recipe import Recipe, declared_in
from onnx_ci.config.settings import Settings
from onnx_ci.config.values import EVERY_RECIPE
from onnx_ci.environment.packages import newest_opset, newest_opset_of_onnx
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.opsets import (
    CUSTOM,
    DEFAULT_OPSETS,
    OF_TORCH,
    OPEN_END,
    WRITTEN_BY,
    default_exporter,
    format_opsets,
    sample_opsets,
)
from onnx_ci.plugins import base_name
from onnx_ci.results.records import Cell, Exclusion, Problem, SettingSource

T = TypeVar("T")
DEFAULT_RUNTIMES = ("onnxruntime",)
_AS_DECLARED = (
    *("name", "manual", "tags", "opsets", "exporters", "devices", "runtimes", "line"),
    *("weights", "takes_weights", "allow", "expect", "timeout"),
)
"""The fields of a scope that are those of the recipe."""


@dataclass(frozen=True, kw_only=True)
class RecipeScope:
    """What a recipe declares about its cells, and where it was found. ``None`` means that it declares nothing.

    The process that decides knows no more of a recipe than this.
    """

    name: str
    source: str
    """The file that it was found in, relative to the project's root, with forward slashes."""
    is_named: bool
    """Whether its file was named, and not only a folder above it."""
    manual: str
    """Why it runs only on request; empty if it always runs."""
    tags: tuple[str, ...]
    opsets: tuple[int, ...] | None
    exporters: tuple[str, ...] | None
    devices: tuple[str, ...] | None
    runtimes: tuple[str, ...] | None
    passes: tuple[str, ...]
    file: str
    """The file that defines it, relative to the project's root, with forward slashes."""
    line: int
    """The line of that file on which its definition starts."""
    declared_in: str
    """The file whose top-level code created it, written in the same way. It is not ``file`` if that code
    calls a function of another module, which defines the recipe."""
    weights: str | None
    takes_weights: bool
    """Whether the settings can give it trained weights."""
    has_several_files: bool
    """Whether its export function writes several files, which are judged together."""
    allow: tuple[str, ...]
    expect: tuple[ExpectedFailures, ...]
    timeout: float | None

    def has_exporter(self, name: str) -> bool:
        """Whether an exporter can export it, declared or not. Its own function is one of those that it declares."""
        return name != CUSTOM or name in (self.exporters or ())


@dataclass(frozen=True, kw_only=True)
class CellChoice:
    """The cells of recipes, in order."""

    cells: tuple[Cell, ...]
    exclusions: tuple[Exclusion, ...]
    """The cells that the settings request and the recipes exclude."""


def scope_of(found: Found, settings: Settings) -> RecipeScope:
    """What a recipe declares about its cells."""
    recipe = found.recipe
    return RecipeScope(
        **{name: getattr(recipe, name) for name in _AS_DECLARED},
        source=found.source,
        is_named=found.is_named,
        passes=tuple(graph_pass.name for graph_pass in recipe.then),
        file=relative_source(Path(recipe.file), settings.root),
        declared_in=relative_source(Path(declared_in(recipe) or recipe.file), settings.root),
        has_several_files=recipe.run_files is not None,
    )


def _check_opsets(settings: Settings) -> None:
    opsets = settings.opsets
    if not opsets or opsets[-1] in WRITTEN_BY["torchscript"]:  # which each onnx knows that is new enough
        return
    asked, newest = (opsets[0], newest_opset()) if is_open(opsets) else (opsets[-1], newest_opset_of_onnx())
    if newest is not None and asked > newest:
        raise ConfigurationError(
            f"{settings.origins['opsets']}: opset {asked} is unknown here, where {newest} is the newest; "
            f"{min(opsets[0], newest)}- means up to the newest that can run here"
        )


def choose_cells(scopes: Iterable[RecipeScope], settings: Settings) -> CellChoice:
    """Every cell that the recipes and the settings both allow: recipe by recipe, then device, opset, exporter, pass."""
    _check_opsets(settings)
    choices = [_cells_of(scope, settings) for scope in scopes if has_tag(scope, settings)]
    return CellChoice(
        cells=tuple(cell for choice in choices for cell in choice.cells),
        # A recipe without a selected cell was not asked for, so nothing is said of what it leaves out.
        exclusions=tuple(each for choice in choices if choice.cells or settings.select is None for each in choice.exclusions),
    )


def _cells_of(scope: RecipeScope, settings: Settings) -> CellChoice:
    """The cells of one recipe."""
    is_requested = not scope.manual or scope.is_named or settings.tags is not None
    declared_opsets, reason = scope.opsets and _runnable(scope.opsets), ""
    if not is_requested and settings.select is None:
        reason = f"every opset, unless requested by file, --select or --tags: {scope.manual}"
    elif scope.opsets and not declared_opsets:
        reason = f"every opset: the recipe declares {format_opsets(scope.opsets)}, and the newest here is {newest_opset()}"
    if reason:
        return CellChoice(cells=(), exclusions=(Exclusion(recipe=scope.name, reason=reason),))
    opsets, other_opsets = _choose(settings.opsets and _runnable(settings.opsets), declared_opsets, DEFAULT_OPSETS)
    # A cell on an absent device is skipped, but a device that the recipe does not declare has no cells; cuda is any GPU.
    of_type = tuple(each for each in settings.devices or () if each.partition(":")[0] in (scope.devices or ()))
    devices, other_devices = _choose(settings.devices, scope.devices and (*scope.devices, *of_type), ("cpu",))
    exporters, other_exporters = _choose(settings.exporters, scope.exporters, ())
    exclusions: list[Exclusion] = []

    def exclude(requested: str, declared: str) -> None:
        if requested:
            exclusions.append(Exclusion(recipe=scope.name, reason=f"{requested}: the recipe declares {declared}"))

    if not scope.has_exporter(CUSTOM):
        exclude(CUSTOM if CUSTOM in exporters else "", "no export function")
        exporters = tuple(name for name in exporters if name != CUSTOM)
    exclude(f"opset {format_opsets(other_opsets)}" if other_opsets else "", f"opsets {format_opsets(scope.opsets or ())}")
    exclude(", ".join(other_devices), f"devices {', '.join(scope.devices or ())}")
    exclude(", ".join(other_exporters), f"exporter {', '.join(scope.exporters or ())}")
    if not runtimes_of(scope, settings):
        exclude(", ".join(settings.runtimes or ()), f"runtimes {', '.join(scope.runtimes or ())}")
        return CellChoice(cells=(), exclusions=tuple(exclusions))
    if settings.sample is not None:
        opsets = sample_opsets(opsets, settings.sample)
    # Beside the other one, which writes them, it is noise that an exporter refuses opsets, or often cannot convert to them.
    beside = OF_TORCH if set(OF_TORCH) <= set(exporters) else ()
    unwritten = {name: left for name in beside if (left := [each for each in opsets if each not in WRITTEN_BY[name]])}
    for name, numbers in unwritten.items():
        reason = f"opset {format_opsets(numbers)} with {name}, which writes {format_opsets(WRITTEN_BY[name])}"
        exclusions.append(Exclusion(recipe=scope.name, reason=f"{reason}; --exporters={name} alone tries it"))
    cells: list[Cell] = []
    for device in devices:
        for opset in opsets:
            for exporter in exporters if settings.exporters or scope.exporters else (default_exporter(opset),):
                if opset in unwritten.get(exporter, ()):
                    continue
                cell = Cell(source=scope.source, recipe=scope.name, exporter=exporter, opset=opset, device=device)
                cells += [cell, *(replace(cell, graph_pass=graph_pass) for graph_pass in scope.passes)]
    return CellChoice(
        cells=tuple(cell for cell in cells if _is_selected(cell, settings, by_name=not is_requested)),
        exclusions=tuple(exclusions),
    )


def unselected_cells(scopes: Iterable[RecipeScope], settings: Settings) -> tuple[Cell, ...]:
    """All cells that ``--select`` chooses from; the arguments are those of :func:`choose_cells`."""
    return choose_cells(scopes, replace(settings, select=None)).cells


def unmatched(scopes: Sequence[RecipeScope], settings: Settings, *, is_whole: bool) -> list[Problem]:
    """Each glob of ``--select`` and each tag that names nothing although another one does, and each setting of no recipe.

    A glob may name cells that only other settings have: the jobs of a matrix get the same globs and different opsets.
    Unless these are all recipes of the project, its ``pyproject.toml`` may name others.
    """

    def requested(name: str) -> bool:
        return is_whole or settings.origins[name].source is not SettingSource.PROJECT_FILE

    problems = [*_without_recipe(scopes, settings, requested)]
    if settings.select is None and settings.tags is None:
        return problems
    if not choose_cells(scopes, settings).cells:
        return problems  # the front-ends say why nothing runs
    tags = sorted({tag for scope in scopes for tag in scope.tags})
    problems += [
        Problem(source="--tags", message=f"no recipe has the tag {tag!r}{did_you_mean(tag, tags)}")
        for tag in settings.tags or ()
        if tag not in tags and requested("tags")
    ]
    globs = [glob for glob in settings.select or () if requested("select")]
    for cells_of in (unselected_cells, _possible_cells):
        cells = cells_of(scopes, settings) if globs else ()
        globs = [glob for glob in globs if not any(_is_selected(cell, replace(settings, select=(glob,))) for cell in cells)]
    names = nameable(scopes, settings) if globs else []
    problems += [
        Problem(source="--select", message=f"no cell matches {glob!r}{did_you_mean(glob, names)}; onnx-ci list shows the ids")
        for glob in globs
    ]
    return problems


def _without_recipe(scopes: Sequence[RecipeScope], settings: Settings, requested: Callable[[str], bool]) -> Iterator[Problem]:
    """Weights and severities that apply to no recipe, so that they would be ignored without a word."""
    takes_weights = {scope.name: scope.takes_weights for scope in scopes}
    for name in settings.weights:
        takes = any(takes_weights.values()) if name == EVERY_RECIPE else takes_weights.get(name)
        if takes is None and requested("weights"):
            yield Problem(source="--weights", message=f"there is no recipe {name!r}{did_you_mean(name, takes_weights)}")
        elif takes is False and (name in takes_weights or requested("weights")):
            takes_none = f"the recipe {name!r} takes no weights" if name in takes_weights else "no recipe takes weights"
            message = f"{takes_none}: give its function the parameter weights=None, and load what it gets"
            yield Problem(source="--weights", message=message)
    for pattern in {each.recipes: None for each in settings.rules if requested("rules")}:
        if not fnmatch.filter(takes_weights, pattern):
            message = f"{pattern!r} matches the name of no recipe{did_you_mean(pattern, takes_weights)}"
            yield Problem(source="--rules", message=message)


def _possible_cells(scopes: Iterable[RecipeScope], settings: Settings) -> tuple[Cell, ...]:
    """The cells that recipes can have under any settings."""
    cells: list[Cell] = []
    for scope in scopes:
        anything = replace(
            settings,
            select=None, tags=None, sample=None, runtimes=None,
            opsets=tuple(range(1, newest_opset() + 1)),
            devices=tuple(dict.fromkeys(("cpu", "cuda", *settings.devices, *(scope.devices or ())))),
        )  # fmt: skip
        for exporter in dict.fromkeys((*OF_TORCH, *(settings.exporters or ()), *(scope.exporters or ()))):
            cells += choose_cells([replace(scope, manual="")], replace(anything, exporters=(exporter,))).cells
    return tuple(cells)


def nameable(scopes: Iterable[RecipeScope], settings: Settings) -> list[str]:
    """What a glob of ``--select`` can name: recipes, and cells with and without their files."""
    scopes = tuple(scopes)
    names = [scope.name for scope in scopes]
    return names + [name for cell in unselected_cells(scopes, settings) for name in (f"{cell.recipe}::{cell.label}", cell.id)]


def has_tag(scope: RecipeScope, settings: Settings) -> bool:
    """Whether a recipe has one of the settings' tags, if they name any."""
    return settings.tags is None or not set(settings.tags).isdisjoint(scope.tags)


def _is_selected(cell: Cell, settings: Settings, *, by_name: bool = False) -> bool:
    """Whether a glob of the settings, if they have any, matches the cell's full id, ``recipe::cell`` or the recipe.

    With ``by_name``, a glob must request a particular recipe, so that one which begins with ``*`` does not count.
    """
    if settings.select is None:
        return True
    names = (cell.id, f"{cell.recipe}::{cell.label}", cell.recipe)
    globs = [glob for glob in settings.select if not (by_name and glob.startswith("*"))]
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in names)


def runtimes_of(recipe: Recipe | RecipeScope, settings: Settings) -> tuple[str, ...]:
    """The runtimes for the files of a recipe: those that the settings request and the recipe declares."""
    if settings.runtimes is None or recipe.runtimes is None:
        return settings.runtimes or recipe.runtimes or DEFAULT_RUNTIMES
    return tuple(name for name in settings.runtimes if base_name(name) in recipe.runtimes)


def _runnable(opsets: tuple[int, ...]) -> tuple[int, ...]:
    """The opsets; of a range without an end, those that the installed packages support."""
    return tuple(opset for opset in opsets if opset <= newest_opset()) if is_open(opsets) else opsets


def is_open(opsets: tuple[int, ...] | None) -> bool:
    """Whether opsets are a range without an end, which depends on what is installed."""
    return opsets is not None and opsets[-1] >= OPEN_END


def _choose(
    requested: tuple[T, ...] | None, declared: tuple[T, ...] | None, default: tuple[T, ...]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """What is requested and declared, and what is requested but not declared."""
    if requested is None:
        return declared or default, ()
    if declared is None:
        return requested, ()
    return tuple(item for item in requested if item in declared), tuple(item for item in requested if item not in declared)
