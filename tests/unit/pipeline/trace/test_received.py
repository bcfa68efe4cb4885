"""What code gets from torch: read from a trace, and asked for while a run is recorded."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import Function

from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.running import run_tree
from onnx_ci.pipeline.trace.received import Kind, Received, numbers_in, received, with_numbers
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import Comparison, Decision, FunctionCall, NumberRead, Operator, Ref, Role, Trace, Value

X, CREATED, PART = Ref(0), Ref(1), Ref(2)
VALUES = [Value(role, (3,), torch.float32, kept=role.name) for role in (Role.INPUT, Role.RESULT, Role.RESULT)]


def kinds_and_values(*events):
    return [(each.kind, each.value, each.function) for each in received(Trace(values=VALUES, events=events))]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Decision(True, Comparison((1.0,), 1.0)), [(Kind.DECISION, True, "")]),
        (NumberRead(7, "int"), [(Kind.NUMBER, 7, "int")]),
        (FunctionCall(torch.relu, (X,), {}, PART), []),
        (FunctionCall(torch.Tensor.reshape, (X, (3, -1)), {}, PART), [(Kind.ARGUMENTS, (3, -1), "torch.Tensor.reshape")]),
        (FunctionCall(torch.ones, ((3,),), {}, CREATED), [(Kind.ARGUMENTS, (3,), "torch.ones"), (Kind.CONSTANT, "RESULT", "torch.ones")]),
        (FunctionCall(torch.rand, ((3,),), {}, CREATED), [(Kind.ARGUMENTS, (3,), "torch.rand")]),
        (FunctionCall(torch.empty, ((3,),), {}, CREATED), [(Kind.ARGUMENTS, (3,), "torch.empty")]),
        (FunctionCall(torch.Tensor.unbind, (X,), {"dim": 0}, (CREATED, PART)), [
            (Kind.ARGUMENTS, (0,), "torch.Tensor.unbind"),
            (Kind.COUNT, 2, "torch.Tensor.unbind"),
        ]),
        (FunctionCall(torch.Tensor.add_, (X, PART), {}, X), [(Kind.WRITE, True, "torch.Tensor.add_")]),
        (FunctionCall(torch.Tensor.__setitem__, (X, slice(None, 2), PART), {}, None), [
            (Kind.WRITE, True, "torch.Tensor.__setitem__"),
            (Kind.ARGUMENTS, (2,), "torch.Tensor.__setitem__"),
        ]),
    ],
)  # fmt: skip
def test_what_each_event_gives(event, expected):
    assert kinds_and_values(event) == expected


def test_numbers_are_exchanged_where_they_are():
    arguments = ((X, [1, True], slice(2, None)), {"scale": 0.5, "name": "same"})
    assert numbers_in(arguments) == (1, 2, 0.5)
    assert with_numbers(arguments, (4, 5, 6.0)) == ((X, [4, True], slice(5, None)), {"scale": 6.0, "name": "same"})


def kept(tensor, role):
    return tensor.clone()


def keep_created(tensor, role):
    return tensor.clone() if role is Role.CREATED else None


OTHERS = {
    Kind.DECISION: lambda value: not value,
    Kind.NUMBER: lambda value: value + 1,
    Kind.COUNT: lambda value: value - 1,
    Kind.WRITE: lambda value: False,
    Kind.ARGUMENTS: lambda value: tuple(each * 2 for each in value),
    Kind.CONSTANT: lambda value: -value,
}
"""Another answer of each kind."""


def run(function, changed, **options):
    """What a function gets and returns, with other answers of one kind."""
    asked: list[Received] = []

    def answers(what):
        asked.append(what)
        return OTHERS[what.kind](what.value) if what.kind is changed else what.value

    x = torch.tensor([1.0, 2.0, 3.0])
    call = Call(model=Function(function), args=(x,), kwargs={})
    with Recorder(call, answers=answers, **options) as recorder:
        result = run_tree(call)
    recorder.returned(result)
    return result, asked, recorder.trace


def writing(x):
    y = x * 1
    y.add_(1)
    y[0] = 7
    return y


CASES = [
    (lambda x: x + 1 if x.sum() > 0 else x, Kind.DECISION, [1.0, 2.0, 3.0]),
    (lambda x: x + 1 if x.shape[0] > 2 else x, Kind.DECISION, [1.0, 2.0, 3.0]),
    (lambda x: x * x[1].item(), Kind.NUMBER, [3.0, 6.0, 9.0]),
    (lambda x: torch.stack(x.split(1)), Kind.COUNT, [[1.0], [2.0]]),
    (writing, Kind.WRITE, [1.0, 2.0, 3.0]),
    (lambda x: x * 3, Kind.ARGUMENTS, [6.0, 12.0, 18.0]),
    (lambda x: x[:1] * torch.arange(1, 3), Kind.CONSTANT, [-1.0, -2.0]),
]


@pytest.mark.parametrize("kinds", [(FunctionCall, Operator), (FunctionCall,)], ids=["all", "functions"])
@pytest.mark.parametrize(("function", "kind", "expected"), CASES)
def test_code_gets_what_is_answered(function, kind, expected, kinds):
    result, _, _ = run(function, kind, kinds=kinds)
    assert result.tolist() == expected


@pytest.mark.parametrize("kinds", [(FunctionCall, Operator), (FunctionCall,)], ids=["all", "functions"])
@pytest.mark.parametrize("function", [function for function, _, _ in CASES])
def test_what_is_asked_for_is_what_the_trace_has(function, kinds):
    result, asked, trace = run(function, None, keep=kept, kinds=kinds)
    assert result.tolist() == function(torch.tensor([1.0, 2.0, 3.0])).tolist()
    of_trace = [(each.kind, str(each.value), each.function, each.place.line) for each in received(trace)]
    assert of_trace == [(each.kind, str(each.value), each.function, each.place.line) for each in asked]


def test_the_numbers_of_created_tensors_alone_can_be_kept():
    for kinds in ((FunctionCall, Operator), (FunctionCall,)):
        _, _, trace = run(lambda x: x + torch.ones(3), None, keep=keep_created, kinds=kinds)
        assert [each.kept.tolist() for each in trace.values if each.kept is not None] == [[1.0, 1.0, 1.0]]


def test_a_run_within_torch_func_is_recorded_to_its_end():
    def mapped(x):
        return torch.func.vmap(lambda row: row.reshape(1) * x)(x).sum(0) * 2

    _, _, trace = run(mapped, None)
    assert trace.is_complete
    assert (Kind.ARGUMENTS, (2,)) in [(each.kind, each.value) for each in received(trace)]


def test_the_namespaces_of_all_code_are_collected_and_apart_from_them_those_that_convert():
    source = "def half(x):\n    return x.sum() * 0.5\n\ndef size(x):\n    return int(x.shape[0])\n"
    first, second = {}, {}
    exec(compile(source, __file__, "exec"), first)
    exec(compile(source, __file__, "exec"), second)

    def both(x):
        return first["half"](x) * second["size"](x)

    x = torch.ones(3)
    call = Call(model=Function(both), args=(x,), kwargs={})
    with Recorder(call) as recorder:
        run_tree(call)
    assert {id(first), id(second)} <= recorder.namespaces.keys()
    assert recorder.converting.keys() == {id(second)}
