"""The lines of a model that change its state, those that draw random numbers, and the first that differs between two runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnx_ci.pipeline.trace.received import numbers_in
from onnx_ci.pipeline.trace.trace import (
    AttributeSet,
    Decision,
    Event,
    FunctionCall,
    NumberRead,
    Operator,
    Role,
    Trace,
    UnseenRead,
)
from onnx_ci.results.records import SourceLine


def lines_that_change_state(trace: Trace) -> list[SourceLine]:
    """The lines that set an attribute of a module or write to a parameter or a buffer, in the order of the run."""

    def is_changed(event: Event) -> bool:
        memories = [trace.values[each].memory for each in event.written] if isinstance(event, Operator) else []
        return isinstance(event, AttributeSet) or any(trace.values[memory].role is Role.WEIGHT for memory in memories)

    return _lines(filter(is_changed, trace.events))


def lines_that_draw(trace: Trace) -> list[SourceLine]:
    """The lines that draw random numbers with torch, in the order of the run."""
    return _lines(event for event in trace.of_kind(Operator) if event.call.is_random)


def first_difference(trace: Trace, other: Trace) -> SourceLine | None:
    """The first line that does something else in another run on the same inputs.

    It is where the code uses what changes between runs, such as a clock, a number drawn by ``random``, or the state of a plain
    object. Of two lines, the one counts that only one of the runs comes to.
    """
    places = {event.place for event in trace.events}
    for event, another in itertools.zip_longest(trace.events, other.events):
        if event is None or another is None or _without_tensors(event) != _without_tensors(another):
            is_new = another is not None and another.place not in places
            return (another if is_new or event is None else event).place.source
    return None


def _without_tensors(event: Event) -> object:
    """What an event is, apart from the values of tensors. Numbers are texts, in which NaN equals itself."""
    match event:
        case Operator(call=call):
            return call.operator
        case FunctionCall(function=function, args=args, kwargs=kwargs):
            return function, repr(numbers_in((args, kwargs)))
        case Decision(outcome=outcome):
            return outcome
        case UnseenRead(function=function):
            return function
        case NumberRead(value=value, function=function):
            return function, repr(value)
        case AttributeSet(module=module, name=name):
            return module, name


def _lines(events: Iterator[Event]) -> list[SourceLine]:
    sources = (event.place.source for event in events)
    return [*dict.fromkeys(source for source in sources if source is not None)]
