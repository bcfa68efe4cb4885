"""What runtimes round more than PyTorch. A right file may differ by more than PyTorch's own rounding because of it.

- Long sums. PyTorch adds in pairs, so its error hardly grows with the number of terms. Runtimes add one term after another,
  in a few running sums. Their error grows with the number, fastest if the terms are equal, as in an image without content.
  How large it becomes depends on the terms. So a run of the model in float64 adds them in that way: a factor for the number of
  terms would be too small for equal terms, and hide faults for others.
- Sigmoid. Runtimes approximate it with the same error everywhere, however close to zero the result is.

This takes one more run, so it is measured only if a cell fails without it (``Probe.refinements``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch._decomp import decomposition_table  # most of these are not in torch.export.default_decompositions()

from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.operators import Intervention, OperatorCall
from onnx_ci.pipeline.model.running import in_small_operators
from onnx_ci.pipeline.model.tensors import has_noise
from onnx_ci.pipeline.reference.float64 import run_within
from onnx_ci.pipeline.reference.reference import Reference, with_noise_of

METHOD = "runtime rounding"
"""The method of a reference whose noise includes this rounding."""
LONG = 128
"""Shorter sums round alike everywhere: PyTorch adds them one term after another, too."""
RUNNING_SUMS, OF_ROWS = (4, 16), (1, 4)
"""How many running sums a runtime has: as many as a vector register has numbers, or several registers. If the terms of a sum
are not adjacent in memory, it has a single one. The larger of the two errors counts, because either may be zero by chance."""

aten = torch.ops.aten


def with_runtime_rounding(copies: Copies, like: Reference, inputs: Sequence[torch.Tensor] | None = None) -> Reference:
    """``like`` with the rounding of runtimes in its noise; itself if nothing is rounded more than by PyTorch."""
    is_float64 = like.eps <= torch.finfo(torch.float64).eps
    modes: list[_AsRuntimes] = []  # one for each attempt

    def within(_: Call) -> _AsRuntimes:
        modes.append(_AsRuntimes(numpy.float64 if is_float64 else numpy.float32))  # half precision is added in float32
        return modes[-1]

    with in_small_operators():
        outputs = run_within(copies, like.own, inputs, within, like.decisions)
        if outputs is None or not modes[-1].has_rounded:
            return like
        # A model may compute something else in small operators, or while these are watched. That is not rounding.
        unrounded = run_within(copies, like.own, inputs, lambda _: Intervention(), like.decisions)
    return with_noise_of(like, [outputs], METHOD, unrounded=unrounded)


class _AsRuntimes(Intervention):
    """Adds to long sums and sigmoids the errors that runtimes make in them when they compute in ``dtype``."""

    def __init__(self, dtype: type[numpy.floating[Any]]) -> None:
        super().__init__()
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(0)
        self.has_rounded = False
        """Whether there was a long sum or a sigmoid."""

    def run(self, call: OperatorCall) -> Any:
        """Run an operator, or those that it consists of. The result of a sum or sigmoid gets an error."""
        with self:
            decomposed = _IN_SUMS.get(call.operator, call.operator.decompose)(*call.args, **call.kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        result = call.run()
        if call.operator is aten.sigmoid.default and has_noise(result):
            self.has_rounded = True
            signs = torch.randint(0, 2, result.shape, generator=self._generator).to(result.device, result.dtype) * 2 - 1
            return result + signs * float(numpy.finfo(self._dtype).eps)
        if call.operator not in _SUMS or not has_noise(result):
            return result
        terms, dim = call.args[0], call.args[1] if len(call.args) > 1 else None
        axes = [axis % terms.dim() for axis in ([dim] if isinstance(dim, int) else dim or range(terms.dim()))]
        count = numpy.prod([terms.shape[axis] for axis in axes], dtype=int)
        if count < LONG or not result.numel():
            return result
        self.has_rounded = True
        error = self._error_of_sums(terms, axes, is_cumulative=call.operator is aten.cumsum.default)
        return result + (error.reshape(result.shape) / (count if call.operator in _MEANS else 1)).to(result.dtype)

    def _error_of_sums(self, terms: torch.Tensor, axes: Sequence[int], *, is_cumulative: bool) -> torch.Tensor:
        """The error of the sums over ``axes``; if ``is_cumulative``, of all partial sums along the single axis."""
        is_last = terms.dim() - 1 in axes
        # In numpy, because the run in float64 replaces torch's casts to float32.
        values = numpy.moveaxis(terms.detach().cpu().double().numpy(), axes, range(-len(axes), 0))
        values = values.reshape(*values.shape[: values.ndim - len(axes)], -1).astype(self._dtype)
        with numpy.errstate(all="ignore"):
            if is_cumulative:
                exact = numpy.add.accumulate(values, axis=-1, dtype=numpy.float64)
                error = numpy.moveaxis(numpy.add.accumulate(values, axis=-1) - exact, -1, axes[0])
            else:
                exact = values.sum(axis=-1, dtype=numpy.float64)
                fewer, more = (_added(values, count) - exact for count in (RUNNING_SUMS if is_last else OF_ROWS))
                error = numpy.where(abs(fewer) > abs(more), fewer, more)
        return torch.from_numpy(numpy.where(numpy.isfinite(error), error, 0.0)).to(terms.device)


def _added(terms: numpy.ndarray, running: int) -> numpy.ndarray:
    """The sums along the last axis, added in so many running sums."""
    whole = terms.shape[-1] // running * running
    rows = terms[..., :whole].reshape(*terms.shape[:-1], -1, running)
    sums = numpy.add.accumulate(rows, axis=-2)[..., -1, :]
    return numpy.add.accumulate(numpy.concatenate([sums, terms[..., whole:]], axis=-1), axis=-1)[..., -1]


_MEANS = frozenset((aten.mean.default, aten.mean.dim))
_SUMS = _MEANS | {aten.sum.default, aten.sum.dim_IntList, aten.cumsum.default}


def _var_mean(
    x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    axes = [*range(x.dim())] if dim is None else [dim] if isinstance(dim, int) else [*dim]
    mean = x.mean(axes, keepdim=True)
    squares = ((x - mean) ** 2).sum(axes, keepdim=keepdim)
    count = x.numel() // max(1, mean.numel())
    return squares / (count - (1 if correction is None else correction)), mean if keepdim else mean.squeeze(axes)


def _std_mean(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = _var_mean(*args, **kwargs)
    return variance.sqrt(), mean


def _matrix_product(left: torch.Tensor, right: torch.Tensor) -> Any:
    """Only with a single vector: PyTorch multiplies matrices as runtimes do, one term after another."""
    return (left * right.mT).sum(-1, keepdim=True) if right.shape[-1] == 1 else NotImplemented


_DECOMPOSED = (
    *(aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm, aten._native_batch_norm_legit, aten._softmax),
    *(aten._safe_softmax, aten._log_softmax, aten.logsumexp, aten.linalg_vector_norm, aten.mse_loss, aten.addmm),
    *(aten.baddbmm, aten.mv, aten.dot),
)
_IN_SUMS: dict[Any, Callable[..., Any]] = {
    **{operator.default: decomposition_table[operator.default] for operator in _DECOMPOSED},
    aten._native_batch_norm_legit.no_stats: decomposition_table[aten._native_batch_norm_legit.no_stats],
    aten.var_mean.correction: _var_mean,
    aten.var.correction: lambda *args, **kwargs: _var_mean(*args, **kwargs)[0],
    aten.std_mean.correction: _std_mean,
    aten.std.correction: lambda *args, **kwargs: _std_mean(*args, **kwargs)[0],
    aten.mm.default: _matrix_product,
    aten.bmm.default: _matrix_product,
}
"""Operators that contain sums, written with ``sum``. Like ``decompose``, these functions may return ``NotImplemented``."""
