"""Conversion between torch tensors and numpy arrays, also of types that numpy does not have: bfloat16 and 8-bit floats."""

from __future__ import annotations

from typing import Any

import torch
from onnx_ir import DataType
from onnx_ir.tensor_adapters import TorchTensor, to_torch_dtype


def as_array(tensor: torch.Tensor) -> Any:
    """The tensor as a numpy array. A type that numpy does not have becomes the extension type that onnx uses."""
    return TorchTensor(tensor.contiguous()).numpy()


def in_declared_type(tensor: torch.Tensor, element_type: int) -> torch.Tensor:
    """``tensor`` in the floating type that a file declares for it. Any other pair of types leaves it as it is.

    Args:
        element_type: ONNX's number of the declared type.
    """
    try:
        dtype = to_torch_dtype(DataType(element_type))
    except (TypeError, ValueError):  # a type that torch does not have, or a number that is not a type
        return tensor
    return tensor.to(dtype) if tensor.is_floating_point() and dtype.is_floating_point else tensor


def as_tensor(array: Any) -> torch.Tensor:
    """The inverse of :func:`as_array`. The tensor has its own memory. Scalars are accepted, too."""
    import numpy

    array = numpy.array(array)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    bits = array.view(f"uint{8 * array.itemsize}")
    return torch.from_numpy(bits).view(to_torch_dtype(DataType.from_numpy(array.dtype)))
