"""What a file has frozen: where the model does something else on the example, from which the file was made.

If the line at fault does something else on the example, or the two runs part before it, the exporter wrote down what the
example does. If both runs are the same, nothing was frozen, and the exporter translates the operator wrongly.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from onnx_ci.results.records import Frozen, FrozenKind, SourceLine
from onnx_ci.stages.locate.model_trace import ModelTrace, Step, TracedOperator


def what_was_frozen(
    operator: TracedOperator, trace: ModelTrace, on_example: ModelTrace
) -> tuple[SourceLine | None, Frozen] | None:
    """The line that does something else on the example: the line of ``operator``, or the line where the two runs part.

    ``None`` if both runs are the same.

    Args:
        operator: the first one whose result the file does not have.
        trace: the run that ``operator`` is from.
        on_example: the run on the example.
    """
    frozen = None if operator.source is None else _frozen_at_line_of(operator, trace, on_example)
    if frozen is not None and frozen.kind in (FrozenKind.NUMBER, FrozenKind.TENSORS):
        return operator.source, frozen
    # Another way through the code begins where the two runs part, which can be before the operator.
    return _parting(trace.steps, on_example.steps) or (None if frozen is None else (operator.source, frozen))


def _frozen_at_line_of(operator: TracedOperator, trace: ModelTrace, on_example: ModelTrace) -> Frozen | None:
    here, there = _at_line_of(operator, trace), _at_line_of(operator, on_example)
    if len(here) != len(there):
        return _loop([call.name for call in here], [call.name for call in there])
    for call, example_call in zip(here, there, strict=True):
        if call.name != example_call.name:
            continue
        if len(call.outputs) != len(example_call.outputs):
            return Frozen(kind=FrozenKind.TENSORS, here=(len(call.outputs),), on_example=(len(example_call.outputs),))
        if call.numbers != example_call.numbers and len(call.numbers) == len(example_call.numbers):
            pairs = [(a, b) for a, b in zip(call.numbers, example_call.numbers, strict=True) if a != b]
            return Frozen(kind=FrozenKind.NUMBER, here=tuple(a for a, _ in pairs), on_example=tuple(b for _, b in pairs))
    return None


def _at_line_of(operator: TracedOperator, trace: ModelTrace) -> list[TracedOperator]:
    place = operator.source, operator.module
    return [call for call in trace.operators if (call.source, call.module) == place]


def _parting(here: Sequence[Step], there: Sequence[Step]) -> tuple[SourceLine | None, Frozen] | None:
    """The condition or the loop at which two runs part."""
    last_common: tuple[Step, Step] | None = None
    for position, (step, example_step) in enumerate(itertools.zip_longest(here, there)):
        if step is not None and example_step is not None and step.is_at_same_line(example_step):
            last_common = step, example_step
            continue
        if last_common is not None and isinstance(last_common[0].number, bool):
            condition, on_example = last_common[0].number, last_common[1].number
            if condition != on_example:
                frozen = Frozen(kind=FrozenKind.CONDITION, here=(float(condition),), on_example=(float(not condition),))
                return last_common[0].source, frozen
        # A line that has run before is in a loop, which comes before what follows the loop in the other run.
        candidates = sorted(
            filter(None, (step, example_step)), key=lambda candidate: not any(map(candidate.is_at_same_line, here[:position]))
        )
        for candidate in candidates:
            names = [[each.operator for each in run if each.is_at_same_line(candidate)] for run in (here, there)]
            if len(names[0]) != len(names[1]):
                return candidate.source, _loop(*names)
        return None
    return None


def _loop(here: Sequence[str], there: Sequence[str]) -> Frozen:
    """How often a line runs, by the names of the operators that it calls."""
    # An operator that the line calls once counts its runs.
    runs, example_runs = (min(Counter(names).values(), default=0) for names in (here, there))
    if runs == example_runs:
        runs, example_runs = len(here), len(there)
    kind = FrozenKind.LOOP if runs and example_runs else FrozenKind.BRANCH
    return Frozen(kind=kind, here=(runs,), on_example=(example_runs,))
