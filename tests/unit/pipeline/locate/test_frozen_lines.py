"""Which lines get something else in one run than in another, read from two traces; and what they are given in a third one."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

from onnx_ci.pipeline.locate.frozen_lines import AsOnExample, differences
from onnx_ci.pipeline.trace.received import Kind, Received
from onnx_ci.pipeline.trace.trace import (
    NOWHERE,
    Comparison,
    Decision,
    Frame,
    FunctionCall,
    NumberRead,
    Place,
    Ref,
    Role,
    Trace,
    Value,
)
from onnx_ci.results.records import Frozen, FrozenKind


def first(x):
    return x


def second(x):
    return x


def place(function, *, module="", is_in_torch=False, called_by=()):
    codes = (function.__code__, *(each.__code__ for each in called_by))
    return Place(tuple(Frame(code, 0) for code in codes), module, is_in_torch)


FIRST, SECOND = place(first), place(second)
X, Y = Ref(0), Ref(1)


def decided(outcome, where=FIRST):
    return Decision(outcome, Comparison((), 0.0), place=where)


def read(value, where=FIRST):
    return NumberRead(value, "int", where)


def called(function, *args, result=Y, where=FIRST):
    return FunctionCall(function, args, {}, result, place=where)


def run(*events, kept=None):
    values = [Value(role, (2,), torch.float32, kept=kept) for role in (Role.INPUT, Role.RESULT)]
    return Trace(values=values, events=events)


def frozen(kind, here=(), on_example=()):
    return Frozen(kind=kind, here=here, on_example=on_example)


SPLIT_IN_THREE, SPLIT_IN_TWO = ([called(torch.Tensor.unbind, X, result=(Y,) * count)] for count in (3, 2))


@pytest.mark.parametrize(
    ("here", "on_example", "expected"),
    [
        ([decided(True)], [decided(False)], frozen(FrozenKind.CONDITION, (1.0,), (0.0,))),
        ([decided(True)] * 3, [decided(True)] * 2, frozen(FrozenKind.LOOP, (3,), (2,))),
        ([decided(True)], [decided(False)] * 2, frozen(FrozenKind.CONDITION, (1.0,), (0.0,))),  # `or` ends early
        ([called(torch.Tensor.reshape, X, 4)], [], frozen(FrozenKind.BRANCH, (1,), (0,))),
        ([read(5)], [read(3)], frozen(FrozenKind.NUMBER, (5.0,), (3.0,))),
        ([read(1), read(2), read(7)], [read(1), read(3)], frozen(FrozenKind.NUMBER, (2.0,), (3.0,))),
        ([read(np.arange(3))], [read(np.arange(2))], frozen(FrozenKind.CONSTANT)),
        (SPLIT_IN_THREE, SPLIT_IN_TWO, frozen(FrozenKind.TENSORS, (3,), (2,))),
        (
            [called(torch.Tensor.reshape, X, (2, 6, 4))],
            [called(torch.Tensor.reshape, X, (2, 3, 8))],
            frozen(FrozenKind.NUMBER, (6.0, 4.0), (3.0, 8.0)),
        ),
        ([called(torch.Tensor.add_, X, result=X)], [called(torch.Tensor.add_, X, result=X)], frozen(FrozenKind.WRITE)),
    ],
)
def test_what_a_line_gets_that_is_not_what_it_gets_on_the_example(here, on_example, expected):
    (line,) = differences(run(*here), run(*on_example))
    assert (line.frozen, line.key.source.text) == (expected, "def first(x):")


def test_a_new_tensor_with_other_values_is_a_difference():
    ramps = [run(called(torch.eye), kept=torch.arange(size)) for size in (3, 2)]
    (line,) = differences(*ramps)
    assert (line.culprit.operators, line.frozen) == (("torch.eye",), frozen(FrozenKind.CONSTANT))


@pytest.mark.parametrize(
    "events",
    [
        [decided(True), read(3), read(math.nan), called(torch.Tensor.reshape, X, 2)],
        SPLIT_IN_TWO,
        [called(torch.Tensor.mul, X, X)],
    ],
)
def test_what_is_the_same_is_no_difference(events):
    assert differences(run(*events), run(*events)) == []


def test_what_no_code_of_the_model_gets_is_no_difference():
    assert differences(run(read(1, NOWHERE)), run(read(2, NOWHERE))) == []


def test_lines_are_in_the_order_of_the_run_and_calls_of_one_line_are_one():
    layers = [place(first, module=name, called_by=[second]) for name in ("layer1", "layer2")]
    found = differences(
        run(read(9, SECOND), *(read(size, layer) for size, layer in zip((4, 5), layers, strict=True))),
        run(*(read(size, layer) for size, layer in zip((4, 6), layers, strict=True)), read(8, SECOND)),
    )
    assert [(line.key.source.text, line.here, line.on_example) for line in found] == [
        ("def second(x):", [9], [8]),
        ("def first(x):", [4, 5], [4, 6]),
    ]


def test_what_torch_gets_in_a_call_of_a_line_is_apart_from_what_the_line_gets():
    in_torch = place(first, is_in_torch=True)
    found = differences(run(read(1), read(2, in_torch)), run(read(1), read(3, in_torch)))
    assert [(line.key.is_in_torch, line.here) for line in found] == [(True, [2])]


# --- answers ----------------------------------------------------------------------------------------------------------


def answered(here, on_example, *received, deadline=math.inf):
    answers = AsOnExample(differences(run(*here), run(*on_example)), deadline)
    return [answers(Received(kind, value, "", where)) for kind, value, where in received], answers.has_other_count


def test_a_line_gets_what_it_got_on_the_example_and_others_what_is_there():
    got, _ = answered(
        [decided(True), decided(True)],
        [decided(False), decided(True)],
        (Kind.DECISION, True, FIRST),
        (Kind.NUMBER, 5, FIRST),
        (Kind.DECISION, True, SECOND),
        (Kind.DECISION, False, FIRST),
        (Kind.DECISION, False, FIRST),  # more often than on the example
    )
    assert got == [False, 5, True, True, False]


def test_of_more_numbers_than_on_the_example_all_are_as_its_last():
    got, _ = answered([read(1), read(2)], [read(3)], *[(Kind.NUMBER, 5, FIRST)] * 3)
    assert got == [3, 3, 3]


def test_another_number_of_tensors_is_noted():
    assert answered(SPLIT_IN_THREE, SPLIT_IN_TWO, (Kind.COUNT, 3, FIRST)) == ([2], True)
    assert answered(SPLIT_IN_THREE, SPLIT_IN_TWO, (Kind.COUNT, 2, FIRST)) == ([2], False)


def test_as_many_arguments_are_given_as_there_are_or_none():
    reshapes = [[called(torch.Tensor.reshape, X, sizes)] for sizes in ((2, 6), (2, 3))]
    got, _ = answered(*reshapes, (Kind.ARGUMENTS, (2, 6), FIRST), (Kind.ARGUMENTS, (2,), FIRST))
    assert got == [(2, 3), (2,)]
    got, _ = answered(*reshapes, (Kind.ARGUMENTS, (2, 6, 1), FIRST))
    assert got == [(2, 6, 1)]


def test_a_line_that_writes_writes_nothing():
    write = [called(torch.Tensor.add_, X, result=X)]
    assert answered(write, write, *[(Kind.WRITE, True, FIRST)] * 2) == ([False, False], False)


def test_each_call_gets_a_new_tensor_of_its_own():
    kept = torch.arange(2)
    lines = differences(run(called(torch.eye), kept=torch.arange(3)), run(called(torch.eye), kept=kept))
    given = AsOnExample(lines, math.inf)(Received(Kind.CONSTANT, torch.arange(3), "torch.eye", FIRST))
    assert torch.equal(given, kept)
    assert given is not kept


def test_a_run_ends_at_the_deadline():
    with pytest.raises(TimeoutError):
        answered([], [], (Kind.NUMBER, 1, FIRST), deadline=time.thread_time() - 1)
