"""Recording which functions of torch a model calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.stages.export.places import CallPlaces
from onnx_ci.stages.inputs.probes import Probe
from onnx_ci.stages.model.live_model import (
    force_eager,
    in_small_operators,
    input_tensors,
    run_tree,
    tensor_leaves,
    with_inputs,
)
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.stages.reduce.program import FunctionCall, Name, Operand, Program, Size

_RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "normal_", "uniform_")
"""Parts of the names of functions whose results are random, so that a program is given them."""

_NOT_IN_PLACE = frozenset({"__invert__", "__index__", "__int__", "__iter__"})
"""Methods of which only the names look like ``__iadd__``."""


def record(prepared: Prepared, probe: Probe) -> Program:
    """What the model calls on the inputs of ``probe``.

    What cannot be written down, such as the results of compiled code or of numpy, is given to the program.
    """
    call = with_inputs(prepared.fresh(), probe.inputs)
    recorder = _Recorder(call.model)
    with force_eager(), in_small_operators():
        for tensor in input_tensors(call):
            recorder.name_of(tensor)
        with recorder:
            made = run_tree(call, seed=prepared.recipe.seed)
    outputs = [recorder.known(each) for each in tensor_leaves(made)]
    return Program(operands=recorder.operands, calls=tuple(recorder.calls), outputs=tuple(filter(None, outputs)))


def record_dynamic(prepared: Prepared, probe: Probe) -> Program | None:
    """What the model calls on ``probe``, to be exported with the sizes of the example; numbers that differ there are sizes.

    ``None`` if it calls other functions on the example, or a number follows from no size.
    """
    here, there = record(prepared, probe), record(prepared, prepared.example)
    functions = [[each.function for each in one.calls] for one in (here, there)]
    if functions[0] != functions[1] or here.operands.keys() != there.operands.keys():
        return None
    operands = {
        name: dataclasses.replace(each, shape_at_export=there.operands[name].shape) for name, each in here.operands.items()
    }
    known: list[Operand] = [operands[each.name] for each in here.inputs]
    calls = []
    try:
        for one, other in zip(here.calls, there.calls, strict=True):
            nearest = [operands[name] for name in sorted(one.uses)] + known[::-1]
            args = _with_sizes(one.args, other.args, nearest)
            kwargs = {name: _with_sizes(each, other.kwargs.get(name), nearest) for name, each in one.kwargs.items()}
            calls.append(dataclasses.replace(one, args=args, kwargs=kwargs))
            known += [operands[name] for name in sorted(one.makes)]
    except _NoSizeError:
        return None
    return dataclasses.replace(here, operands=operands, calls=tuple(calls))


def _with_sizes(here: Any, there: Any, operands: Sequence[Operand]) -> Any:
    """An argument, with a size in the place of each number that differs between the two runs.

    Raises:
        _NoSizeError: the two differ in something else.
    """
    if isinstance(here, slice) and isinstance(there, slice):
        parts = zip((here.start, here.stop, here.step), (there.start, there.stop, there.step), strict=True)
        return slice(*(_with_sizes(one, other, operands) for one, other in parts))
    if isinstance(here, (tuple, list)) and type(here) is type(there) and len(here) == len(there):
        return type(here)(_with_sizes(one, other, operands) for one, other in zip(here, there, strict=True))
    if here == there:
        return here
    if type(here) is not int or type(there) is not int:
        raise _NoSizeError
    found = []
    for operand in operands:
        for axis, (size, at_export) in enumerate(zip(operand.shape, operand.shape_at_export, strict=True)):
            factor, left = divmod(here - there, size - at_export) if size != at_export else (0, 1)
            if left == 0:
                found.append(Size(tensor=operand.name, axis=axis, factor=factor, more=here - factor * size))
    if not found:
        raise _NoSizeError
    return min(found, key=lambda each: (each.more != 0, abs(each.factor - 1)))


class _NoSizeError(Exception):
    """A number differs between two runs and follows from no size."""


class _Recorder(TorchFunctionMode):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.calls: list[FunctionCall] = []
        self.operands: dict[str, Operand] = {}
        self._names: MutableMapping[torch.Tensor, str] = WeakIdKeyDictionary()
        self._weights = {id(each) for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()}
        self._places = CallPlaces(model)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        function = _name_of(func)
        writes = _written(function, args, kwargs)
        if function is not None and (writes is not None or _makes_tensors(result)):
            self._record(function, args, kwargs, result, writes)
        return result

    def _record(self, function: str, args: Any, kwargs: Mapping[str, Any], result: Any, writes: torch.Tensor | None) -> None:
        try:
            given = self._described(list(args)), {name: self._described(each) for name, each in kwargs.items()}
        except _CannotDescribeError:
            return  # its results are given to those that use them
        module, source = self._places.now()
        is_new = _makes_tensors(result) and result is not writes
        self.calls.append(
            FunctionCall(
                function=function,
                args=tuple(given[0]),
                kwargs=given[1],
                result=self._made(result) if is_new else None,
                writes=None if writes is None else self.name_of(writes),
                source=source,
                module=module,
            )
        )

    def known(self, tensor: torch.Tensor) -> str | None:
        """The name of a tensor that was recorded."""
        return self._names.get(tensor)

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name of a tensor; one that no recorded function has computed is given."""
        return self._names.get(tensor) or self._add(tensor)

    def _add(self, tensor: torch.Tensor) -> str:
        name = f"t{len(self.operands)}"
        self._names[tensor] = name
        self.operands[name] = _operand(name, tensor.detach(), is_weight=id(tensor) in self._weights)
        return name

    def _made(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return Name(name=self._add(result))
        return tuple(map(self._made, result)) if isinstance(result, (tuple, list)) else None

    def _described(self, value: Any) -> Any:
        """An argument as data.

        Raises:
            _CannotDescribeError: it is none.
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


def _name_of(func: Any) -> str | None:
    """The function's name, unless it is none that a program can call."""
    name = resolve_name(func)
    return None if name is None or any(each in name.rpartition(".")[2] for each in _RANDOM) else name


def _written(function: str | None, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor that a call writes into."""
    name = (function or "").rpartition(".")[2]
    is_in_place = name.startswith("__i") if name.startswith("__") else name.endswith("_")
    written = args[0] if args and (name == "__setitem__" or (is_in_place and name not in _NOT_IN_PLACE)) else kwargs.get("out")
    return written if isinstance(written, torch.Tensor) else None


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
