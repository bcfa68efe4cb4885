"""A program in Python: the model, its inputs, and how it is exported. It needs nothing but torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnx_ci.tools.bundle.program import Data, FunctionCall, Name, Operand, Program, Size, names_in

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "floordiv": "//", "mod": "%", "matmul": "@", "pow": "**",
    "rshift": ">>", "lshift": "<<", "and": "&", "or": "|", "xor": "^",
    "gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!=",
}  # fmt: skip
"""By the name of a method, with or without two underscores around it."""
_REVERSED = {f"__r{name}__": symbol for name, symbol in _INFIX.items()}
_PREFIX = {"neg": "-", "__neg__": "-", "__invert__": "~"}
_IN_PLACE = {"__iadd__": "+=", "__isub__": "-=", "__imul__": "*=", "__itruediv__": "/=", "__ifloordiv__": "//="}
_CASTS = {torch.float64: ".double()", torch.float16: ".half()", torch.bfloat16: ".bfloat16()", torch.float32: ""}


@dataclass(frozen=True, kw_only=True)
class ExportCall:
    """How ``torch.onnx.export`` is called."""

    exporter: str
    opset: int


def setup(program: Program) -> str:
    """The part of the script that makes ``model``, ``inputs`` and, for dynamic sizes, ``example``: tuples of tensors."""
    names = _variables(program)
    lines = ["class Model(torch.nn.Module):"]
    if program.weights:
        drawn = ", ".join(_drawn(each, each.shape, Data.LIKE_RECORDED) for each in program.weights)
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += [f"        self.weights = torch.nn.ParameterList([{drawn}]).requires_grad_(False)", ""]
    lines.append(f"    def forward({', '.join(['self', *(names[each.name] for each in program.inputs)])}):")
    lines += [f"        {line}" for line in body(program)]
    lines += ["", f"torch.manual_seed({program.seed})", "model = Model().eval()"]
    lines.append(f"inputs = {_tuple([_drawn(each, each.shape, program.data) for each in program.inputs])}")
    if program.is_dynamic:
        lines.append(f"example = {_tuple([_drawn(each, each.shape_at_export, program.data) for each in program.inputs])}")
    return "\n".join(lines)


def export_arguments(program: Program, how: ExportCall) -> Mapping[str, Any]:
    """The keyword arguments of ``torch.onnx.export``."""
    names = _variables(program)
    arguments: dict[str, Any] = {
        "input_names": [names[each.name] for each in program.inputs],
        "opset_version": how.opset,
        "dynamo": how.exporter == "dynamo",
    }
    if program.is_dynamic and how.exporter == "dynamo":
        arguments["dynamic_shapes"] = tuple(map(_dynamic_axes, program.inputs))
    elif program.is_dynamic:
        arguments["dynamic_axes"] = {names[each.name]: axes for each in program.inputs if (axes := _dynamic_axes(each))}
    return arguments


def _dynamic_axes(operand: Operand) -> dict[int, str]:
    sizes = enumerate(zip(operand.shape_at_export, operand.shape, strict=True))
    return {axis: f"size{at_export}" for axis, (at_export, size) in sizes if at_export != size}


def _tuple(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _variables(program: Program) -> Mapping[str, str]:
    """The names of the tensors in the script."""
    inputs, weights = program.inputs, program.weights
    names = {each.name: "x" if len(inputs) == 1 else f"x{number}" for number, each in enumerate(inputs)}
    names |= {each.name: f"self.weights[{number}]" for number, each in enumerate(weights)}
    taken = {*names.values()}
    for call in program.calls:
        base = call.function.removesuffix(".__get__").rpartition(".")[2].strip("_") or "made"
        for name in names_in(call.result):
            numbered = (f"{base}{number or ''}" for number in itertools.count())
            names[name] = next(variable for variable in numbered if variable not in taken)
            taken.add(names[name])
    return names


def body(program: Program) -> list[str]:
    """The statements of ``forward``."""
    names = _variables(program)
    used = {*program.outputs}.union(*(call.uses for call in program.calls))
    changed = {call.writes for call in program.calls} & {operand.name for operand in program.inputs}
    lines = [f"{names[name]} = {names[name]}.clone()" for name in sorted(filter(None, changed))]
    for call in program.calls:
        is_returned = call is program.calls[-1] and call.result is not None and program.outputs == tuple(names_in(call.result))
        if is_returned and isinstance(call.result, Name):
            return [*lines, f"return {_expression(call, names)}"]
        if call.result is None:
            lines.append(_statement(call, names))
        else:
            lines.append(f"{_target(call.result, names, used)} = {_expression(call, names)}")
    return [*lines, f"return {', '.join(names[name] for name in program.outputs)}"]


def _target(result: Any, names: Mapping[str, str], used: Iterable[str]) -> str:
    if isinstance(result, Name):
        return names[result.name]
    parts = [
        f"({_target(each, names, used)})" if isinstance(each, tuple) else names[each.name] if each.name in used else "_"
        for each in result
    ]
    return ", ".join(parts) + ("," if len(parts) == 1 else "")


def _statement(call: FunctionCall, names: Mapping[str, str]) -> str:
    method = call.function.rpartition(".")[2]
    args = [_written(each, names) for each in call.args]
    if method == "__setitem__":
        return f"{args[0]}[{_index(call.args[1], names)}] = {args[2]}"
    if method in _IN_PLACE and len(args) == 2:
        return f"{args[0]} {_IN_PLACE[method]} {args[1]}"
    return _expression(call, names)


def _expression(call: FunctionCall, names: Mapping[str, str]) -> str:
    owner, _, method = call.function.rpartition(".")
    args = [_written(each, names) for each in call.args]
    arguments = [*args, *(f"{name}={_written(each, names)}" for name, each in call.kwargs.items())]
    if not call.function.startswith("torch.Tensor."):
        return f"{call.function.replace('torch.nn.functional.', 'F.')}({', '.join(arguments)})"
    if method == "__get__":
        return f"{args[0]}.{owner.rpartition('.')[2]}"
    if method == "__getitem__":
        return f"{args[0]}[{_index(call.args[1], names)}]"
    infix = _INFIX.get(method.removeprefix("__").removesuffix("__"))
    if not call.kwargs and len(args) == 2 and infix is not None:
        return f"{args[0]} {infix} {args[1]}"
    if not call.kwargs and len(args) == 2 and method in _REVERSED:
        return f"{args[1]} {_REVERSED[method]} {args[0]}"
    if not call.kwargs and len(args) == 1 and method in _PREFIX:
        return f"{_PREFIX[method]}{args[0]}"
    return f"{args[0]}.{method}({', '.join(arguments[1:])})"


def _written(value: Any, names: Mapping[str, str]) -> str:
    """An argument in Python."""
    if isinstance(value, Name):
        return names[value.name]
    if isinstance(value, Size):
        factor = "" if value.factor == 1 else f" * {value.factor}"
        more = "" if value.more == 0 else f" {'-' if value.more < 0 else '+'} {abs(value.more)}"
        return f"{names[value.tensor]}.shape[{value.axis}]{factor}{more}"
    if isinstance(value, slice):
        return f"slice({', '.join(_written(each, names) for each in (value.start, value.stop, value.step))})"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(_written(each, names) for each in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def _index(value: Any, names: Mapping[str, str]) -> str:
    parts = value if isinstance(value, tuple) else (value,)
    written = []
    for part in parts:
        if isinstance(part, slice):
            start, stop, step = ("" if each is None else _written(each, names) for each in (part.start, part.stop, part.step))
            written.append(f"{start}:{stop}" + (f":{step}" if step else ""))
        else:
            written.append(_written(part, names))
    return ", ".join(written).replace("Ellipsis", "...") or "()"


def _drawn(operand: Operand, shape: Sequence[int], data: Data) -> str:
    """The expression that draws the values of an operand."""
    size = ", ".join(map(str, shape)) if shape else "()"
    dtype = operand.dtype
    if dtype == torch.bool:
        return f"torch.zeros({size}, dtype=torch.bool)" if data is Data.ZERO else f"torch.rand({size}) > 0.5"
    if not dtype.is_floating_point:
        low, high = (0, 0) if data is Data.ZERO else (int(operand.low), int(operand.high))
        kind = "" if dtype == torch.int64 else f", dtype={dtype}"
        return f"torch.randint({low}, {high + 1}, {tuple(shape)}{kind})"
    drawn = _drawn_floats(operand, size, data)
    cast = _CASTS.get(dtype, f".to({dtype})")
    return f"({drawn}){cast}" if cast and " " in drawn.partition("(")[2].replace(", ", "") else f"{drawn}{cast}"


def _drawn_floats(operand: Operand, size: str, data: Data) -> str:
    if data is Data.ZERO:
        return f"torch.zeros({size})"
    if data is Data.UNIFORM:
        low, high = _rounded(operand.low), _rounded(operand.high)
        return f"torch.rand({size}) * {high - low:g} + {low:g}"
    is_positive = operand.low >= 0
    usual = operand.high if is_positive else operand.spread or abs(operand.low)
    scale = _rounded(usual * (100.0 if data is Data.LARGE else 1.0))
    drawn = f"torch.{'rand' if is_positive else 'randn'}({size})"
    return drawn if 0.5 <= scale <= 2 or scale == 0 else f"{drawn} * {scale:g}"


def _rounded(number: float) -> float:
    """A number with one digit. How large values are matters, not what they are."""
    return float(f"{number:.0e}")
