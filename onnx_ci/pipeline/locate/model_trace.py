"""What a model computes on one input, operator by operator, with the source line and the module of each operator."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.call import Call, input_tensors
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.operators import WrappingMode, tensor_leaves
from onnx_ci.pipeline.model.places import CallPlaces
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.running import in_small_operators
from onnx_ci.pipeline.model.tensors import has_noise, has_same_values, largest_value
from onnx_ci.pipeline.reference.float64 import run_in_float64
from onnx_ci.pipeline.reference.reference import unit_in_last_place
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import SourceLine

_MOST_BYTES = 2**31
"""How much memory the values of a trace may take."""

_ROUNDING = 1e-12
"""How far equal results in float64 may be apart, relative to the largest value."""
_SEVERAL_NODES = frozenset(
    f"aten.{name}"
    for name in (
        *("addmm", "baddbmm", "native_layer_norm", "native_group_norm", "native_batch_norm", "_softmax", "_log_softmax"),
        *("gelu", "silu", "mish", "hardswish", "hardsigmoid", "softplus", "elu", "celu", "selu", "log_sigmoid_forward"),
        *("var", "std", "linalg_vector_norm", "addcmul", "addcdiv", "lerp"),
    )
)
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
    module: str
    """The path of the innermost module that called it: ``layer1.0.conv1``; empty for the model itself."""
    source: SourceLine | None
    """The innermost line of the user's code; of a library if there is none."""
    call: int
    """The number of the call in the model's code; the same for all steps of a larger operator."""
    is_part: bool
    """Whether it is only a step of the operator ``name``, which exporters may write in other steps."""


@dataclass(frozen=True, kw_only=True)
class TracedValue:
    """A tensor that the model computes."""

    tensor: torch.Tensor
    """In float64; integers and booleans as they are."""
    noise: float
    """How much the operator's own rounding in float32 changes it; 0 for integers and booleans."""
    operator: int | None
    """The position of the operator that computes it; ``None`` for an input."""
    same_as: int
    """The position of the first value with these elements in this order, of which it is a view or a copy; else its own."""


@dataclass(frozen=True, kw_only=True)
class ModelTrace:
    """A run of a model."""

    operators: Sequence[TracedOperator]
    values: Sequence[TracedValue]
    """The inputs first."""
    outputs: Sequence[int | None]
    """The positions of the model's outputs among the values; ``None`` for one that no operator computes."""

    def taken_by(self, operator: int) -> Sequence[int]:
        """The values that a file may compute an operator from, by position: its inputs, and other steps of the same call."""
        traced = self.operators[operator]
        return list(dict.fromkeys((*traced.inputs, *self._steps_of_call.get(traced.call, ()))))

    @functools.cached_property
    def _steps_of_call(self) -> Mapping[int, Sequence[int]]:
        steps: dict[int, list[int]] = {}
        complete: set[int] = set()
        for operator in self.operators:
            if not operator.is_part:
                complete.add(operator.call)
            elif operator.call not in complete:  # a later step equals the result of the call, as with a scale of 1
                steps.setdefault(operator.call, []).extend(operator.outputs)
        return steps

    def source_of(self, operator: int | None) -> SourceLine | None:
        """The line that calls the operator at a position, if both are known."""
        return None if operator is None else self.operators[operator].source


class TooLargeError(Exception):
    """A trace needs too much memory or time; the message says which."""


def trace_model(model: RecipeModel, probe: Probe, deadline: float) -> ModelTrace | None:
    """What the model computes on the inputs of ``probe``, in float64; ``None`` if it cannot run in float64.

    Args:
        model: the model.
        probe: the inputs.
        deadline: when to stop, by :func:`time.thread_time`.

    Raises:
        TooLargeError: the trace needs too much memory or time.
    """
    recorders: list[_Recorder] = []

    def within(call: Call) -> _Recorder:
        recorders.append(_Recorder(call, deadline))
        return recorders[-1]

    with in_small_operators():
        copies = Copies(model.pristine, model.fresh)
        exact, _ = run_in_float64(copies, probe.reference.own, probe.inputs, within)
    recorder = recorders[-1] if recorders else None
    if recorder is not None and recorder.too_much:
        raise TooLargeError(f"what the model computes takes too much {recorder.too_much}")
    if exact is None or recorder is None:
        return None
    return ModelTrace(
        operators=recorder.operators,
        values=recorder.values,
        outputs=[recorder.value_of(tensor) for tensor in exact],
    )


