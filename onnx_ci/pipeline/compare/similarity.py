"""What people look at after a lossy stage: cosine similarity, SQNR, and whether the top class is the same.

None of it decides: a cosine of 0.99 can hide a wrong layer, and of two classes that are nearly tied either can win.
"""

from __future__ import annotations

import math

import torch

from onnx_ci.results.records import Similarity


def similarity(got: torch.Tensor, exact: torch.Tensor, judged: torch.Tensor, noise: float) -> Similarity:
    """Compare a floating output with its reference.

    Args:
        got: the output, in float64.
        exact: the reference, of the same shape, in float64.
        judged: which elements are compared; the others count as equal.
        noise: two values that are closer than this are a tie.
    """
    exact = exact.nan_to_num(0.0, 0.0, 0.0)
    got = torch.where(judged, got, exact)
    signal, power, error = (float((tensor**2).sum()) for tensor in (exact, got, got - exact))
    lengths = math.sqrt(signal * power)
    same, clear = _top_class(got, exact, noise)
    return Similarity(
        cosine=float((got * exact).sum()) / lengths if lengths else float(signal == power),
        sqnr=math.inf if not error else 10 * math.log10(signal / error) if signal else -math.inf,
        agreement=_share(same, clear),
        ties=0 if clear is None else int((~clear).sum()),
    )


def agreement(same: torch.Tensor, judged: torch.Tensor) -> Similarity:
    """Compare an output of integers or booleans.

    Args:
        same: which elements are equal.
        judged: which elements are compared; the others are ties.
    """
    return Similarity(cosine=None, sqnr=None, agreement=_share(same, judged), ties=int((~judged).sum()))


def _top_class(got: torch.Tensor, exact: torch.Tensor, noise: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """For each row along the last axis, whether the largest element is the same, and whether it is clear which one it is."""
    if exact.dim() < 2 or exact.shape[-1] < 2:
        return torch.empty(0), None
    top = exact.topk(2, dim=-1)
    return got.argmax(-1) == top.indices[..., 0], (top.values[..., 0] - top.values[..., 1]) > noise


def _share(same: torch.Tensor, clear: torch.Tensor | None) -> float | None:
    return None if clear is None or not bool(clear.any()) else float(same[clear].double().mean())
