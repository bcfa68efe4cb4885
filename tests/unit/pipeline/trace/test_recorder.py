"""What a recorder sees of a run, also where torch's own tools change how code runs."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import Function

from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.running import run_tree
from onnx_ci.pipeline.prepare.side_effects import lines_that_draw
from onnx_ci.pipeline.trace import recorder
from onnx_ci.pipeline.trace.recorder import Recorder, Tracer
from onnx_ci.pipeline.trace.trace import NOWHERE, Decision, FunctionCall, NumberRead, Operator, Role
from onnx_ci.pipeline.trace.tracked_numbers import TrackedInt


def recorded(model, *inputs, tracer=None, seed=0):
    model = model if isinstance(model, torch.nn.Module) else Function(model)
    return (tracer or Tracer(None)).record(Call(model=model.eval(), args=inputs, kwargs={}), seed=seed)[0]


def operators(trace):
    return [each.name for each in trace.of_kind(Operator)]


# --- values -----------------------------------------------------------------------------------------------------------


def test_inputs_weights_and_results_are_values_with_references_to_them():
    trace = recorded(torch.nn.Linear(4, 3), torch.randn(2, 4))
    transposed, product = trace.of_kind(Operator)
    roles = {position: (value.role, value.name) for position, value in enumerate(trace.values)}
    assert [roles[each] for each in product.operands] == [
        (Role.WEIGHT, "bias"),
        (Role.INPUT, ""),
        (Role.RESULT, ""),
    ]
    assert trace.values[transposed.results[0]].memory == transposed.operands[0]  # the weight, seen another way
    assert (trace.outputs, trace.values[product.results[0]].shape) == (product.results, (2, 3))


def test_what_is_written_to_becomes_another_value_and_so_do_its_views():
    def model(x):
        y = x * 2
        row = y[0]
        y.add_(1)
        return row + 1

    trace = recorded(model, torch.randn(2, 4))
    product, selected, added, last = trace.of_kind(Operator)
    assert (product.name, added.name) == ("mul", "add")
    assert added.results[0] != product.results[0]
    assert last.operands[0] in added.written
    assert last.operands[0] != selected.results[0]
    assert {trace.values[each].memory for each in added.written} == {product.results[0]}


def test_small_integers_and_single_numbers_are_kept():
    trace = recorded(lambda i, x: x[i] + x.new_tensor(0.5), torch.tensor([1, 0]), torch.randn(2, 3))
    kept = [value.kept for value in trace.values if value.kept is not None]
    assert [each.tolist() for each in kept] == [[1, 0], 0.5]


# --- what is seen -----------------------------------------------------------------------------------------------------


def doubled_if_positive(x):
    if bool(x.sum() > 0):
        return x * 2
    return x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning", "ignore:.*nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:.*Sparse CSR:UserWarning")
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda x: torch.vmap(lambda row: row * (row > 0))(x), id="vmap"),
        pytest.param(lambda x: torch.func.jvp(lambda y: y * y, (x,), (x,))[1], id="jvp"),
        pytest.param(lambda x: torch.jit.script(doubled_if_positive)(x), id="script"),
        pytest.param(Doubled.apply, id="autograd"),
        pytest.param(lambda x: torch.cond(x.sum() > 100, lambda x: x + 1, lambda x: x * 2, (x,)), id="cond"),
        pytest.param(lambda x: x.to_sparse().to_dense() * 2, id="sparse"),
        pytest.param(lambda x: torch.nested.nested_tensor([x, x[:1]]).to_padded_tensor(0.0) * 2, id="nested"),
    ],
)
def test_operators_are_seen_wherever_they_are_called(model):
    model(torch.rand(3, 4))  # as in a preparation; torch.cond imports torch.compile, which the recorder switches off
    trace = recorded(model, torch.rand(3, 4))
    assert "mul" in operators(trace)
    assert (trace.is_accepted, trace.is_complete) == (True, True)


def test_a_model_that_raises_is_recorded_up_to_there():
    trace = recorded(lambda x: (x + 1).view(7), torch.randn(2, 3))
    assert (trace.is_accepted, operators(trace)) == (False, ["add"])


def test_a_trace_has_a_limit_and_says_so(monkeypatch):
    monkeypatch.setattr(recorder, "MOST_EVENTS", 10)

    def model(x):
        for _ in range(20):
            x = x + 1
        return x

    trace = recorded(model, torch.randn(2))
    assert (trace.is_accepted, trace.is_complete, len(trace.events)) == (True, False, 10)


# --- what Python reads and decides ------------------------------------------------------------------------------------


def test_decisions_and_numbers_come_with_what_they_compare():
    def model(x):
        if x.sum() > 1:
            x = x * 2
        if x.shape[0] > 5:
            x = x + 1
        return x[: int(x.shape[0] * 0.5)]

    trace = recorded(model, torch.full((4,), 2.0))
    by_value, by_size = trace.of_kind(Decision)
    compared = next(each for each in trace.of_kind(FunctionCall) if each.comparison is not None)
    assert (compared.comparison.gaps, by_value.outcome, by_value.by_sizes) == ((7.0,), True, False)
    assert by_value.tested == (compared.result.value,)
    assert (by_size.comparison.gaps, by_size.outcome, by_size.by_sizes) == ((-1.0,), False, True)
    assert [each.value for each in trace.of_kind(NumberRead)] == [2]


def test_the_same_helper_called_on_two_lines_is_two_places():
    def is_large(x):
        return bool(x.sum() > 1)

    def model(x):
        first = is_large(x)
        second = is_large(-x)
        return x * (first + second)

    first, second = recorded(model, torch.ones(3)).of_kind(Decision)
    assert first.place != second.place
    assert first.place.frames[0] == second.place.frames[0]
    again, _ = recorded(model, torch.ones(3)).of_kind(Decision)
    assert again.place == first.place


def test_an_event_has_its_module_and_its_line():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Function(lambda x: x * 2)

        def forward(self, x):
            return self.inner(x) + 1

    product, total = recorded(Net(), torch.ones(3)).of_kind(Operator)
    assert (product.place.module, total.place.module) == ("inner", "")
    assert "self.inner(x) + 1" in total.place.source.text
    assert product.place.source.text.startswith("self.inner = Function(lambda")


def test_lines_that_draw():
    trace = recorded(lambda x: x + torch.rand(3), torch.ones(3))
    assert ["torch.rand(3)" in line.text for line in lines_that_draw(trace)] == [True]


# --- operators alone ---------------------------------------------------------------------------------------------------

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

    assert {*map(type, trace_of(function, kinds=(Operator,)).events)} == {Operator}
    assert {*map(type, trace_of(function).events)} == {Operator, FunctionCall, Decision}
    assert sizes == [int, TrackedInt]


def test_an_operator_that_takes_functions_comes_before_those_that_it_calls():
    trace = trace_of(lambda x: torch.ops.higher_order.cond(x.sum() > 0, torch.relu, torch.neg, (x,)), kinds=(Operator,))
    names = [(operator.name, operator.call.is_higher_order) for operator in trace.of_kind(Operator)]
    assert names[-2:] == [("cond", True), ("neg", False)]
    assert trace.outputs == trace.events[-1].results


def test_what_the_model_does_not_call_has_no_place():
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return x + x

    call = Call(model=Doubled(), args=(X,), kwargs={})
    with Recorder(call, kinds=(Operator,)) as recorder:
        run_tree(call).clone()
    added, cloned = recorder.trace.of_kind(Operator)
    assert added.place.source.text == "return x + x"
    assert cloned.place == NOWHERE
