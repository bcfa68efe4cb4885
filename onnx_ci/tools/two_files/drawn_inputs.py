"""Random inputs for a file's signature, in the order of trying: what most files accept comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from onnx_ir import DataType
from onnx_ir.tensor_adapters import to_torch_dtype

from onnx_ci.errors import ConfigurationError, first_line
from onnx_ci.onnx_model.signature import Value
from onnx_ci.pipeline.inputs.probes import EXAMPLE
from onnx_ci.results.json_data import shortened
from onnx_ci.tools.two_files.interfaces import Sizes, axis_variables

_SIZES = (None, 8, 16, 32, 64, 128, 224, 1)
"""The sizes of dynamic axes, in the order of trying; ``None`` for small ones that differ from each other."""
_INTEGERS = (10, 2, 1)
"""Random integers are below this number, in the order of trying: an index may only have few values."""
_FACTORS = (1.0, 0.5, 0.25)
"""Factors of random numbers, in the order of trying, where a quantized file may not have been calibrated for large ones."""

Range = tuple[float, float]
"""The lowest and highest number of an input."""


def drawn_inputs(
    values: Sequence[Value], sizes: Sizes, ranges: Mapping[str, Range], *, is_calibrated: bool
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Random inputs for a signature with their names, in the order of trying.

    Args:
        sizes: sizes of dynamic axes, of which the first is used; others are chosen.
        ranges: ranges that inputs were calibrated for, by their names.
        is_calibrated: whether smaller numbers are tried, too, because a file was calibrated for a range.

    Raises:
        ConfigurationError: torch has no such type, or the shapes are too large.
    """
    has_integers = any(not _dtype(value).is_floating_point for value in values)
    factors = _FACTORS if is_calibrated else _FACTORS[:1]
    tried = set()
    for chosen, shapes in _shapes(values, sizes):
        for below in _INTEGERS if has_integers else _INTEGERS[:1]:
            words = [f"{label}={size}" for label, size in chosen.items()]
            name = ",".join(words + ([f"integers below {below}"] if has_integers else [])) or EXAMPLE
            if name not in tried:
                tried.add(name)
                for factor in factors:
                    pairs = zip(values, shapes, strict=True)
                    yield name, [_random(value, shape, below, factor, ranges.get(value.name)) for value, shape in pairs]


def _shapes(values: Sequence[Value], sizes: Sizes) -> Iterator[tuple[dict[str, int], list[list[int]]]]:
    """Sizes of the dynamic axes by their names, and the shapes of the inputs at these sizes."""
    variables = axis_variables(values)
    has_batch = len(set(variables.positions.values())) > 1
    for common in _SIZES if variables.positions else (None,):
        chosen: dict[str, int] = {}
        for place, (label, axis) in enumerate(variables.positions.items()):
            # Beside other axes, the first one is usually a batch, of which a large one takes long.
            is_large_batch = common is not None and common > 1 and has_batch and axis == 0
            size = 2 + place if common is None or is_large_batch else common
            chosen[label] = sizes[label][0] if label in sizes else size
        shapes = variables.shapes(values, chosen)
        if shapes is not None:
            yield chosen, shapes


def _random(value: Value, shape: Sequence[int], below: int, factor: float, limits: Range | None) -> torch.Tensor:
    try:
        return _numbers(_dtype(value), shape, below, factor, limits)
    except (RuntimeError, MemoryError) as error:  # too many elements for torch to count, or for the memory
        message = f"input {value.name!r} cannot be made in the shape {shortened([*shape])}: {first_line(error)}"
        raise ConfigurationError(f"{message}; choose smaller sizes (--size), or give inputs (--inputs)") from None


def _dtype(value: Value) -> torch.dtype:
    try:
        return to_torch_dtype(DataType(value.element_type))
    except (ValueError, TypeError):
        raise ConfigurationError(f"input {value.name!r} has a type that torch lacks: give inputs (--inputs)") from None


def _numbers(dtype: torch.dtype, shape: Sequence[int], below: int, factor: float, limits: Range | None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point and limits is not None:  # half of the range: other probes have larger values
        low, high = (factor * each / 2 for each in limits)
        return (low + (high - low) * torch.rand(shape, generator=generator)).to(dtype)
    if dtype.is_floating_point:
        return (factor * torch.randn(shape, generator=generator)).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else below, shape, generator=generator).to(dtype)
