"""What a run decides, read from traces made by hand."""

from __future__ import annotations

import torch

from onnx_ci.pipeline.inputs.decisions import observed
from onnx_ci.pipeline.trace.trace import Comparison, Decision, Frame, FunctionCall, Place, Ref, Role, Trace, Value

CODE = compile("x > 0", "net.py", "eval")
HERE, THERE = (Place((Frame(CODE, offset),)) for offset in (0, 2))
IN_TORCH = Place((Frame(CODE, 0),), is_in_torch=True)
VALUES = [
    Value(Role.INPUT, (3,), torch.float32, memory=0),
    Value(Role.RESULT, (3,), torch.bool, memory=1),
    Value(Role.RESULT, (3,), torch.bool, memory=2),
    Value(Role.RESULT, (), torch.bool, memory=3),
    Value(Role.RESULT, (3,), torch.bool, memory=1),  # the first boolean, written to
]
X, LARGE, SMALL, BOTH, WRITTEN = map(Ref, range(5))
ABOVE, BELOW = Comparison((-1.0, 2.0), 3.0), Comparison((4.0,), 4.0)
READ = Comparison((), 1.0)


def decided(*events):
    return observed(Trace(values=VALUES, events=events)).decisions


def test_a_boolean_is_decided_by_the_comparisons_that_it_was_computed_from():
    events = (
        FunctionCall(torch.gt, (X, 0), {}, LARGE, ABOVE),
        FunctionCall(torch.lt, (X, 1), {}, SMALL, BELOW),
        FunctionCall(torch.logical_and, (LARGE, SMALL), {}, BOTH, READ),
        Decision(True, READ, (BOTH.value,), place=HERE),
    )
    (decision,) = decided(*events)[HERE]
    assert decision.comparison == Comparison((-1.0, 2.0, 4.0), 7.0)
    assert (decision.outcome, decision.by_sizes) == (True, False)


def test_a_boolean_that_was_written_to_keeps_its_comparisons():
    events = (
        FunctionCall(torch.gt, (X, 0), {}, LARGE, ABOVE),
        FunctionCall(torch.Tensor.__setitem__, (LARGE, 0, True), {}, None),
        Decision(False, READ, (WRITTEN.value,), place=HERE),
    )
    assert [each.comparison for each in decided(*events)[HERE]] == [ABOVE]


def test_what_no_comparison_has_computed_is_decided_by_its_own_value():
    assert [each.comparison for each in decided(Decision(True, READ, (LARGE.value,), place=HERE))[HERE]] == [READ]


def test_each_place_has_its_decisions_in_order_and_torch_has_none():
    sizes = [Comparison((gap,), gap) for gap in (1.0, 2.0, 3.0)]
    events = [Decision(True, each, by_sizes=True, place=place) for each, place in zip(sizes, (HERE, THERE, HERE), strict=True)]
    of_places = decided(*events, Decision(True, READ, place=IN_TORCH), Decision(True, READ))
    assert {place: [each.comparison.gaps for each in of_place] for place, of_place in of_places.items()} == {
        HERE: [(1.0,), (3.0,)],
        THERE: [(2.0,)],
    }
