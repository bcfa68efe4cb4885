"""A program is read from a trace."""

from __future__ import annotations

import math

import pytest
import torch

from onnx_ci.pipeline.trace.trace import FunctionCall, Ref, Role, Trace, Value
from onnx_ci.tools.bundle.program import Name
from onnx_ci.tools.bundle.record import Numbers, numbers_of, program_of

X, WEIGHT, Y, Z = map(Ref, range(4))
VALUES = [
    Value(role, (2, 3), torch.float32, (3, 1), kept=Numbers(low, low + 1.0, 0.5))
    for low, role in enumerate((Role.INPUT, Role.WEIGHT, Role.RESULT, Role.RESULT))
]


def program(*calls, values=VALUES, outputs=(Z.value,)):
    events = [FunctionCall(function, args, kwargs, result) for function, args, kwargs, result in calls]
    return program_of(Trace(values=values, events=events, inputs=(X.value,), outputs=outputs))


def lines(found):
    """What is called with which tensors, and what it makes and writes."""
    return [
        (call.function.rpartition(".")[2], call.uses, call.result and call.result.name, call.writes) for call in found.calls
    ]


def test_calls_get_names_in_order_and_operands_what_is_kept_of_them():
    found = program((torch.matmul, (X, WEIGHT), {}, Y), (torch.clamp, (Y,), {"min": 0.5}, Z))
    assert lines(found) == [("matmul", ("t0", "t1"), "t2", None), ("clamp", ("t2",), "t3", None)]
    assert (found.calls[1].kwargs, found.outputs) == ({"min": 0.5}, ("t3",))
    assert [(each.low, each.is_weight, each.shape) for each in found.operands.values()] == [
        (0.0, False, (2, 3)),
        (1.0, True, (2, 3)),
        (2.0, False, (2, 3)),
        (3.0, False, (2, 3)),
    ]


def test_a_call_in_place_writes_and_makes_nothing():
    found = program(
        (torch.Tensor.add_, (X, 1), {}, X),
        (torch.Tensor.__setitem__, (X, (slice(None, 2), 0), WEIGHT), {}, None),
        (torch.add, (X, X), {"out": Y}, Y),
    )
    assert lines(found) == [
        ("add_", ("t0",), None, "t0"),
        ("__setitem__", ("t0", "t1"), None, "t0"),
        ("add", ("t0", "t2"), None, "t2"),
    ]


def test_a_tensor_that_is_returned_as_it_is_gets_another_name():
    found = program((torch.Tensor.contiguous, (X,), {}, X), (torch.relu, (X,), {}, Z))
    assert lines(found) == [("contiguous", ("t0",), "t1", None), ("relu", ("t1",), "t2", None)]


@pytest.mark.parametrize(
    "call",
    [
        (torch.rand_like, (X,), {}, Y),  # random
        (torch.Tensor.new_tensor, (X, object()), {}, Y),  # with an argument that no script has
        (len, (X,), {}, Y),  # no function of torch
    ],
)
def test_the_result_of_what_cannot_be_written_down_is_an_input(call):
    found = program(call, (torch.add, (X, Y), {}, Z))
    assert lines(found) == [("add", ("t0", "t1"), "t2", None)]
    assert [each.name for each in found.inputs] == ["t0", "t1"]


def test_tensors_that_no_script_can_make_are_not_written_down():
    values = [*VALUES[:2], Value(Role.RESULT, (2,), torch.complex64), VALUES[3]]
    found = program((torch.fft.fft, (X,), {}, Y), (torch.abs, (Y,), {}, Z), (torch.relu, (X,), {}, Z), values=values)
    assert [call.function for call in found.calls] == ["torch.relu"]


def test_several_results_and_what_is_no_output_of_a_call():
    found = program((torch.Tensor.unbind, (X,), {}, (Y, Z)), outputs=(None, Z.value))
    assert found.calls[0].result == (Name(name="t1"), Name(name="t2"))
    assert found.outputs == ("t2",)


def test_the_numbers_of_a_tensor_are_those_that_are_finite():
    def numbers(values):
        return numbers_of(torch.tensor(values), Role.INPUT)

    assert numbers([math.nan, -1.0, math.inf, 3.0]) == Numbers(-1.0, 3.0, 2.0)
    assert numbers([math.nan]) == numbers([]) == Numbers()
    assert numbers([1j]) is None
    assert numbers([True, False]) == Numbers(0.0, 1.0, 0.5)
