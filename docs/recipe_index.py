"""Write ``recipes/README.md``, the index of the recipe library, from what its files declare; with ``--check``, compare it.

It stands here and not in ``recipes/``, because all of that folder is installed as ``onnx_ci.recipes``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from onnx_ci import Recipe
from onnx_ci.collection.discovery import Catalogue
from onnx_ci.config.settings import load_settings
from onnx_ci.opsets import DEFAULT_OPSETS, FIRST_DYNAMO_OPSET, OF_TORCH, OPEN_END, format_opsets

LIBRARY = Path(__file__).parents[1] / "recipes"
INDEX = LIBRARY / "README.md"

HEAD = """\
# The recipe library

<!-- Written by `tox run -e index`; do not edit. -->

Exports that are worth copying, grouped as the documentation of `torch.onnx` is. They are installed as `onnx_ci.recipes`.

The last two columns show the opsets at which a recipe declares no known failure: with TorchScript from opset 9, with dynamo
from opset 18. `9-` means from opset 9 on, `–` at none, and `·` that the recipe does not run with this exporter.
[docs/support.md](../docs/support.md) has the results of runs, and [docs/from-torch-docs.md](../docs/from-torch-docs.md) leads
from the documentation to the recipes.
"""
COLUMNS = """\
| file | what it shows | recipe | TorchScript | dynamo |
| --- | --- | --- | --- | --- |
"""
OPERATORS = "The recipes are not listed here: [docs/operators.md](../docs/operators.md) has each operator at each opset.\n"


def groups() -> list[Path]:
    """The folders of the library."""
    return sorted(path.parent for path in LIBRARY.glob("*/__init__.py"))


def files_of(group: Path) -> list[Path]:
    """The modules of a group."""
    return sorted(path for path in group.glob("*.py") if path.name != "__init__.py")


def recipes_in(file: Path) -> list[Recipe]:
    """The recipes of a file, from top to bottom."""
    found, problems = Catalogue(load_settings(LIBRARY.parent, flags={"isolation": "none"})).add_file(file)
    if problems:
        raise SystemExit(f"{file}: {problems[0].message}")
    return [each.recipe for each in found]


def opening(file: Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def opsets_without_failure(recipe: Recipe, exporter: str) -> str:
    """The opsets at which ``recipe`` declares no known failure with ``exporter``."""
    first = FIRST_DYNAMO_OPSET if exporter == "dynamo" else DEFAULT_OPSETS[0]
    opsets = recipe.opsets or tuple(range(first, OPEN_END + 1))
    if recipe.exporters is None and exporter == "dynamo":
        opsets = tuple(opset for opset in opsets if opset >= first)  # below, dynamo runs only where a recipe asks for it
    if not opsets or exporter not in (recipe.exporters or OF_TORCH):
        return "·"
    return format_opsets(tuple(opset for opset in opsets if not recipe.expectations(exporter, opset))) or "–"


def rows(file: Path) -> Iterator[str]:
    """The rows of a file: it is named and described in the first one."""
    name, shows = f"[{file.name}]({file.parent.name}/{file.name})", opening(file).replace("``", "`")
    for recipe in recipes_in(file):
        called = f"`{recipe.name}`" + (f" (on request: {recipe.manual})" if recipe.manual else "")
        yield f"| {' | '.join([name, shows, called, *(opsets_without_failure(recipe, each) for each in OF_TORCH)])} |\n"
        name = shows = ""


def index() -> str:
    """The whole page."""
    parts = [HEAD]
    for group in groups():
        parts.append(f"\n## {group.name}\n\n{opening(group / '__init__.py')}\n\n")
        if group.name == "operators":
            parts.append(OPERATORS)
        else:
            parts += [COLUMNS, *(row for file in files_of(group) for row in rows(file))]
    return "".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if INDEX.read_text(encoding="utf-8") == index() else f"{INDEX} is not up to date: tox run -e index")
    INDEX.write_text(index(), encoding="utf-8")
