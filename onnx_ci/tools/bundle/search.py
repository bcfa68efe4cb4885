"""The first part of a model's calls that fails by itself, and without the calls that it can fail without."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from onnx_ci.pipeline.inputs.probes import Probes
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.tensors import same_shapes
from onnx_ci.pipeline.trace.trace import mapped
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import Finding
from onnx_ci.tools.bundle.program import FunctionCall, Name, Operand, Program
from onnx_ci.tools.bundle.record import record, record_dynamic

_X, _Y = (
    Operand(
        name=each, shape=(2, 3), shape_at_export=(2, 3), dtype=torch.float32, is_weight=False, low=-1.0, high=1.0, spread=1.0
    )
    for each in ("x", "y")
)
_RELU = FunctionCall(
    function="torch.relu", args=(Name(name="x"),), kwargs={}, result=Name(name="y"), writes=None, source=None, module=""
)
_RIGHT = Program(operands={"x": _X, "y": _Y}, calls=(_RELU,), outputs=("y",))
"""A program that is right. If it fails, all programs do, for instance because a package is missing."""


def failing_part(parts: Iterable[Program], fails: Callable[[Program], bool], deadline: float) -> Program | None:
    """The first part of a model's calls that fails by itself; ``None`` if no part does, or if every program does."""
    if fails(_RIGHT):
        return None
    in_time = itertools.takewhile(lambda _: CLOCK.thread_time() <= deadline, parts)
    return next(filter(fails, in_time), None)


def called_programs(model: RecipeModel, probes: Probes, finding: Finding) -> Iterator[Program]:
    """What the model calls on the input that fails, and on one with other sizes: a dynamic axis alone can be the fault."""
    # A file that fails on an input has been judged with the separate probes.
    tried = (probes if finding.probe is None else probes.one_kind_per_probe).all
    probe = next((each for each in tried if each.name == finding.probe), probes.example)
    yield record(model, probe)
    resized = next((each for each in (probe, *tried) if not same_shapes(each.inputs, probes.example.inputs)), None)
    dynamic = None if resized is None else record_dynamic(model, resized, probes.example)
    if dynamic is not None:
        yield dynamic


def parts_anywhere(program: Program) -> Iterator[Program]:
    """Single calls, one of each kind, then the whole program, its halves, its quarters and so on."""
    count = len(program.calls)
    kinds: dict[object, int] = {}
    for position, call in enumerate(program.calls):
        kinds.setdefault(_kind(call, program), position)
    positions: list[tuple[int, ...]] = [(each,) for each in kinds.values()]
    size = count
    while size >= 2:
        positions += (tuple(range(start, min(count, start + size))) for start in range(0, count, size))
        size //= 2
    yield from map(program.part, dict.fromkeys(positions))


def _kind(call: FunctionCall, program: Program) -> object:
    """What a call does, without its sizes and other numbers."""

    def leaf(value: Any) -> object:
        if isinstance(value, Name):
            operand = program.operands[value.name]
            return operand.dtype, len(operand.shape), operand.is_weight
        return type(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    return call.function, repr(mapped(call.args, leaf)), repr({name: mapped(each, leaf) for name, each in call.kwargs.items()})


def shrunk(
    program: Program, step: Callable[[Program], Iterator[Program]], fails: Callable[[Program], bool], deadline: float
) -> Program:
    """The program after as many steps as leave it failing."""
    while True:
        candidates = itertools.takewhile(lambda _: CLOCK.thread_time() < deadline, step(program))
        smaller = next(filter(fails, candidates), None)
        if smaller is None:
            return program
        program = smaller


def with_fewer_calls(program: Program) -> Iterator[Program]:
    """A failing program without a half, a quarter, or one of its calls."""
    count = len(program.calls)
    if count > 1:
        for size in sorted({count // 2, count // 4, 1} - {0}, reverse=True):
            for start in range(0, count, size):
                others = [number for number in range(count) if not start <= number < start + size]
                if others:
                    yield program.part(others)
