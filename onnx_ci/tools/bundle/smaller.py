"""A failing program made as small as it can be while it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from onnx_ci.pipeline.trace.trace import mapped
from onnx_ci.tools.bundle.program import FunctionCall, Operand, Program
from onnx_ci.tools.bundle.search import shrunk, with_fewer_calls


def smallest(program: Program, fails: Callable[[Program], bool], deadline: float) -> Program:
    """A failing program with few calls, outputs and arguments, and small sizes: none can be left out or made smaller."""
    for step in (with_fewer_calls, _with_fewer_outputs, _with_smaller_sizes, _with_fewer_arguments):
        program = shrunk(program, step, fails, deadline)
    return program


def _with_fewer_outputs(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield dataclasses.replace(program, outputs=tuple(each for each in program.outputs if each != name))


def _with_smaller_sizes(program: Program) -> Iterator[Program]:
    from_outside = [*program.inputs, *program.weights]
    sizes = {size for operand in from_outside for size in _sizes(operand)}
    for old in sorted(sizes - {(1, 1)}, reverse=True):
        for new in _smaller(old, sizes):
            operands = [
                _resized(operand, {axis for axis, size in enumerate(_sizes(operand)) if size == old}, new)
                for operand in from_outside
            ]
            resized = _with_operands(program, operands)
            yield resized
            calls = tuple(_with_number(call, old[0], new[0]) for call in program.calls)
            if calls != program.calls:
                yield dataclasses.replace(resized, calls=calls)
    for operand in program.inputs:
        for axis, (size, at_export) in enumerate(_sizes(operand)):
            if size == at_export > 1:
                yield _with_operands(program, [_resized(operand, {axis}, (1, 1))])


def _with_operands(program: Program, operands: Iterable[Operand]) -> Program:
    return dataclasses.replace(program, operands={**program.operands, **{each.name: each for each in operands}})


def _sizes(operand: Operand) -> list[tuple[int, int]]:
    """Each size, and the one at the export."""
    return [*zip(operand.shape, operand.shape_at_export, strict=True)]


def _smaller(size: tuple[int, int], others: Collection[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Smaller sizes to try in the place of a size, the smallest first. A dynamic size never becomes equal to another size."""
    if size[0] == size[1]:
        yield from ((each, each) for each in sorted({1, 2, 3, size[0] // 2}) if each < size[0])
    else:
        yield from (each for each in ((3, 2), (5, 4), (2, 3)) if sum(each) < sum(size) and each not in others)


def _resized(operand: Operand, axes: Collection[int], size: tuple[int, int]) -> Operand:
    sizes = [size if axis in axes else before for axis, before in enumerate(_sizes(operand))]
    return dataclasses.replace(operand, shape=tuple(a for a, _ in sizes), shape_at_export=tuple(b for _, b in sizes))


def _with_number(call: FunctionCall, old: int, new: int) -> FunctionCall:
    def leaf(value: Any) -> Any:
        return new if type(value) is int and value == old else value

    kwargs = {name: mapped(value, leaf) for name, value in call.kwargs.items()}
    return dataclasses.replace(call, args=mapped(call.args, leaf), kwargs=kwargs)


def _with_fewer_arguments(program: Program) -> Iterator[Program]:
    for position, call in enumerate(program.calls):
        shorter = [dataclasses.replace(call, args=call.args[:-1])] if len(call.args) > 1 else []
        for name in call.kwargs:
            others = {key: value for key, value in call.kwargs.items() if key != name}
            shorter.append(dataclasses.replace(call, kwargs=others))
        for shorter_call in shorter:
            calls = (*program.calls[:position], shorter_call, *program.calls[position + 1 :])
            yield dataclasses.replace(program, calls=calls)
