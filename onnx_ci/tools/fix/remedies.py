"""What can be tried with a failing cell: other settings of its export, and changed text of the project's files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx_ci.collection.recipe import Recipe
from onnx_ci.matrix.plan import CellSpec
from onnx_ci.opsets import FIRST_DYNAMO_OPSET, OF_TORCH, UNOPTIMIZED
from onnx_ci.text import listed

_LOWEST_OPSET = 7
"""The lowest that ``torch.onnx.export`` writes."""


def text_of(file: Path) -> str:
    """The source code in a file, with its ends of lines as they are.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not in UTF-8.
    """
    return file.read_bytes().decode()


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change of a cell, or of the code that its model runs."""

    words: str
    """What it is: ``opset 18``, ``exporter dynamo at opset 18``, ``optimize=False``; for a changed line, what is done to it."""
    exporter: str | None = None
    opset: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    has_larger_example: bool = False
    """Whether the example has another size where the recipe's has 1 along a dynamic axis."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The text of each changed file, by its absolute path."""

    def cell(self, spec: CellSpec) -> CellSpec:
        """The changed cell, without the failures that the recipe expects of the other one."""
        cell = spec.cell
        exporter, opset = self.exporter or cell.exporter, self.opset or cell.opset
        return replace(spec, cell=replace(cell, exporter=exporter, opset=opset), expectations=())

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with the changed options."""
        return replace(recipe, export_options={**recipe.export_options, **self.options}) if self.options else recipe

    def difference(self, root: Path) -> str:
        """The changes of files as a unified diff, with paths relative to ``root`` where they are below it."""
        lines: list[str] = []
        for file, text in self.texts.items():
            path = Path(file)
            shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else file
            before = text_of(path).splitlines(keepends=True)
            lines += difflib.unified_diff(before, text.splitlines(keepends=True), f"a/{shown}", f"b/{shown}", n=1)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def same_export(spec: CellSpec, axes_of_one: Sequence[str] = ()) -> list[Remedy]:
    """What can be tried without a change of the model, the exporter and the opset: another example, an option.

    The example may be wrong along the dynamic axes ``axes_of_one``, where it has size 1.
    """
    words = f"an example larger than 1 along {listed(map(repr, axes_of_one))}"
    larger = [Remedy(words=words, has_larger_example=True)] if axes_of_one else []
    options = UNOPTIMIZED.get(spec.cell.exporter, {})
    return [*larger, *(Remedy(words=f"{name}={value}", options={name: value}) for name, value in options.items())]


def other_exports(spec: CellSpec, newest_opset: int) -> list[Remedy]:
    """Other opsets up to the newest that can be judged here, the nearest first, and the other exporter."""
    exporter, opset = spec.cell.exporter, spec.cell.opset
    remedies = [
        Remedy(words=f"opset {other}", opset=other)
        for other in dict.fromkeys((opset + 1, opset - 1, FIRST_DYNAMO_OPSET, newest_opset))
        if other != opset and _LOWEST_OPSET <= other <= newest_opset
    ]
    for other in OF_TORCH:
        if exporter in OF_TORCH and other != exporter:
            at = max(opset, FIRST_DYNAMO_OPSET) if other == "dynamo" else opset
            remedies.append(Remedy(words=f"exporter {other} at opset {at}", exporter=other, opset=at))
    return remedies
