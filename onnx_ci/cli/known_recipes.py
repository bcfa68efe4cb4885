"""The recipes whose cells a command shows without running them: recalled, or found in the recipe files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.cache.memory import why_no_memory
from onnx_ci.cache.observed import command_line_observed, observation, observe
from onnx_ci.cache.remembered_recipes import RecipeMemory, RememberedRecipes
from onnx_ci.cli.common import find_recipes
from onnx_ci.collection.discovery import Catalogue
from onnx_ci.config.settings import Settings
from onnx_ci.environment.packages import newest_opset
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.matrix.scope import RecipeScope, is_open, scopes_of
from onnx_ci.results.records import Problem


@dataclass(frozen=True, kw_only=True)
class KnownRecipes:
    """The recipes of a project."""

    scopes: tuple[RecipeScope, ...]
    newest_opset: Callable[[], int]
    """Returns the newest opset, for ranges without an end."""
    catalogue: Catalogue | None = None
    """The recipes themselves, and what is wrong with their files; ``None`` if they were recalled."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with recipe files. Recipes are remembered only if nothing is."""
        return () if self.catalogue is None else tuple(self.catalogue.problems)


def known_recipes(settings: Settings, paths: tuple[Path, ...], *, is_imported: bool = False) -> KnownRecipes:
    """The recipes in ``paths``, or of the project; recalled if nothing has changed that they depend on.

    Args:
        settings: the settings.
        paths: files and folders.
        is_imported: whether to import the recipe files in any case.

    Raises:
        ConfigurationError: a path does not exist, or a package is not installed.
    """
    memory = None if why_no_memory(settings) else RecipeMemory(settings, paths)
    remembered = None if memory is None or is_imported else memory.recall()
    if remembered is not None:
        newest = remembered.newest_opset
        return KnownRecipes(scopes=remembered.scopes, newest_opset=newest_opset if newest is None else lambda: newest)
    if memory is None:
        catalogue = find_recipes(settings, paths)
    else:
        observe()
        with command_line_observed():
            catalogue = find_recipes(settings, paths)
    scopes = scopes_of(catalogue.recipes.values())
    if memory is not None and scopes and not catalogue.problems:
        _remember(memory, scopes, settings)
    return KnownRecipes(scopes=scopes, newest_opset=newest_opset, catalogue=catalogue)


def _remember(memory: RecipeMemory, scopes: tuple[RecipeScope, ...], settings: Settings) -> None:
    try:
        newest = newest_opset() if any(map(is_open, (settings.opsets, *(scope.opsets for scope in scopes)))) else None
    except EnvironmentLacksError:  # it is raised again if a recipe that is chosen asks for it
        return
    memory.remember(RememberedRecipes(scopes=scopes, newest_opset=newest), observation())
