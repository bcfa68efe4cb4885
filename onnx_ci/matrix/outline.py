"""Which recipes and cells a recipe file has, as plain values: what a front-end shows before any cell runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx_ci.collection.discovery import Found
from onnx_ci.results.records import Cell


@dataclass(frozen=True, kw_only=True)
class RecipeOutline:
    """A recipe and its planned cells."""

    name: str
    line: int
    """The line on which its definition starts."""
    tags: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class FileOutline:
    """The recipes of one file, in order."""

    source: str
    """The recipe file, relative to the project's root, with forward slashes."""
    recipes: tuple[RecipeOutline, ...]


def outline_of(source: str, found: Iterable[Found], cells: Iterable[Cell]) -> FileOutline:
    """The outline of a recipe file.

    Args:
        source: the file, relative to the project's root.
        found: its recipes.
        cells: the planned cells of all of them.
    """
    by_recipe: dict[str, list[Cell]] = {}
    for cell in cells:
        by_recipe.setdefault(cell.recipe, []).append(cell)
    recipes = (each.recipe for each in found)
    return FileOutline(
        source=source,
        recipes=tuple(
            RecipeOutline(name=recipe.name, line=recipe.line, tags=recipe.tags, cells=tuple(by_recipe.get(recipe.name, ())))
            for recipe in recipes
        ),
    )


def outlines(found: Iterable[Found], cells: Iterable[Cell]) -> tuple[FileOutline, ...]:
    """The outlines of all files with these recipes; the names of recipes are unique."""
    by_source: dict[str, list[Found]] = {}
    for each in found:
        by_source.setdefault(each.source, []).append(each)
    cells_by_source: dict[str, list[Cell]] = {}
    for cell in cells:
        cells_by_source.setdefault(cell.source, []).append(cell)
    return tuple(outline_of(source, recipes, cells_by_source.get(source, ())) for source, recipes in by_source.items())


def cells_of(files: Iterable[FileOutline]) -> list[Cell]:
    """The cells of all recipes of the files, in order."""
    return [cell for file in files for recipe in file.recipes for cell in recipe.cells]


def recipes_of(files: Iterable[FileOutline]) -> list[str]:
    """The names of all recipes of the files, in order."""
    return [recipe.name for file in files for recipe in file.recipes]
