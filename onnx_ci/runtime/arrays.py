"""Tensors of torch as arrays of numpy and back, bfloat16 included, which numpy knows by its bits only."""

from __future__ import annotations

from typing import Any

import torch


def as_array(tensor: torch.Tensor) -> Any:
    """The tensor's values as a numpy array; bfloat16 as the type that onnx uses for it."""
    tensor = tensor.contiguous()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)


def as_tensor(array: Any) -> torch.Tensor:
    """The inverse of :func:`as_array`, with memory of its own; also for a number that is no array."""
    import numpy

    array = numpy.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(numpy.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)
