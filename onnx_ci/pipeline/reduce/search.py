"""The first part of a model's calls that fails by itself."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.prepare.prepare import Prepared
from onnx_ci.pipeline.reduce.program import Data, FunctionCall, Name, Operand, Program, mapped
from onnx_ci.pipeline.reduce.record import record, record_dynamic
from onnx_ci.pipeline.reduce.trial import FAILURES, Failure
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import Finding, SourceLine

_MOST_AROUND = 3
"""How many calls before and after a line may belong to its fault."""
_SEEDS = 3

_RIGHT = Program(
    operands={
        name: Operand(
            name=name,
            shape=(2, 3),
            shape_at_export=(2, 3),
            dtype=torch.float32,
            is_weight=False,
            low=-1.0,
            high=1.0,
            spread=1.0,
        )
        for name in ("x", "y")
    },
    calls=(
        FunctionCall(
            function="torch.relu", args=(Name(name="x"),), kwargs={}, result=Name(name="y"), writes=None, source=None, module=""
        ),
    ),
    outputs=("y",),
)
"""A program that is right. If it fails, all programs do, for instance because a package is missing."""


def failing_part(
    prepared: Prepared, finding: Finding, lines: Sequence[SourceLine], fails: Callable[[Program], bool], deadline: float
) -> Program | None:
    """The first part of the model's calls that fails by itself; ``None`` if no part does, or if every program does.

    Calls at and around the lines are tried first; then one call of each kind; then longer parts. Each time, they are exported
    with the sizes that they run with; if none fails, with the sizes of the example.

    Args:
        prepared: the recipe.
        finding: what is wrong with its cell.
        lines: where the fault is, as far as that is known.
        fails: whether a program fails as the cell does.
        deadline: when to stop, by :func:`time.thread_time`.
    """
    if fails(_RIGHT):
        return None
    for part in _parts(list(_programs(prepared, finding)), lines, FAILURES[finding.rule]):
        if CLOCK.thread_time() > deadline:
            return None
        if fails(part):
            return part
    return None


def _programs(prepared: Prepared, finding: Finding) -> Iterator[Program]:
    """What the model calls on the input that fails, and on one with other sizes: a dynamic axis alone can be the fault."""
    # A file that fails on an input has been judged with the separate probes.
    probes = (prepared if finding.probe is None else prepared.one_kind_per_probe).probes
    probe = next((each for each in probes if each.name == finding.probe), prepared.example)
    yield record(prepared, probe)
    resized = next((each for each in (probe, *probes) if _shapes(each) != _shapes(prepared.example)), None)
    dynamic = None if resized is None else record_dynamic(prepared, resized)
    if dynamic is not None:
        yield dynamic


def _shapes(probe: Probe) -> list[torch.Size]:
    return [each.shape for each in probe.inputs]


def _parts(programs: Sequence[Program], lines: Sequence[SourceLine], failure: Failure) -> Iterator[Program]:
    """Parts of the programs with values of their own, the likeliest to fail first."""
    depends_on_values = failure in (Failure.RUN, Failure.VALUES)
    draws = [*itertools.product(range(_SEEDS), Data)] if depends_on_values else [(0, Data.LIKE_RECORDED)]
    at_lines = [[number for number, call in enumerate(program.calls) if call.source in lines] for program in programs]
    for program, positions in zip(programs, at_lines, strict=True):
        around = _parts_of(program, _around(positions, len(program.calls)))
        for seed, data in draws:
            yield from (dataclasses.replace(part, data=data, seed=seed) for part in around)
    # Where wrong values come from is known, and elsewhere, other values could show another fault.
    if not (depends_on_values and any(at_lines)):
        for program in programs:
            yield from _parts_of(program, _anywhere(program))


def _parts_of(program: Program, positions: Iterable[Iterable[int]]) -> list[Program]:
    return [program.part(each) for each in dict.fromkeys(map(tuple, positions))]


def _around(at_lines: Sequence[int], count: int) -> Iterator[Iterable[int]]:
    """The positions of parts around the calls at some positions, the smallest first."""
    if not at_lines:
        return
    yield from ([each] for each in at_lines)
    yield at_lines
    first, last = at_lines[0], at_lines[-1] + 1
    for distance in range(1, _MOST_AROUND + 1):
        yield range(max(0, first - distance), last)
        yield range(max(0, first - distance), min(count, last + distance))


def _anywhere(program: Program) -> Iterator[Iterable[int]]:
    """The positions of single calls, one of each kind, then of the whole program, its halves, its quarters and so on."""
    count = len(program.calls)
    kinds: dict[object, int] = {}
    for position, call in enumerate(program.calls):
        kinds.setdefault(_kind(call, program), position)
    yield from ([each] for each in kinds.values())
    size = count
    while size >= 2:
        yield from (range(start, min(count, start + size)) for start in range(0, count, size))
        size //= 2


def _kind(call: FunctionCall, program: Program) -> object:
    """What a call does, without its sizes and other numbers."""

    def leaf(value: Any) -> object:
        if isinstance(value, Name):
            operand = program.operands[value.name]
            return operand.dtype, len(operand.shape), operand.is_weight
        return type(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    return call.function, repr(mapped(call.args, leaf)), repr({name: mapped(each, leaf) for name, each in call.kwargs.items()})
