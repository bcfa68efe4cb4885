"""What recipe files declare about their cells, so that cells can be listed and planned without an import.

Unlike a remembered run, it does not depend on the settings that choose cells, which are applied to what is remembered. A recipe
file that reads the command line can see them, so its recipes are not remembered.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.cache.memory import DAMAGE, RECIPES, Memory, digest_of
from onnx_ci.cache.observed import Observation
from onnx_ci.collection.discovery import all_recipe_files
from onnx_ci.config.options import Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.matrix.scope import RecipeScope, is_open
from onnx_ci.results.json_data import from_json, to_json


@dataclass(frozen=True, kw_only=True)
class RememberedRecipes:
    """The recipes of a project, and what else their cells depend on."""

    scopes: tuple[RecipeScope, ...]
    newest_opset: int | None
    """The newest opset; ``None`` if no range without an end asks for it."""


class RecipeMemory:
    """The remembered recipes of some files.

    Args:
        settings: the settings, for which :func:`~onnx_ci.cache.memory.why_no_memory` says nothing.
        paths: the files and folders that the command names.

    Raises:
        ConfigurationError: a path does not exist, or a package is not installed.
    """

    def __init__(self, settings: Settings, paths: Sequence[Path]) -> None:
        shown = settings.shown()
        values = [(option.name, shown[option.name].value) for option in options_with(Role.DISCOVERY, Role.EXECUTION)]
        files = [str(file) for file in all_recipe_files(settings, paths)]  # packages may have new ones unseen
        place = (str(Path.cwd()), str(settings.root), sys.argv[0])
        parts = {"recipes": digest_of((values, list(map(str, paths)), files, place, is_open(settings.opsets)))}
        self._memory = Memory(settings, RECIPES, parts)

    def recall(self) -> RememberedRecipes | None:
        """The recipes, or ``None``."""
        try:
            found = self._memory.recall()
            return None if found is None else from_json(RememberedRecipes, found)
        except DAMAGE:
            return None

    def remember(self, recipes: RememberedRecipes, observed: Observation) -> str:
        """Remember recipes of files that have no problems. Errors with the file are not raised.

        Args:
            recipes: the recipes.
            observed: what this process read and did when it imported them.

        Returns:
            Why they cannot be remembered, or an empty text.
        """
        return self._memory.remember(to_json(recipes), observed)
