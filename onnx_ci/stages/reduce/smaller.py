"""A failing program made smaller, step by step, as long as it fails."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from onnx_ci.stages.reduce.program import FunctionCall, Operand, Program, mapped


def with_fewest_calls(program: Program, fails: Callable[[Program], bool], deadline: float) -> Program:
    """A failing program without the calls that need not be there for it to fail. Arguments are as for :func:`smallest`."""
    return _shrunk(program, _with_fewer_calls, fails, deadline)


def smallest(program: Program, fails: Callable[[Program], bool], deadline: float) -> Program:
    """A failing program with as few calls, outputs and arguments, and as small sizes, as fail.

    Args:
        program: a program that fails.
        fails: whether a program fails as it does.
        deadline: when to stop, by :func:`time.thread_time`.
    """
    for smaller in (_with_fewer_calls, _with_fewer_outputs, _with_smaller_sizes, _with_fewer_arguments):
        program = _shrunk(program, smaller, fails, deadline)
    return program


def _shrunk(
    program: Program, smaller: Callable[[Program], Iterator[Program]], fails: Callable[[Program], bool], deadline: float
) -> Program:
    """The program after every step that leaves it failing."""
    while True:
        tried = itertools.takewhile(lambda _: time.thread_time() < deadline, smaller(program))
        found = next(filter(fails, tried), None)
        if found is None:
            return program
        program = found


def _with_fewer_calls(program: Program) -> Iterator[Program]:
    count = len(program.calls)
    if count > 1:
        for size in sorted({count // 2, count // 4, 1} - {0}, reverse=True):
            for start in range(0, count, size):
                kept = [number for number in range(count) if not start <= number < start + size]
                if kept:
                    yield program.part(kept)


def _with_fewer_outputs(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield dataclasses.replace(program, outputs=tuple(each for each in program.outputs if each != name))


def _with_smaller_sizes(program: Program) -> Iterator[Program]:
    given = [*program.inputs, *program.weights]
    sizes = {size for each in given for size in _sizes(each)}
    for old in sorted(sizes - {(1, 1)}, reverse=True):
        for new in _smaller(old, sizes):
            axes = {each.name: {axis for axis, own in enumerate(_sizes(each)) if own == old} for each in given}
            operands = {each.name: _resized(each, axes[each.name], new) for each in given}
            resized = dataclasses.replace(program, operands={**program.operands, **operands})
            yield resized
            calls = tuple(_with_number(call, old[0], new[0]) for call in program.calls)
            if calls != program.calls:
                yield dataclasses.replace(resized, calls=calls)
    for each in program.inputs:
        for axis, (size, at_export) in enumerate(_sizes(each)):
            if size == at_export > 1:
                yield dataclasses.replace(program, operands={**program.operands, each.name: _resized(each, {axis}, (1, 1))})


def _sizes(operand: Operand) -> list[tuple[int, int]]:
    """Each size, and the one at the export."""
    return [*zip(operand.shape, operand.shape_at_export, strict=True)]


def _smaller(size: tuple[int, int], others: Collection[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Smaller sizes to try in the place of one, the smallest first. Dynamic sizes stay apart from the other ones."""
    if size[0] == size[1]:
        yield from ((each, each) for each in sorted({1, 2, 3, size[0] // 2}) if each < size[0])
    else:
        yield from (each for each in ((3, 2), (5, 4), (2, 3)) if sum(each) < sum(size) and each not in others)


def _resized(operand: Operand, axes: Collection[int], size: tuple[int, int]) -> Operand:
    def changed(shape: tuple[int, ...], to: int) -> tuple[int, ...]:
        return tuple(to if axis in axes else each for axis, each in enumerate(shape))

    shape, at_export = changed(operand.shape, size[0]), changed(operand.shape_at_export, size[1])
    return dataclasses.replace(operand, shape=shape, shape_at_export=at_export)


def _with_number(call: FunctionCall, number: int, other: int) -> FunctionCall:
    def leaf(value: Any) -> Any:
        return other if type(value) is int and value == number else value

    kwargs = {name: mapped(each, leaf) for name, each in call.kwargs.items()}
    return dataclasses.replace(call, args=mapped(call.args, leaf), kwargs=kwargs)


def _with_fewer_arguments(program: Program) -> Iterator[Program]:
    for position, call in enumerate(program.calls):
        shorter = [dataclasses.replace(call, args=call.args[:-1])] if len(call.args) > 1 else []
        for name in call.kwargs:
            others = {key: each for key, each in call.kwargs.items() if key != name}
            shorter.append(dataclasses.replace(call, kwargs=others))
        for each in shorter:
            yield dataclasses.replace(program, calls=(*program.calls[:position], each, *program.calls[position + 1 :]))
