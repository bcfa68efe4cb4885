"""The float64 reference: a model run with its weights, inputs and own casts in float64.

:mod:`.reference` compares what it returns with the model's own outputs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

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
    something else where its operators are watched, its own casts are not replaced. The run repeats the ``decisions`` that the
    model takes in its own type, or has no outputs. What ``within`` returns for the call is the context in which that runs; it
    is called again if a large model has to run with all weights converted at once.
    """
    tensors = _tensors_of(copies.pristine)
    device_type = next((tensor.device.type for tensor in tensors), "cpu")
    mode = _KeepFloat64(coarsest_eps(copies.pristine), device_type)
    default_dtype = torch.get_default_dtype()
    own_type = max((t.dtype for t in tensors if has_noise(t)), key=lambda each: torch.finfo(each).eps, default=default_dtype)
    watching = (_autocast_reported_to(mode), _types_as_of(own_type), mode) if copies.is_watchable else ()
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
    if not copies.is_watchable and within is contextlib.nullcontext:
        # To which types the model casts is seen in a run whose numbers are of no use.
        autocast = _autocast_reported_to(mode)
        with contextlib.suppress(Exception), copies.in_float64(inputs) as call, force_eager(), autocast, mode:
            run(call)
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
    """:func:`run_in_float64`, or in the model's own type if it cannot run in float64; ``None`` if the model fails."""
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
        """The machine epsilon of the coarsest type that the model casts to or computes in; 0 if it is its own."""

    def run(self, call: OperatorCall) -> Any:
        """Run an operator with float64 as its data type, which is a separate argument, never nested."""
        if call.args and all(isinstance(each, torch.dtype) for each in call.args):  # such as promote_types, which is a question
            return call.run()
        kwargs = {name: self._widened(value) for name, value in call.kwargs.items()}
        result = call.operator(*map(self._widened, call.args), **kwargs)
        if call.operator is torch.ops.aten.lift_fresh.default:  # what torch.tensor makes, of a type that no operator gets
            return result.to(self._widened(result.dtype))
        computed = {each.dtype for each in tensor_leaves(call.args)} & {torch.float32}  # a cast alone rounds alike anywhere
        if isinstance(result, torch.Tensor) and result.dtype in {torch.float16, torch.bfloat16, *computed}:
            eps = torch.finfo(result.dtype).eps
            self.coarser = max(self.coarser, eps if eps > self._coarsest else 0.0)
        return result

    def _widened(self, value: Any) -> Any:
        if not isinstance(value, torch.dtype) or not value.is_floating_point:
            return value
        return torch.float64 if torch.finfo(value).eps <= self._coarsest else value


def _autocast_reported_to(mode: _KeepFloat64) -> AbstractContextManager[object]:
    """Report the half-precision type to which ``torch.autocast`` casts. It leaves float64 as it is, so no operator shows it.

    A mode for the functions of torch would see it, too, but torch's own layers compute other values under one.
    """
    as_usual = torch.autocast.__enter__

    def reporting(self: torch.autocast) -> Any:
        entered = as_usual(self)  # type: ignore[no-untyped-call]
        if torch.is_autocast_enabled(mode.device_type):
            mode.coarser = max(mode.coarser, torch.finfo(torch.get_autocast_dtype(mode.device_type)).eps)
        return entered

    return patch.object(torch.autocast, "__enter__", reporting)


@contextlib.contextmanager
def _types_as_of(own_type: torch.dtype) -> Iterator[None]:
    """Let code that asks for types get those of the model's own run: where a tensor is float64, its own type.

    ``x.dtype == torch.float32``, ``torch.finfo(x.dtype).eps``, ``isinstance(x, torch.FloatTensor)`` and the like decide as they
    do there. Of a tensor that the model itself converts to a finer type than its own, the answer is the same as of all others.
    """
    class_name = torch.empty(0, dtype=own_type).type().removeprefix("torch.")
    dtype: Any = torch.Tensor.dtype
    class_of, result_type = torch.Tensor.type, torch.result_type

    def asked(answer: Any) -> Any:
        if answer is not torch.float64 or sys._getframe(2).f_globals.get("__name__", "").startswith(("onnx_ci.", "torch._")):
            return answer
        return own_type

    def own_class(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = class_of(tensor, *args, **kwargs)
        return answer.replace("DoubleTensor", class_name) if isinstance(answer, str) else answer

    replaced = [
        (torch.Tensor, "dtype", property(lambda tensor: asked(dtype.__get__(tensor)))),
        (torch.Tensor, "type", own_class),
        (torch, "result_type", lambda *tensors: asked(result_type(*tensors))),
        (torch, class_name, torch.DoubleTensor),
        (torch, "DoubleTensor", getattr(torch, class_name)),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        yield


def coarsest_eps(call: Call) -> float:
    """The machine epsilon of the coarsest floating type among a call's weights and arguments."""
    return max((torch.finfo(t.dtype).eps for t in _tensors_of(call) if has_noise(t)), default=torch.finfo(torch.float32).eps)


def _tensors_of(call: Call) -> list[torch.Tensor]:
    return [*weights_of(call.model), *tensor_leaves((call.args, call.kwargs))]
