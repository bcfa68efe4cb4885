"""Which functions of torch a model calls, recorded as a program.

A number that follows from a size is written as that size; a second run with other sizes shows which numbers do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import resolve_name

from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.call import with_inputs
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.running import force_eager, in_small_operators, run_tree
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import FunctionCall as RecordedCall
from onnx_ci.pipeline.trace.trace import Ref, Role, Trace, Value, is_random, mapped
from onnx_ci.tools.bundle.program import FunctionCall, Name, Operand, Program, Size


def record(model: RecipeModel, probe: Probe) -> Program:
    """What the model calls on the inputs of ``probe``.

    What cannot be written down, such as a result of compiled code or of numpy, becomes an input of the program. Operators are
    not recorded: a tensor keeps its name when it is written to.
    """
    call = with_inputs(model.fresh(), probe.inputs)
    recorder = Recorder(call, numbers_of, kinds=[RecordedCall])
    with force_eager(), in_small_operators(), recorder:
        recorder.returned(run_tree(call, seed=model.recipe.seed))
    return program_of(recorder.trace)


def record_dynamic(model: RecipeModel, probe: Probe, example: Probe) -> Program | None:
    """What the model calls on the inputs of ``probe``, to be exported with the sizes of ``example``.

    ``None`` if it calls other functions on the example, or a number that differs there follows from no size.
    """
    program, at_export = record(model, probe), record(model, example)
    has_same_functions = [call.function for call in program.calls] == [call.function for call in at_export.calls]
    if not has_same_functions or program.operands.keys() != at_export.operands.keys():
        return None
    operands = {
        name: dataclasses.replace(operand, shape_at_export=at_export.operands[name].shape)
        for name, operand in program.operands.items()
    }
    earlier = [operands[operand.name] for operand in program.inputs]
    calls = []
    try:
        for call, exported in zip(program.calls, at_export.calls, strict=True):
            nearest = [operands[name] for name in sorted(call.uses)] + earlier[::-1]
            args = _with_sizes(call.args, exported.args, nearest)
            kwargs = {name: _with_sizes(value, exported.kwargs.get(name), nearest) for name, value in call.kwargs.items()}
            calls.append(dataclasses.replace(call, args=args, kwargs=kwargs))
            earlier += [operands[name] for name in sorted(call.makes)]
    except _NoSizeError:
        return None
    return dataclasses.replace(program, operands=operands, calls=tuple(calls))


def _with_sizes(value: Any, at_export: Any, operands: Sequence[Operand]) -> Any:
    """An argument, with a size in the place of each number that differs between the two runs.

    Raises:
        _NoSizeError: the two differ in something else.
    """
    if isinstance(value, slice) and isinstance(at_export, slice):
        bounds = zip((value.start, value.stop, value.step), (at_export.start, at_export.stop, at_export.step), strict=True)
        return slice(*(_with_sizes(bound, exported, operands) for bound, exported in bounds))
    if isinstance(value, (tuple, list)) and type(value) is type(at_export) and len(value) == len(at_export):
        items = zip(value, at_export, strict=True)
        return type(value)(_with_sizes(item, exported, operands) for item, exported in items)
    if value == at_export:
        return value
    if type(value) is not int or type(at_export) is not int:
        raise _NoSizeError
    sizes = []
    for operand in operands:
        for axis, (size, size_at_export) in enumerate(zip(operand.shape, operand.shape_at_export, strict=True)):
            if size != size_at_export:
                factor, remainder = divmod(value - at_export, size - size_at_export)
                if remainder == 0:
                    sizes.append(Size(tensor=operand.name, axis=axis, factor=factor, more=value - factor * size))
    if not sizes:
        raise _NoSizeError
    return min(sizes, key=lambda size: (size.more != 0, abs(size.factor - 1)))


class _NoSizeError(Exception):
    """A number differs between two runs and follows from no size."""


class Numbers(NamedTuple):
    """The range and the spread of the finite numbers of a tensor; all 0 if it has none."""

    low: float = 0.0
    high: float = 0.0
    spread: float = 0.0
    """Their standard deviation."""


def numbers_of(tensor: torch.Tensor, role: Role) -> Numbers | None:
    """What a trace keeps of a tensor so that a program can be read from it; ``None`` for one that no script can make."""
    if tensor.dtype.is_complex or tensor.is_quantized:
        return None
    values = tensor.detach().double().flatten()
    finite = values[torch.isfinite(values)]
    return Numbers(finite.min().item(), finite.max().item(), finite.std(correction=0).item()) if finite.numel() else Numbers()


def program_of(trace: Trace) -> Program:
    """The functions that a run calls, recorded without operators and with :class:`Numbers`, as a program."""
    writer = _Writer(trace.values)
    for position in trace.inputs:
        writer.name_of(position)
    calls = tuple(call for each in trace.of_kind(RecordedCall) if (call := writer.call(each)) is not None)
    outputs = (writer.names.get(position) for position in trace.outputs if position is not None)
    return Program(operands=writer.operands, calls=calls, outputs=tuple(filter(None, outputs)))


class _Writer:
    """Writes recorded calls as those of a program."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values
        self.operands: dict[str, Operand] = {}
        self.names: dict[int, str] = {}
        """The name of each value that the program has."""

    def call(self, recorded: RecordedCall) -> FunctionCall | None:
        """A call; ``None`` for one that cannot be written down: its results become inputs of the calls that use them."""
        function = resolve_name(recorded.function)
        written = recorded.written or recorded.kwargs.get("out")
        writes = written if isinstance(written, Ref) else None
        makes_tensors = self._makes_tensors(recorded.result)
        if function is None or is_random(function.rpartition(".")[2]) or not (makes_tensors or writes):
            return None
        try:
            args, kwargs = mapped((recorded.args, recorded.kwargs), self._described)
        except _CannotDescribeError:
            return None
        return FunctionCall(
            function=function,
            args=args,
            kwargs=kwargs,
            result=self._result(recorded.result) if makes_tensors and recorded.result != writes else None,
            writes=None if writes is None else self.name_of(writes.value),
            source=recorded.place.source,
            module=recorded.place.module,
        )

    def name_of(self, position: int) -> str:
        """The name of a value; a new one if no call of the program has computed it."""
        return self.names.get(position) or self._add(position)

    def _add(self, position: int) -> str:
        value, name = self._values[position], f"t{len(self.operands)}"
        self.names[position] = name
        self.operands[name] = Operand(
            name=name,
            shape=value.shape,
            shape_at_export=value.shape,
            dtype=value.dtype,
            is_weight=value.role is Role.WEIGHT and value.dtype.is_floating_point,
            **(value.kept or Numbers())._asdict(),
        )
        return name

    def _result(self, result: Any) -> Any:
        if isinstance(result, Ref):
            return Name(name=self._add(result.value))
        return tuple(map(self._result, result)) if isinstance(result, (tuple, list)) else None

    def _makes_tensors(self, result: Any) -> bool:
        if isinstance(result, (tuple, list)):
            return bool(result) and all(map(self._makes_tensors, result))
        return isinstance(result, Ref) and self._values[result.value].kept is not None

    def _described(self, value: Any) -> Any:
        """An argument as a program has it.

        Raises:
            _CannotDescribeError: no script can write it down.
        """
        if isinstance(value, Ref):
            if self._values[value.value].kept is None:
                raise _CannotDescribeError
            return Name(name=self.name_of(value.value))
        if value is None or value is Ellipsis or isinstance(value, (bool, int, float, str, torch.dtype, torch.memory_format)):
            return value
        if isinstance(value, torch.device):
            return str(value)
        if hasattr(value, "item"):  # a number of numpy
            return value.item()
        raise _CannotDescribeError


class _CannotDescribeError(Exception):
    """An argument cannot be written down."""
