"""The cells and files that commands of tools are about, by the names that the command line gives them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cli.common import find_recipes, recipe_named
from onnx_ci.config.settings import Settings
from onnx_ci.engine.events import CellJudged
from onnx_ci.engine.recipes import Recipes
from onnx_ci.errors import ConfigurationError, did_you_mean, existing_file
from onnx_ci.matrix.plan import CellSpec, spec_of
from onnx_ci.plugins import EXPORTERS
from onnx_ci.results.records import Cell, CellResult, Status


@dataclass(frozen=True, kw_only=True)
class NamedCell:
    """A cell that the command line names, and the recipes among which it was found."""

    spec: CellSpec
    recipes: Recipes


def cell_or_file(name: str, settings: Settings, paths: tuple[Path, ...] = ()) -> NamedCell | Path:
    """What ``name`` means: a cell, at any opset, by its id with or without the recipe's file; or an ONNX file, by its path.

    The recipe is searched for in ``paths``. Default: in the file of the id, or in the project's recipe files.

    Raises:
        ConfigurationError: ``name`` is neither an id nor a path, or what it names does not exist.
    """
    if "::" not in name:
        if name.isidentifier() and not Path(name).exists():
            raise ConfigurationError(f"there is no file {name}; for a cell, add its label: {name}::opset13-cpu")
        return existing_file(Path(name))
    has_file = name.count("::") > 1
    cell = Cell.from_id(name if has_file else f"-::{name}")
    if cell is None:
        raise ConfigurationError(
            f"{name!r} is not the id of a cell: a cell is FILE::RECIPE::opset13-cpu or RECIPE::opset13-cpu; "
            "onnx-ci list shows all ids"
        )
    if has_file and not paths:
        paths = (_file_named(cell.source, settings),)
    recipes = find_recipes(settings, paths)
    scope = recipe_named(cell.recipe, recipes)
    exporters = [each for each in EXPORTERS if scope.has_exporter(each)]
    for what, part, choices in (("exporter", cell.exporter, exporters), ("pass", cell.graph_pass, scope.passes)):
        if part is not None and part not in choices:
            use = f"; use {', '.join(choices)}{did_you_mean(part, choices)}" if choices else ""
            raise ConfigurationError(f"{name}: {scope.name} has no {what} {part!r}{use}")
    return NamedCell(spec=spec_of(dataclasses.replace(cell, source=scope.source), scope, settings), recipes=recipes)


def failing_cell_or_file(name: str, settings: Settings, paths: tuple[Path, ...] = ()) -> NamedCell | Path:
    """As :func:`cell_or_file`; the name of a recipe, with or without its file, stands for its first cell that fails.

    Its cells run until one fails, unless the cache has their verdicts. If none fails, it is the first one that is not right, or
    the first.
    """
    source, _, recipe = name.rpartition("::")
    file = _file_named(source, settings)
    if not recipe.isidentifier() or not file.exists() or Path(name).exists():
        return cell_or_file(name, settings, paths)
    from onnx_ci.engine.session import Session

    cache = VerdictCache.open(settings)
    recipes = find_recipes(settings, paths or ((file,) if source else ()), cache)
    recipe_named(recipe, recipes)
    specs = {spec.cell: spec for spec in recipes.plan().cells if spec.cell.recipe == recipe}
    if not specs:
        raise ConfigurationError(f"{recipe} has no cell that would run here; onnx-ci list --why says why")
    results: list[CellResult] = []
    with Session(settings, recipes, cache=cache, is_reporting=False) as session:
        session.expect(specs.values())
        for event in session.events():
            results += [event.result] if isinstance(event, CellJudged) else []
            if results and results[-1].status.is_bad:
                break
    first = min(results, key=lambda result: (not result.status.is_bad, result.status is Status.PASSED))
    return NamedCell(spec=specs[first.cell], recipes=recipes)


def _file_named(source: str, settings: Settings) -> Path:
    """The file of an id, which is relative to the root, or to the current directory."""
    file = settings.root / source
    return file if file.exists() else Path(source)
