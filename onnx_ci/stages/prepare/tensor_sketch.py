"""A sketch of tensors: a few numbers that identify them and are the same on every machine, except for the last digits.

A digest of the bytes would not do: the same seed gives different last digits on another processor. Projections of all
values onto fixed directions change only as much as the values do.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable

import torch

from onnx_ci.results.records import TensorSketch

_DIRECTIONS = (3, 5, 7, 11)
_WIDTH = 512
"""The number of values in a row; rows are reduced first."""
_DIGITS = 9


def sketch(tensors: Iterable[torch.Tensor]) -> TensorSketch:
    """The sketch of ``tensors``, in their order."""
    layout, count, values, rows = hashlib.sha256(), 0, 0, 0
    squares, projected = 0.0, torch.zeros(len(_DIRECTIONS), dtype=torch.float64)
    for tensor in tensors:
        layout.update(f"{tensor.dtype} {list(tensor.shape)};".encode())
        count, values = count + 1, values + tensor.numel()
        flat = _numbers(tensor)
        whole = len(flat) // _WIDTH * _WIDTH
        for part in (flat[:whole].view(-1, _WIDTH), flat[whole:].view(1, -1)):
            if part.numel():
                norms = torch.linalg.vector_norm(part, dim=1)
                if not bool(torch.isfinite(norms).all()):  # masks contain infinities
                    part = torch.nan_to_num(part, nan=2.0, posinf=1.0, neginf=-1.0)
                    norms = torch.linalg.vector_norm(part, dim=1)
                squares += float((norms.double() ** 2).sum())
                projected += _factors(rows, len(part)) @ (part @ _pattern(part.dtype)[: part.shape[1]]).double()
                rows += len(part)
    return TensorSketch(
        tensors=count,
        values=values,
        layout=layout.hexdigest()[:8],
        norm=_rounded(math.sqrt(squares)),
        projections=tuple(map(_rounded, projected.tolist())),
    )


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The values as a flat floating-point tensor on the CPU."""
    flat = tensor.detach().cpu()
    flat = torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat
    return (flat if flat.dtype in (torch.float32, torch.float64) else flat.to(torch.float32)).flatten()


# The fractional parts of multiples of an irrational number are evenly spread and never repeat, on every machine.


@functools.cache
def _pattern(dtype: torch.dtype) -> torch.Tensor:
    """The factors of the values in a row, from -1 to 1."""
    return (2 * ((torch.arange(_WIDTH, dtype=torch.float64) + 1) * math.sqrt(2) % 1) - 1).to(dtype)


def _factors(first: int, count: int) -> torch.Tensor:
    """The factors of rows ``first``, ``first + 1``, …, for each direction."""
    positions = torch.arange(first, first + count, dtype=torch.float64) + 1
    return torch.stack([2 * (positions * math.sqrt(prime) % 1) - 1 for prime in _DIRECTIONS])


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
