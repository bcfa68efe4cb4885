"""What a fault in a line is: a module with one mistake, in a line that ends in ``# FAULT``, and its twin without it.

The twin is a subclass that replaces the method with the mistake, so both have the same weights.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import onnx_ci

TS13, TS14, TS15, TS16, TS17 = (("torchscript", opset) for opset in range(13, 18))
DYNAMO = ("dynamo", 18)

_MARK = re.compile(r"# FAULT[12]?$")


@dataclass(frozen=True, kw_only=True)
class LineFault:
    """A mistake in a line. ``wrong`` fails in each of ``cells``, which are exporters and opsets, and ``right`` passes."""

    name: str
    wrong: onnx_ci.Recipe
    right: onnx_ci.Recipe
    cells: tuple[tuple[str, int], ...]
    marks: frozenset[tuple[str, int]]
    """The names of the files and the lines that are marked: one, or two in a module with two mistakes."""


def line_fault(
    wrong: type[torch.nn.Module],
    right: type[torch.nn.Module],
    args: Callable[[], tuple[Any, ...]],
    axes: Mapping[str, str],
    *cells: tuple[str, int],
    marked: Callable[..., Any] | None = None,
    is_run_first: bool = False,
    **declared: Any,
) -> LineFault:
    """A fault of which ``wrong`` is the module and ``right`` the twin.

    Args:
        args: makes the example; it runs under the recipe's seed.
        axes: what the axes of each input and output are called, and ``_`` for those that are not dynamic: ``batch time _``.
            Names that are not parameters of ``forward`` are outputs.
        cells: the exporters and opsets at which the file of ``wrong`` is wrong.
        marked: the function or class in which the mistake is, if it is not ``wrong``.
        is_run_first: whether the recipe runs the model before it returns it, as scripts do that print an example.
        **declared: what both recipes declare.
    """

    def recipe(side: str, model: type[torch.nn.Module]) -> onnx_ci.Recipe:
        def made() -> tuple[torch.nn.Module, tuple[Any, ...]]:
            net, example = model().eval(), args()
            if is_run_first:
                net(*example)
            return net, example

        return onnx_ci.recipe(made, name=f"{wrong.__name__}.{side}", **declared)

    inputs = list(inspect.signature(wrong.forward).parameters)[1:]
    declared |= {"input_names": inputs, "output_names": [name for name in axes if name not in inputs]}
    declared["dynamic_axes"] = {name: _named(sizes) for name, sizes in axes.items() if _named(sizes)}
    return LineFault(
        name=wrong.__name__,
        wrong=recipe("wrong", wrong),
        right=recipe("right", right),
        cells=cells,
        marks=marks(wrong if marked is None else marked),
    )


def marks(code: Callable[..., Any]) -> frozenset[tuple[str, int]]:
    """The lines of a class or function that are marked, with the name of their file."""
    lines, first = inspect.getsourcelines(code)
    name = Path(inspect.getfile(code)).name
    return frozenset((name, number) for number, line in enumerate(lines, first) if _MARK.search(line.rstrip()))


def _named(sizes: str) -> dict[int, str]:
    return {axis: name for axis, name in enumerate(sizes.split()) if name != "_"}
