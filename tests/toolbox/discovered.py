"""Recipe files that a test imports in its own process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnx_ci.collection.discovery import Catalogue, Found, all_recipe_files
from onnx_ci.collection.importing import add_pythonpath
from onnx_ci.results.records import Problem


@dataclass(frozen=True, kw_only=True)
class Discovered:
    recipes: dict[str, Found]
    problems: list[Problem]


def discover(settings, paths=()):
    """Every recipe in ``paths``, or in the project, and what is wrong with its files, as without isolation."""
    catalogue, problems = Catalogue(settings), []
    files = list(all_recipe_files(settings, paths))
    named = {Path(path).absolute() for path in paths if Path(path).is_file()}
    add_pythonpath(settings.root)
    for file in files:
        problems += catalogue.add_file(file, is_named=file in named)[1]
    return Discovered(recipes=catalogue.recipes, problems=problems)
