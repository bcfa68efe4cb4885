"""Which functions of torch a model calls, recorded as a program.

A number that follows from a size is written as that size; a second run with other sizes shows which numbers do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.call import input_tensors, with_inputs
from onnx_ci.pipeline.model.module import weights_of
from onnx_ci.pipeline.model.operators import tensor_leaves
from onnx_ci.pipeline.model.places import CallPlaces
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.running import force_eager, in_small_operators, run_tree
from onnx_ci.pipeline.reduce.program import FunctionCall, Name, Operand, Program, Size, is_in_place, is_random


def record(model: RecipeModel, probe: Probe) -> Program:
    """What the model calls on the inputs of ``probe``.

    What cannot be written down, such as a result of compiled code or of numpy, becomes an input of the program.
    """
    call = with_inputs(model.fresh(), probe.inputs)
    recorder = _Recorder(call.model)
    with force_eager(), in_small_operators():
        for tensor in input_tensors(call):
            recorder.name_of(tensor)
        with recorder:
            result = run_tree(call, seed=model.recipe.seed)
    outputs = (recorder.names.get(tensor) for tensor in tensor_leaves(result))
    return Program(operands=recorder.operands, calls=tuple(recorder.calls), outputs=tuple(filter(None, outputs)))


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


class _Recorder(TorchFunctionMode):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.calls: list[FunctionCall] = []
        self.operands: dict[str, Operand] = {}
        self.names: MutableMapping[torch.Tensor, str] = WeakIdKeyDictionary()
        """The name of each tensor that is recorded."""
        self._weights = {id(each) for each in weights_of(model) if each.is_floating_point()}
        self._places = CallPlaces(model)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        function = resolve_name(func)
        method = function.rpartition(".")[2] if function else ""
        if function is not None and not is_random(method):  # what is random becomes an input of the program
            written = args[0] if args and is_in_place(method) else kwargs.get("out")
            writes = written if isinstance(written, torch.Tensor) else None
            if writes is not None or _makes_tensors(result):
                self._record(function, args, kwargs, result, writes)
        return result

    def _record(self, function: str, args: Any, kwargs: Mapping[str, Any], result: Any, writes: torch.Tensor | None) -> None:
        try:
            described = tuple(map(self._described, args))
            described_keywords = {name: self._described(value) for name, value in kwargs.items()}
        except _CannotDescribeError:
            return  # its results become inputs of the calls that use them
        module, source = self._places.now()
        is_new = _makes_tensors(result) and result is not writes
        self.calls.append(
            FunctionCall(
                function=function,
                args=described,
                kwargs=described_keywords,
                result=self._result(result) if is_new else None,
                writes=None if writes is None else self.name_of(writes),
                source=source,
                module=module,
            )
        )

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name of a tensor; a new one if no recorded function has computed it."""
        return self.names.get(tensor) or self._add(tensor)

    def _add(self, tensor: torch.Tensor) -> str:
        name = f"t{len(self.operands)}"
        self.names[tensor] = name
        self.operands[name] = _operand(name, tensor.detach(), is_weight=id(tensor) in self._weights)
        return name

    def _result(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return Name(name=self._add(result))
        return tuple(map(self._result, result)) if isinstance(result, (tuple, list)) else None

    def _described(self, value: Any) -> Any:
        """An argument as a program has it.

        Raises:
            _CannotDescribeError: no script can write it down.
        """
        if isinstance(value, torch.Tensor):
            if value.dtype.is_complex or value.is_sparse or value.is_quantized:
                raise _CannotDescribeError
            return Name(name=self.name_of(value))
        if isinstance(value, slice):
            return slice(*map(self._described, (value.start, value.stop, value.step)))
        if isinstance(value, (tuple, list)):  # torch.Size, too
            return tuple(map(self._described, value)) if isinstance(value, tuple) else [*map(self._described, value)]
        if value is None or value is Ellipsis or isinstance(value, (bool, int, float, str, torch.dtype, torch.memory_format)):
            return value
        if isinstance(value, torch.device):
            return str(value)
        if hasattr(value, "item"):  # a number of numpy
            return value.item()
        raise _CannotDescribeError


class _CannotDescribeError(Exception):
    """An argument cannot be written down."""


def _makes_tensors(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return bool(result) and all(map(_makes_tensors, result))
    return isinstance(result, torch.Tensor) and not result.dtype.is_complex


def _operand(name: str, tensor: torch.Tensor, *, is_weight: bool) -> Operand:
    values = tensor.double().flatten() if not tensor.dtype.is_complex else tensor.new_zeros(0)
    finite = values[torch.isfinite(values)]
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 0.0)
    spread = finite.std(correction=0).item() if finite.numel() else 0.0
    return Operand(
        name=name,
        shape=tuple(tensor.shape),
        shape_at_export=tuple(tensor.shape),
        dtype=tensor.dtype,
        is_weight=is_weight,
        low=low,
        high=high,
        spread=spread,
    )
