"""The dynamic axes of a file's inputs: their names, and the variables that their sizes follow from. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx_ci.collection.axis_sizes import AxisSize, axes_of_file
from onnx_ci.onnx_model.signature import Value

Sizes = Mapping[str, tuple[int, ...]]
"""Sizes of dynamic axes by name: the first is that of the example, the others are tried, too."""


def axis_label(value: Value, axis: int) -> str:
    """The name of a dynamic axis; for an unnamed one, ``input[axis]``."""
    dim = (value.dims or ())[axis]
    return dim if isinstance(dim, str) else f"{value.name}[{axis}]"


@dataclass(frozen=True, kw_only=True)
class AxisVariables:
    """What the sizes of the dynamic axes of a file's inputs follow from."""

    sizes: Mapping[str, AxisSize]
    """The size of each dynamic axis, by :func:`axis_label`."""
    positions: Mapping[str, int]
    """The variables, each with the first axis at which it occurs."""

    def shapes(self, values: Iterable[Value], chosen: Mapping[str, int]) -> list[list[int]] | None:
        """The inputs' shapes for sizes of the variables; ``None`` if an axis would have a size below 1."""
        shapes = []
        for value in values:
            shape: list[int] = []
            for axis, dim in enumerate(value.dims or ()):
                size = dim if isinstance(dim, int) else self.sizes[axis_label(value, axis)].at(chosen)
                if size is None or (size < 1 and not isinstance(dim, int)):
                    return None
                shape.append(size)
            shapes.append(shape)
        return shapes


def axis_variables(values: Sequence[Value]) -> AxisVariables:
    """What the sizes of the dynamic axes of inputs follow from."""
    places = [
        (axis_label(value, axis), axis)
        for value in values
        for axis, dim in enumerate(value.dims or ())
        if not isinstance(dim, int)
    ]
    sizes = axes_of_file(label for label, _ in places)
    positions: dict[str, int] = {}
    for label, axis in places:
        for name in sizes[label].names:
            positions[name] = min(axis, positions.get(name, axis))
    return AxisVariables(sizes=sizes, positions=positions)