class _Recorder(WrappingMode):
    """Records each operator, and how much its rounding in float32 changes what it computes."""

    def __init__(self, call: Call, deadline: float) -> None:
        super().__init__()
        self._deadline = deadline
        self.operators: list[TracedOperator] = []
        self.values: list[TracedValue] = []
        self._calls = 0
        self.too_much = ""
        """What ended the trace: ``memory`` or ``time``; empty if it is complete."""
        self._bytes = 0
        self._whole: Sequence[torch.Tensor] = ()
        """The results of the operator whose decomposition is recorded."""
        self._name = ""
        """The operator that runs, or is decomposed."""
        self._place: tuple[str, SourceLine | None] = ("", None)
        """The module and the line that call it."""
        self._positions: MutableMapping[torch.Tensor, int] = WeakIdKeyDictionary()
        self._places = CallPlaces(call.model)
        for tensor in input_tensors(call):
            self._add(tensor, noise=0.0, operator=None)

    def call_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        if CLOCK.thread_time() > self._deadline:
            self.too_much = "time"
            raise TooLargeError
        operands = tensor_leaves((args, kwargs))
        inputs = tuple(dict.fromkeys(self._positions[each] for each in operands if each in self._positions))
        rounded = _in_float32(func, args, kwargs)
        result = func(*args, **kwargs)
        results = tensor_leaves(result)
        if not inputs or not results:
            return result
        if not self._whole:
            self._name, self._place = f"{func.namespace}.{func._schema.name.partition('::')[2]}", self._places.now()
            self._calls += 1
            self._decompose(func, results, args, kwargs)
        self._record(func, inputs, zip(results, _noise(rounded, results), strict=True))
        return result

    def _decompose(self, func: Any, results: Sequence[torch.Tensor], args: Any, kwargs: Any) -> None:
        """Record the smaller operators that an operator stands for, as exporters may write them."""
        decompose = decomposition_table.get(func) if self._name in _SEVERAL_NODES and not _writes(func) else None
        if decompose is None or max(each.numel() for each in results) > _MOST_DECOMPOSED:
            return
        self._whole = results
        try:
            with self:
                decompose(*args, **kwargs)
        except TooLargeError:
            raise
        except Exception:  # it need not support float64
            return
        finally:
            self._whole = ()

    def _record(self, func: Any, inputs: tuple[int, ...], results: Iterable[tuple[torch.Tensor, float]]) -> None:
        """Record an operator. ``results`` are its results with their noise."""
        position = len(self.operators)
        outputs = []
        for tensor, noise in results:
            if tensor in self._positions and not self._whole and not _writes(func):
                continue  # its decomposition has computed it
            outputs.append(self._add(tensor, inputs, noise=noise, operator=position))
            for result in self._whole:
                if result not in self._positions and result.shape == tensor.shape and _is_equal(result, tensor):
                    self._positions[result] = outputs[-1]
            if _writes(func):  # what other tensors in the same memory get, too
                storage = tensor.untyped_storage()._cdata
                others = [each for each in self._positions if each is not tensor]
                views = [each for each in others if each.untyped_storage()._cdata == storage]
                outputs += [self._add(each, inputs, noise=noise, operator=position) for each in views]
        module, source = self._place
        self.operators.append(
            TracedOperator(
                name=self._name,
                inputs=inputs,
                outputs=tuple(outputs),
                module=module,
                source=source,
                call=self._calls,
                is_part=bool(self._whole) and self._positions.get(self._whole[0]) not in outputs,
            )
        )

    def _add(self, tensor: torch.Tensor, inputs: Sequence[int] = (), *, noise: float, operator: int | None) -> int:
        self._bytes += tensor.numel() * tensor.itemsize
        if self._bytes > _MOST_BYTES:
            self.too_much = "memory"
            raise TooLargeError
        position = len(self.values)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        equal = (each for each in inputs if _is_equal(self.values[each].tensor, copy))
        same_as = next((self.values[each].same_as for each in equal), position)
        self.values.append(TracedValue(tensor=copy, noise=noise, operator=operator, same_as=same_as))
        self._positions[tensor] = position
        return position

    def value_of(self, output: torch.Tensor) -> int | None:
        """The position of the last value that equals an output. Of its copies and views, the first with a line counts."""
        for position, value in reversed(list(enumerate(self.values))):
            if value.tensor.shape == output.shape and has_same_values(value.tensor, output.to(value.tensor.dtype)):
                same = (each for each, other in enumerate(self.values) if other.same_as == value.same_as)
                return next((each for each in same if self._is_in_code(each)), position)
        return None

    def _is_in_code(self, position: int) -> bool:
        operator = self.values[position].operator
        return operator is not None and self.operators[operator].source is not None


def _writes(func: Any) -> bool:
    """Whether an operator writes into an argument."""
    return any(each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments)


def _is_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same elements in the same order, except for rounding in float64."""
    if tensor.numel() != other.numel() or tensor.dtype != other.dtype:
        return False
    if not has_noise(tensor):
        return torch.equal(tensor.flatten(), other.flatten())
    return torch.allclose(tensor.flatten(), other.flatten(), rtol=0.0, atol=largest_value(tensor) * _ROUNDING, equal_nan=True)


def _in_float32(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """What an operator computes on its operands rounded to float32; nothing if none of them is in float64."""
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    if is_random or not any(each.dtype == torch.float64 for each in tensor_leaves((args, kwargs))):
        return []
    with _disable_current_modes():  # one of them keeps float64
        rounded_args, rounded_kwargs = pytree.tree_map_only(
            torch.Tensor,
            lambda each: each.to(torch.float32, copy=True) if each.dtype == torch.float64 else each.clone(),
            (args, kwargs),
        )
        try:
            return tensor_leaves(func(*rounded_args, **rounded_kwargs))
        except Exception:  # an operator can refuse float32 beside other types
            return []


def _noise(rounded: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[float]:
    """How far each result is from what was computed in float32; 0 where that is not known."""
    pairs = itertools.zip_longest(rounded, exact)
    return [0.0 if near is None else _distance(near, tensor) for near, tensor in itertools.islice(pairs, len(exact))]


def _distance(rounded: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, at least one unit in the last place of float32."""
    if not has_noise(exact) or rounded.shape != exact.shape:
        return 0.0
    difference = (rounded.double() - exact).abs()
    finite = difference[torch.isfinite(difference)]
    return max(finite.max().item() if finite.numel() else 0.0, unit_in_last_place(exact.float()))
