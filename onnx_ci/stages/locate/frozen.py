"""What a file has frozen: where the model does something else on the example, by which the file was made."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from onnx_ci.results.records import Frozen, FrozenKind, SourceLine
from onnx_ci.stages.locate.model_trace import ModelTrace, Step, TracedOperator


def what_was_frozen(
    operator: TracedOperator, trace: ModelTrace, on_example: ModelTrace
) -> tuple[SourceLine | None, Frozen] | None:
    """The line that does something else on the example: that of the operator at fault, or else where the two runs part.

    ``None`` if both runs are the same, so that nothing was frozen.

    Args:
        operator: the first one whose result the file does not have.
        trace: the run in which that is so.
        on_example: the run on the example.
    """
    frozen = None if operator.source is None else _at_line_of(operator, trace, on_example)
    if frozen is not None and frozen.kind in (FrozenKind.NUMBER, FrozenKind.TENSORS):
        return operator.source, frozen
    # Another way through the code begins where the two runs part, which can be before the operator.
    return _parting(trace.steps, on_example.steps) or (None if frozen is None else (operator.source, frozen))


def _at_line_of(operator: TracedOperator, trace: ModelTrace, on_example: ModelTrace) -> Frozen | None:
    here, there = ([each for each in one.operators if _is_at(each, operator)] for one in (trace, on_example))
    if len(here) != len(there):
        return _loop([each.name for each in here], [each.name for each in there])
    for one, other in zip(here, there, strict=True):
        if one.name != other.name:
            continue
        if len(one.outputs) != len(other.outputs):
            return Frozen(kind=FrozenKind.TENSORS, here=(len(one.outputs),), on_example=(len(other.outputs),))
        if one.numbers != other.numbers and len(one.numbers) == len(other.numbers):
            pairs = [(a, b) for a, b in zip(one.numbers, other.numbers, strict=True) if a != b]
            return Frozen(kind=FrozenKind.NUMBER, here=tuple(a for a, _ in pairs), on_example=tuple(b for _, b in pairs))
    return None


def _is_at(one: TracedOperator, other: TracedOperator) -> bool:
    return (one.source, one.module) == (other.source, other.module)


def _parting(here: Sequence[Step], there: Sequence[Step]) -> tuple[SourceLine | None, Frozen] | None:
    """The condition, or the loop, at which two runs part."""
    last: tuple[Step, Step] | None = None
    for position, (one, other) in enumerate(itertools.zip_longest(here, there)):
        if one is not None and other is not None and one.is_at_same_line(other):
            last = one, other
            continue
        if last is not None and isinstance(last[0].number, bool) and last[0].number != last[1].number:
            frozen = Frozen(kind=FrozenKind.CONDITION, here=(float(last[0].number),), on_example=(float(not last[0].number),))
            return last[0].source, frozen
        # A line that has run before is in a loop, which comes before what follows the loop in the other run.
        candidates = sorted(filter(None, (one, other)), key=lambda step: not any(map(step.is_at_same_line, here[:position])))
        for step in candidates:
            names = [[each.operator for each in run if each.is_at_same_line(step)] for run in (here, there)]
            if len(names[0]) != len(names[1]):
                return step.source, _loop(*names)
        return None
    return None


def _loop(here: Sequence[str], there: Sequence[str]) -> Frozen:
    """How often a line runs, by the names of the operators that it calls."""
    rarest = [min(Counter(names).values(), default=0) for names in (here, there)]
    runs = rarest if rarest[0] != rarest[1] else [len(here), len(there)]
    return Frozen(kind=FrozenKind.LOOP if all(runs) else FrozenKind.BRANCH, here=(runs[0],), on_example=(runs[1],))
