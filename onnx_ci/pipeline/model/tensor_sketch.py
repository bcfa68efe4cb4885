"""A sketch of tensors: a few numbers that identify them and that every machine computes alike, except for the last digits.

A digest of the bytes would not do, because the same seed gives other last digits on another processor. Projections of all
values onto fixed directions change only as much as the values do.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable

import torch

from onnx_ci.pipeline.model.module import numbers_of
from onnx_ci.results.records import TensorSketch

_DIRECTIONS = (3, 5, 7, 11)
_WIDTH = 512
"""The number of values in a row; rows are reduced first."""
_DIGITS = 9


def sketch(tensors: Iterable[torch.Tensor]) -> TensorSketch:
    """The sketch of ``tensors``, in their order, without those whose numbers cannot be read."""
    tensors = [numbers for numbers in map(numbers_of, tensors) if numbers is not None]
    layout = hashlib.sha256("".join(f"{tensor.dtype} {list(tensor.shape)};" for tensor in tensors).encode())
    norms, values = _rows(tensors)
    if not bool(torch.isfinite(norms).all()):  # masks contain infinities
        norms, values = _rows(tensors, is_finite=False)
    positions = torch.arange(len(values), dtype=torch.float64) + 1
    factors = torch.stack([2 * (positions * math.sqrt(prime) % 1) - 1 for prime in _DIRECTIONS])
    return TensorSketch(
        tensors=len(tensors),
        values=sum(tensor.numel() for tensor in tensors),
        layout=layout.hexdigest()[:8],
        norm=_rounded(math.sqrt(float((norms**2).sum()))),
        projections=tuple(map(_rounded, (factors @ values).tolist())),
    )


def _rows(tensors: Iterable[torch.Tensor], *, is_finite: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of each row, and its projection onto a fixed direction. The last row of a tensor can be shorter."""
    norms, values = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.float64)]
    for tensor in tensors:
        flat = tensor.cpu()
        flat = torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat
        flat = (flat if flat.dtype in (torch.float32, torch.float64) else flat.to(torch.float32)).flatten()
        whole = len(flat) // _WIDTH * _WIDTH
        for part in (flat[:whole].view(-1, _WIDTH), flat[whole:].view(1, -1)):
            if part.numel():
                numbers = part if is_finite else torch.nan_to_num(part, nan=2.0, posinf=1.0, neginf=-1.0)
                norms.append(torch.linalg.vector_norm(numbers, dim=1).double())
                values.append((numbers @ _pattern(part.dtype)[: part.shape[1]]).double())
    return torch.cat(norms), torch.cat(values)


# The fractional parts of multiples of an irrational number are evenly spread and never repeat, on every machine.


@functools.cache
def _pattern(dtype: torch.dtype) -> torch.Tensor:
    return (2 * ((torch.arange(_WIDTH, dtype=torch.float64) + 1) * math.sqrt(2) % 1) - 1).to(dtype)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
