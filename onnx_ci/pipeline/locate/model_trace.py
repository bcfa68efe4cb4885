"""What a model computes on one input, operator by operator, with the source line and the module of each operator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import _disable_current_modes

from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.operators import OperatorCall, tensor_leaves
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.running import in_small_operators
from onnx_ci.pipeline.model.tensors import are_near, has_noise, has_same_values
from onnx_ci.pipeline.reference.float64 import run_in_float64
from onnx_ci.pipeline.reference.reference import unit_in_last_place
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import Operator, Place, Role, Trace, is_uninitialized
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import SourceLine

_MOST_BYTES = 2**31
"""How much memory the values of a trace may take."""

_ROUNDING = 1e-12
"""How far equal results in float64 may be apart, relative to the largest value."""
_SEVERAL_NODES = frozenset((
    "addmm", "baddbmm", "native_layer_norm", "native_group_norm", "native_batch_norm", "_softmax", "_log_softmax", "gelu",
    "silu", "mish", "hardswish", "hardsigmoid", "softplus", "elu", "celu", "selu", "log_sigmoid_forward", "var", "std",
    "linalg_vector_norm", "addcmul", "addcdiv", "lerp",
))  # fmt: skip
"""Operators that exporters may write as several nodes. Without their steps, one of nine nodes of a ViT in which
``benchmarks/localisation.py`` plants a fault is not the first that is named."""
_MOST_DECOMPOSED = 2**22
"""The number of elements above which an operator is not decomposed."""


@dataclass(frozen=True, kw_only=True)
class TracedOperator:
    """One call of an operator."""

    name: str
    """``aten.addmm``."""
    inputs: tuple[int, ...]
    """The positions of its operands among the values of the trace. Weights and constants are not values."""
    outputs: tuple[int, ...]
    place: Place
    call: int
    """The number of the call in the model's code; the same for all steps of a larger operator."""
    is_part: bool
    """Whether it is only a step of the operator ``name``, which exporters may write in other steps."""


@dataclass(frozen=True, kw_only=True)
class TracedValue:
    """A tensor that the model computes."""

    tensor: torch.Tensor
    """In float64; integers and booleans as they are. Without elements if nothing has been written to its memory yet."""
    noise: float
    """How much the operator's own rounding in float32 changes it; 0 for integers and booleans."""
    operator: int | None
    """The position of the operator that computes it; ``None`` for an input."""
    same_as: int
    """The position of the first value with these elements in this order, of which it is a view or a copy; else its own."""


