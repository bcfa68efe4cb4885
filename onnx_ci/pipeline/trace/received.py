"""What the code of a model gets from torch: outcomes, numbers and tensors that an exporter may write down as they are.

It is read from a trace. While a run is recorded, the recorder can also be told to ask for it: so a run is repeated with some of
what the code got in another one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from onnx_ci.pipeline.trace.trace import Decision, FunctionCall, NumberRead, Place, Ref, Trace, is_repeatable, leaves_in, mapped
from onnx_ci.pipeline.trace.tracked_numbers import plain_number


class Kind(enum.IntEnum):
    """What code gets."""

    DECISION = enum.auto()
    """The outcome of a condition."""
    NUMBER = enum.auto()
    """A number that Python reads from a tensor, or makes of a size; or several, of numpy."""
    COUNT = enum.auto()
    """How many tensors a function returns."""
    WRITE = enum.auto()
    """Whether a function changes a tensor."""
    ARGUMENTS = enum.auto()
    """The numbers that a function of torch is given."""
    CONSTANT = enum.auto()
    """A tensor that is made of no other tensor; in a trace, what is kept of it."""


class Received(NamedTuple):
    """Something that code gets."""

    kind: Kind
    value: Any
    function: str
    """What gives it: ``torch.Tensor.reshape``, ``int``; empty for Python's own operators."""
    place: Place


def received(trace: Trace) -> Iterator[Received]:
    """What the code of a run gets, in order."""
    for event in trace.events:
        match event:
            case Decision():
                yield Received(Kind.DECISION, event.outcome, "", event.place)
            case NumberRead():
                yield Received(Kind.NUMBER, event.value, event.function, event.place)
            case FunctionCall():
                for kind, value in _received_by(event, trace):
                    yield Received(kind, value, torch.overrides.resolve_name(event.function) or event.name, event.place)


def _received_by(call: FunctionCall, trace: Trace) -> Iterator[tuple[Kind, Any]]:
    arguments, result = (call.args, call.kwargs), call.result
    if call.written is not None:
        yield Kind.WRITE, True
    if numbers := numbers_in(arguments):
        yield Kind.ARGUMENTS, numbers
    takes_tensors = any(isinstance(leaf, Ref) for leaf in leaves_in(arguments))
    is_constant = isinstance(result, Ref) and is_repeatable(call.name) and not takes_tensors
    if is_constant and (kept := trace.values[result.value].kept) is not None:
        yield Kind.CONSTANT, kept
    if isinstance(result, (tuple, list)) and result and all(isinstance(each, Ref) for each in result):
        yield Kind.COUNT, len(result)


def numbers_in(arguments: Any) -> tuple[int | float, ...]:
    """The numbers among nested arguments, in order; booleans are none."""
    return tuple(plain_number(leaf) for leaf in leaves_in(arguments) if _is_number(leaf))


def with_numbers(arguments: Any, numbers: Sequence[int | float]) -> Any:
    """Nested arguments with other numbers in place of their own, as many."""
    rest = iter(numbers)
    return mapped(arguments, lambda leaf: next(rest) if _is_number(leaf) else leaf)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
