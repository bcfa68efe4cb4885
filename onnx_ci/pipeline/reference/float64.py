"""The float64 reference: a model run with its weights, inputs and own casts in float64.

:mod:`.reference` compares what it returns with the model's own outputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.module import weights_of
from onnx_ci.pipeline.model.operators import Intervention, OperatorCall, tensor_leaves
from onnx_ci.pipeline.model.running import force_eager, run
from onnx_ci.pipeline.model.tensors import Outputs, has_noise, same_shapes
from onnx_ci.pipeline.reference.own_decisions import RecordedDecisions


def run_in_float64(
    copies: Copies,
    own: Outputs,
    inputs: Sequence[torch.Tensor] | None,
    within: Callable[[Call], AbstractContextManager[object]] = contextlib.nullcontext,
    decisions: RecordedDecisions | None = None,
) -> tuple[Outputs | None, float]:
    """The outputs in float64, or ``None`` if the model cannot run in float64 or returns other shapes.

    The second value is the machine epsilon of the coarsest type that the model casts to, or 0. In a model that computes
    something else where its operators are watched, its own casts are neither seen nor replaced.

    Args:
        within: gets the call, which it may change, and returns the context in which the call runs. It is called again if a
            large model has to run with all weights converted at once.
        decisions: what the model decides in its own type. The run repeats these decisions; if that is impossible, there are no
            outputs.
    """
    tensors = _tensors_of(copies.pristine)
    device_type = next((tensor.device.type for tensor in tensors), "cpu")
    mode = _KeepFloat64(coarsest_eps(copies.pristine), device_type)
    default_dtype = torch.get_default_dtype()
    watching = (_autocast_reported_to(mode), mode) if copies.is_watchable else ()
    try:
        with copies.in_float64(inputs) as call:  # before the default type changes: it may rebuild the model
            torch.set_default_dtype(torch.float64)
            with contextlib.ExitStack() as stack:
                for context in (force_eager(), *watching, within(call), *((decisions.replayed(),) if decisions else ())):
                    stack.enter_context(context)
                outputs = run(call)
            exact: Outputs | None = outputs if same_shapes(outputs, own) else None
    except Exception:  # the model, and converting it to another type, can raise anything
        exact = None
    finally:
        torch.set_default_dtype(default_dtype)
    # Numbers are missing if the model has read a weight without an operator.
    pairs = [(a, b) for a, b in zip(exact or (), own, strict=False) if has_noise(b)]
    if (exact is None or any(bool((a.isnan() & ~b.isnan()).any()) for a, b in pairs)) and copies.convert_at_once():
        return run_in_float64(copies, own, inputs, within, decisions)
    return exact, mode.coarser


def run_within(
    copies: Copies,
    own: Outputs,
    inputs: Sequence[torch.Tensor] | None,
    within: Callable[[Call], AbstractContextManager[object]],
    decisions: RecordedDecisions | None = None,
) -> Outputs | None:
    """The outputs in float64, or in the model's own type if it cannot run in float64; ``None`` if the model fails.

    The arguments are those of :func:`run_in_float64`.
    """
    exact, _ = run_in_float64(copies, own, inputs, within, decisions)
    if exact is not None or decisions is not None:
        return exact
    call = copies.running(inputs)
    try:
        with within(call):
            outputs = run(call)
    except PrepareError:
        return None
    return outputs if same_shapes(outputs, own) else None


class _KeepFloat64(Intervention):
    """Replaces casts to the model's own floating type (``x.float()``, ``dtype=torch.float32``) by casts to float64.

    Otherwise, a cast in the model's code would round within the exact reference, or mix two types and raise. A cast to a type
    that is coarser than the model's own is part of the model and is kept.
    """

    def __init__(self, coarsest: float, device_type: str) -> None:
        super().__init__()
        self._coarsest, self.device_type = coarsest, device_type
        self.coarser = 0.0
        """The machine epsilon of the half-precision type that the model casts to; 0 if it does not."""

    def run(self, call: OperatorCall) -> Any:
        """Run an operator with float64 as its data type, which is a separate argument, never nested."""
        kwargs = {name: self._widened(value) for name, value in call.kwargs.items()}
        return call.operator(*map(self._widened, call.args), **kwargs)

    def _widened(self, value: Any) -> Any:
        if not isinstance(value, torch.dtype) or not value.is_floating_point:
            return value
        eps = torch.finfo(value).eps
        if eps <= self._coarsest:
            return torch.float64
        if value in (torch.float16, torch.bfloat16):
            self.coarser = max(self.coarser, eps)
        return value


@contextlib.contextmanager
def _autocast_reported_to(mode: _KeepFloat64) -> Iterator[None]:
    """Report the half-precision type to which ``torch.autocast`` casts. It leaves float64 as it is, so no operator shows it.

    A mode for the functions of torch would see it, too, but torch's own layers compute other values under one.
    """
    as_usual = torch.autocast.__enter__

    def reporting(self: torch.autocast) -> Any:
        entered = as_usual(self)  # type: ignore[no-untyped-call]
        if torch.is_autocast_enabled(mode.device_type):
            mode.coarser = max(mode.coarser, torch.finfo(torch.get_autocast_dtype(mode.device_type)).eps)
        return entered

    torch.autocast.__enter__ = reporting  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = as_usual  # type: ignore[method-assign]


def coarsest_eps(call: Call) -> float:
    """The machine epsilon of the coarsest floating type among a call's weights and arguments."""
    return max((torch.finfo(t.dtype).eps for t in _tensors_of(call) if has_noise(t)), default=torch.finfo(torch.float32).eps)


def _tensors_of(call: Call) -> list[torch.Tensor]:
    return [*weights_of(call.model), *tensor_leaves((call.args, call.kwargs))]