class ModelTrace:
    """What a model computes from its inputs, operator by operator.

    Of each value that depends on the inputs, the recorded run has the numbers and the noise. ``steps`` are the smaller
    operators that larger ones stand for, by the index of these.
    """

    def __init__(self, trace: Trace, steps: Mapping[int, Sequence[Operator]], outputs: Sequence[torch.Tensor]) -> None:
        self.operators: list[TracedOperator] = []
        self.values: list[TracedValue] = []
        """The inputs first."""
        self._recorded = trace.values
        self._positions: dict[int, int] = {}
        """The positions of the recorded values. The result of an operator has that of the step that computes it."""
        self._steps_of_call: dict[int, list[int]] = {}
        self._complete: set[int] = set()
        """The calls whose result a step has computed. A later one can equal it, too, as with a scale of 1."""
        for each in trace.inputs:
            self._add_value(each, (), None)
        for call, whole in enumerate(trace.of_kind(Operator)):
            for operator in (*steps.get(call, ()), whole):
                self._add(operator, whole, call)
        self.outputs = [self._position_of(tensor) for tensor in outputs]
        """The positions of the model's outputs among the values; ``None`` for one that no operator computes."""

    def taken_by(self, operator: int) -> Sequence[int]:
        """The values that a file may compute an operator from, by position: its inputs, and other steps of the same call."""
        traced = self.operators[operator]
        return list(dict.fromkeys((*traced.inputs, *self._steps_of_call.get(traced.call, ()))))

    def source_of(self, operator: int | None) -> SourceLine | None:
        """The line that calls the operator at a position, if both are known."""
        return None if operator is None else self.operators[operator].place.source

    def _add(self, operator: Operator, whole: Operator, call: int) -> None:
        """Add an operator if it depends on the inputs: a step of the operator ``whole``, or this itself."""
        inputs = tuple(dict.fromkeys(self._positions[each] for each in operator.operands if each in self._positions))
        is_followed = inputs or any(self._recorded[each].role is Role.CREATED for each in operator.results)
        results = dict.fromkeys((*operator.written, *operator.results) if is_followed else ())
        outputs = tuple(self._add_value(each, inputs, len(self.operators)) for each in results if each not in self._positions)
        if not outputs:
            return
        for result in whole.results if operator is not whole else ():
            tensor, _ = self._recorded[result].kept
            steps = ((each, self.values[each].tensor) for each in outputs)
            equal = (each for each, step in steps if step.shape == tensor.shape and _is_equal(tensor, step))
            if result not in self._positions and (position := next(equal, None)) is not None:
                self._positions[result] = position
        is_part = operator is not whole and self._positions.get(whole.results[0]) not in outputs
        if not is_part:
            self._complete.add(call)
        elif call not in self._complete:
            self._steps_of_call.setdefault(call, []).extend(outputs)
        name = whole.call.name.replace("::", ".")
        traced = TracedOperator(name=name, inputs=inputs, outputs=outputs, place=whole.place, call=call, is_part=is_part)
        self.operators.append(traced)

    def _add_value(self, value: int, inputs: Sequence[int], operator: int | None) -> int:
        position, (tensor, noise) = len(self.values), self._recorded[value].kept
        equal = (self.values[each].same_as for each in inputs if _is_equal(self.values[each].tensor, tensor))
        self.values.append(TracedValue(tensor=tensor, noise=noise, operator=operator, same_as=next(equal, position)))
        self._positions[value] = position
        return position

    def _position_of(self, output: torch.Tensor) -> int | None:
        """The position of the last value that equals an output. Of its copies and views, the first with a line counts."""
        for position, value in reversed(list(enumerate(self.values))):
            if value.tensor.shape == output.shape and has_same_values(value.tensor, output.to(value.tensor.dtype)):
                same = (each for each, other in enumerate(self.values) if other.same_as == value.same_as)
                return next((each for each in same if self.source_of(self.values[each].operator) is not None), position)
        return None


_Numbers = tuple[torch.Tensor, float]
"""The numbers of a value that depends on the inputs, and how much its operator's own rounding changes it."""


class TooLargeError(Exception):
    """A trace needs too much memory or time; the message says which."""


def trace_model(model: RecipeModel, probe: Probe, deadline: float) -> ModelTrace | None:
    """What the model computes on the inputs of ``probe``, in float64; ``None`` if it cannot run in float64.

    Raises:
        TooLargeError: the trace needs too much memory or time.
    """
    recorders: list[_NumbersRecorder] = []

    def within(call: Call) -> _NumbersRecorder:
        recorders.append(_NumbersRecorder(call, deadline))
        return recorders[-1]

    with in_small_operators():
        copies = Copies(model.pristine, model.fresh)
        exact, _ = run_in_float64(copies, probe.reference.own, probe.inputs, within)
    recorder = recorders[-1] if recorders else None
    if recorder is not None and recorder.too_much:
        raise TooLargeError(f"what the model computes takes too much {recorder.too_much}")
    if exact is None or recorder is None or not recorder.trace.is_complete:
        return None
    return ModelTrace(recorder.trace, recorder.steps, exact)


