"""What tensors hold: their types, whether their values are equal and finite, and numpy arrays of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from onnx_ir import DataType
from onnx_ir.tensor_adapters import TorchTensor, to_torch_dtype

Outputs = tuple[torch.Tensor, ...]
"""A model's outputs: the tensors among them, flattened, on the CPU."""


def on_cpu(tensors: Sequence[torch.Tensor]) -> Outputs:
    """``tensors`` on the CPU, detached."""
    return tuple(tensor.detach().cpu() for tensor in tensors)


def dtype_name(tensor: torch.Tensor) -> str:
    """The tensor's data type as torch names it, such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def is_float8(tensor: torch.Tensor) -> bool:
    """Whether the tensor has an 8-bit floating type, which torch can store and convert but supports in few operators."""
    return tensor.is_floating_point() and tensor.itemsize == 1


def has_noise(tensor: torch.Tensor) -> bool:
    """Whether the tensor has rounding errors for which its comparison needs a tolerance.

    Integers and booleans are compared exactly. So are 8-bit floats, but a few of them may be one step apart: see
    :mod:`onnx_ci.pipeline.compare.drift`.
    """
    return tensor.is_floating_point() and not is_float8(tensor)


def is_finite(tensor: torch.Tensor) -> torch.Tensor:
    """:func:`torch.isfinite`, for 8-bit floats too."""
    return torch.isfinite(tensor.float() if is_float8(tensor) else tensor)


def is_all_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite, without a tensor that says so of each."""
    if not has_noise(tensor) or not tensor.numel():
        return bool(is_finite(tensor).all())
    return all(math.isfinite(end) for end in tensor.aminmax())


BLOCK = 2**16
"""How many elements a block has. What is computed of one stays in the processor's cache, and takes no new pages of memory."""


def blocks(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[tuple[int, ...], Sequence[torch.Tensor]]]:
    """Tensors of one shape in parts along the outermost axis that is long enough, each with the index at which it begins."""
    shape, count = tensors[0].shape, tensors[0].numel()
    if count <= BLOCK:
        yield (0,) * len(shape), tensors
        return
    axis = next((axis for axis, size in enumerate(shape) if size * BLOCK >= count), shape.index(max(shape)))
    rows = max(1, BLOCK * shape[axis] // count)
    for number, parts in enumerate(zip(*(tensor.split(rows, axis) for tensor in tensors), strict=True)):
        yield tuple(number * rows if each == axis else 0 for each in range(len(shape))), parts


def has_same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether tensors of the same shape have equal values; NaN equals NaN."""
    if not is_float8(first) and torch.equal(first, second):
        return True
    return first.is_floating_point() and bool(((first == second) | (first.isnan() & second.isnan())).all())


def differences(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """How far the elements of two tensors are apart; infinitely where only one of them is NaN."""
    a, b = first.flatten().double(), second.flatten().double()
    is_same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(is_same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)


def are_near(tensor: torch.Tensor, other: torch.Tensor, share: float = 1e-3) -> bool:
    """Whether tensors of the same shape are equal to a share of the largest value. Files are compared more strictly."""
    if not has_noise(tensor):
        return torch.equal(tensor, other)
    return torch.allclose(tensor.double(), other.double(), rtol=0.0, atol=largest_value(tensor) * share, equal_nan=True)


def largest_value(tensor: torch.Tensor) -> float:
    """The largest finite absolute value; 0 if there is none."""
    if has_noise(tensor) and tensor.numel():
        low, high = (abs(end.item()) for end in tensor.detach().aminmax())
        if math.isfinite(low) and math.isfinite(high):
            return float(max(low, high))
    finite = tensor.double()[is_finite(tensor)].abs()  # torch 2.9 has no index for 8-bit floats
    return finite.max().item() if finite.numel() else 0.0


def index_at(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of the element at ``place`` of a flattened tensor."""
    return tuple(map(int, np.unravel_index(place, tuple(shape))))  # torch's imports sympy: 0.14 s in each process


def same_shapes(first: Outputs, second: Outputs) -> bool:
    """Whether two runs return as many outputs, of the same shapes."""
    return [tensor.shape for tensor in first] == [tensor.shape for tensor in second]


def as_array(tensor: torch.Tensor) -> Any:
    """The tensor as a numpy array. A type that numpy does not have becomes the extension type that onnx uses."""
    return TorchTensor(tensor.contiguous()).numpy()


def in_declared_type(tensor: torch.Tensor, element_type: int) -> torch.Tensor:
    """``tensor`` in the floating type with ONNX's number in a file. Any other pair of types leaves it as it is."""
    try:
        dtype = to_torch_dtype(DataType(element_type))
    except (TypeError, ValueError):  # a type that torch does not have, or a number that is not a type
        return tensor
    return tensor.to(dtype) if tensor.is_floating_point() and dtype.is_floating_point else tensor


def as_tensor(array: Any) -> torch.Tensor:
    """The inverse of :func:`as_array`. The tensor has its own memory. Scalars are accepted, too."""
    array = np.array(array)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    bits = array.view(f"uint{8 * array.itemsize}")
    return torch.from_numpy(bits).view(to_torch_dtype(DataType.from_numpy(array.dtype)))
