"""What a recorder sees of a run."""

from __future__ import annotations

import torch

from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.running import run_tree
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import NOWHERE, Decision, FunctionCall, Operator
from onnx_ci.pipeline.trace.tracked_numbers import TrackedInt

X = torch.tensor([1.0, -2.0])


def trace_of(function, **options):
    with torch.no_grad(), Recorder(Call(model=torch.nn.Module(), args=(X,), kwargs={}), **options) as recorder:
        recorder.returned(function(X))
    return recorder.trace


def test_a_recorder_of_operators_leaves_numbers_as_they_are():
    sizes = []

    def function(x):
        sizes.append(type(x.shape[0]))
        return x.relu() if x.sum() < 0 else x

    assert {*map(type, trace_of(function, operators_only=True).events)} == {Operator}
    assert {*map(type, trace_of(function).events)} == {Operator, FunctionCall, Decision}
    assert sizes == [int, TrackedInt]


def test_an_operator_that_takes_functions_comes_before_those_that_it_calls():
    trace = trace_of(lambda x: torch.ops.higher_order.cond(x.sum() > 0, torch.relu, torch.neg, (x,)), operators_only=True)
    names = [(operator.name, operator.call.is_higher_order) for operator in trace.of_kind(Operator)]
    assert names[-2:] == [("cond", True), ("neg", False)]
    assert trace.outputs == trace.events[-1].results


def test_what_the_model_does_not_call_has_no_place():
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return x + x

    call = Call(model=Doubled(), args=(X,), kwargs={})
    with Recorder(call, operators_only=True) as recorder:
        run_tree(call).clone()
    added, cloned = recorder.trace.of_kind(Operator)
    assert added.place.source.text == "return x + x"
    assert cloned.place == NOWHERE