class _NumbersRecorder(Recorder):
    """Also keeps the numbers of what depends on the inputs, and the steps of larger operators.

    An operator runs in float32 as soon as it is called, because the operands of a large model are freed after it.
    """

    def __init__(self, call: Call, deadline: float) -> None:
        self.steps: dict[int, Sequence[Operator]] = {}
        """The smaller operators that a larger one stands for, as exporters may write them, by the index of its event."""
        self.too_much = ""
        """What ended the trace: ``memory`` or ``time``; empty if neither did."""
        self._deadline, self._bytes = deadline, 0
        self._is_followed = False
        """Whether the operator that runs depends on the inputs."""
        self._rounded: Iterator[torch.Tensor] = iter(())
        """What it computes in float32."""
        self._noise = 0.0
        self._is_uninitialized = False
        """Whether the operator that runs leaves its results as they are in memory."""
        super().__init__(call, self._numbers, kinds=[Operator])

    def operator(self, call: OperatorCall) -> Any:
        """See :class:`Recorder`."""
        if CLOCK.thread_time() > self._deadline:
            self.too_much = self.too_much or "time"
        if self._is_paused or self.too_much:
            return call.run()
        positions = [self._positions[each] for each in call.operands if each in self._positions]
        is_followed = self._is_followed = any(self._values[each].kept is not None for each in positions)
        self._rounded, self._noise = iter(_in_float32(call) if is_followed else ()), 0.0
        self._is_uninitialized = is_uninitialized(call.name)
        index = len(self._events)
        result = super().operator(call)
        if is_followed and self._events is self.trace.events:
            self._record_steps(call, result, index)
        return result

    def _record_steps(self, call: OperatorCall, result: Any, index: int) -> None:
        is_larger = call.name.removeprefix("aten::") in _SEVERAL_NODES and not call.writes
        decompose = decomposition_table.get(call.operator) if is_larger else None
        if decompose is None or max(each.numel() for each in tensor_leaves(result)) > _MOST_DECOMPOSED:
            return
        events, self._events = self._events, []
        with contextlib.suppress(Exception), self._operators:  # it need not support float64
            decompose(*call.args, **call.kwargs)
        self.steps[index], self._events = [event for event in self._events if isinstance(event, Operator)], events

    def _numbers(self, tensor: torch.Tensor, role: Role) -> _Numbers | None:
        if role not in (Role.INPUT, Role.CREATED) and not (role is Role.RESULT and self._is_followed):
            return None
        if self._is_uninitialized:
            return tensor.new_empty(0), 0.0
        self._bytes += tensor.numel() * tensor.itemsize
        if self._bytes > _MOST_BYTES:
            self.too_much = "memory"
            return None
        rounded = next(self._rounded, None)
        # What is in the memory that a result is written to is as far from its rounding.
        self._noise = self._noise if rounded is None else _distance(rounded, tensor)
        return tensor.detach().clone(memory_format=torch.contiguous_format), self._noise


def _is_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same elements in the same order, except for rounding in float64."""
    is_alike = tensor.numel() == other.numel() and tensor.dtype == other.dtype
    return is_alike and are_near(tensor.flatten(), other.flatten(), _ROUNDING)


def _in_float32(call: OperatorCall) -> list[torch.Tensor]:
    """What an operator computes on its operands rounded to float32; nothing if none of them is in float64."""
    if call.is_random or not any(each.dtype == torch.float64 for each in call.operands):
        return []
    with _disable_current_modes():  # one of them keeps float64
        rounded = call.with_changed(
            torch.Tensor, lambda each: each.to(torch.float32, copy=True) if each.dtype == torch.float64 else each.clone()
        )
        try:
            return tensor_leaves(rounded.run())
        except Exception:  # an operator can refuse float32 beside other types
            return []


def _distance(rounded: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, at least one unit in the last place of float32."""
    if not has_noise(exact) or rounded.shape != exact.shape:
        return 0.0
    difference = (rounded.double() - exact).abs()
    finite = difference[torch.isfinite(difference)]
    return max(finite.max().item() if finite.numel() else 0.0, unit_in_last_place(exact.float()))
