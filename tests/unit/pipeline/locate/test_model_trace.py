"""What a model computes from its inputs, as a trace shows it."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from onnx_ci.pipeline.locate.model_trace import ModelTrace, TooLargeError, trace_model
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.operators import OperatorCall
from onnx_ci.pipeline.model.running import run
from onnx_ci.pipeline.trace.trace import NOWHERE, Frame, Operator, Place, Ref, Role, Trace, Value

aten = torch.ops.aten
X = torch.tensor([[1.0, -2.0], [3.0, 4.0]], dtype=torch.float64)
HERE = Place((Frame((lambda: None).__code__, 0),), module="layer")


def value(tensor=None, noise=0.0, role=Role.RESULT):
    """A value that depends on the inputs, unless it has no numbers."""
    kept = None if tensor is None else (tensor, noise)
    return Value(role, (2, 2) if tensor is None else tuple(tensor.shape), torch.float64, kept=kept)


def called(operator, *args, results=(), written=(), place=NOWHERE):
    return Operator(OperatorCall(operator, args, {}), results, written, place)


def model_trace(values, events, *, steps=(), outputs=()):
    return ModelTrace(Trace(values=values, events=events, inputs=(0,)), dict(steps), outputs)


def test_only_what_depends_on_the_inputs_counts():
    values = [value(X, role=Role.INPUT), value(role=Role.WEIGHT), value(), value(X * 2, noise=0.5)]
    events = [called(aten.t.default, Ref(1), results=(2,)), called(aten.mul.Tensor, Ref(2), Ref(0), results=(3,), place=HERE)]
    trace = model_trace(values, events)
    (operator,) = trace.operators
    assert (operator.name, operator.inputs, operator.outputs, operator.is_part) == ("aten.mul", (0,), (1,), False)
    assert operator.place.module == "layer"
    assert [(each.operator, each.noise, each.same_as) for each in trace.values] == [(None, 0.0, 0), (0, 0.5, 1)]
    assert (trace.source_of(0), trace.source_of(None)) == (HERE.source, None)
    assert HERE.source.file.endswith("test_model_trace.py")


def test_views_and_copies_are_the_same_as_what_they_show():
    values = [value(X, role=Role.INPUT), value(X.reshape(4)), value(X.reshape(4) * (1 + 1e-14)), value(X.t().contiguous())]
    events = [
        called(aten.view.default, Ref(0), [4], results=(1,)),
        called(aten.clone.default, Ref(1), results=(2,)),
        called(aten.t.default, Ref(0), results=(3,)),
        called(aten.detach.default, Ref(0), results=(0,)),  # what gives its operand back computes nothing
    ]
    trace = model_trace(values, events)
    assert [each.same_as for each in trace.values] == [0, 0, 0, 3]
    assert len(trace.operators) == 3


def test_a_write_gives_new_values_to_all_that_share_the_memory():
    values = [value(X, role=Role.INPUT), value(X[0]), value(X[0] + 1), value(X + torch.tensor([[1], [0]])), value(X)]
    events = [
        called(aten.select.int, Ref(0), 0, 0, results=(1,)),
        called(aten.add_.Tensor, Ref(1), 1, results=(2,), written=(2, 3)),
        called(aten.neg.default, Ref(3), results=(4,)),
    ]
    trace = model_trace(values, events)
    assert [(each.inputs, each.outputs) for each in trace.operators] == [((0,), (1,)), ((1,), (2, 3)), ((3,), (4,))]


def test_the_last_step_of_a_larger_operator_computes_its_result():
    product, whole = X @ X, X @ X + X
    values = [value(X, role=Role.INPUT), value(whole, noise=2.0), value(product), value(whole, noise=1.0), value(-whole)]
    events = [
        called(aten.addmm.default, Ref(0), Ref(0), Ref(0), results=(1,), place=HERE),
        called(aten.neg.default, Ref(1), results=(4,)),
    ]
    steps = [called(aten.mm.default, Ref(0), Ref(0), results=(2,)), called(aten.add.Tensor, Ref(2), Ref(0), results=(3,))]
    trace = model_trace(values, events, steps=[(0, steps)])
    assert [each.name for each in trace.operators] == ["aten.addmm", "aten.addmm", "aten.neg"]
    assert [each.is_part for each in trace.operators] == [True, False, False]
    assert [(each.inputs, each.outputs) for each in trace.operators] == [((0,), (1,)), ((1, 0), (2,)), ((2,), (3,))]
    assert [each.place for each in trace.operators] == [HERE, HERE, NOWHERE]
    assert trace.values[2].noise == 1.0
    assert trace.taken_by(1) == [1, 0]
    assert trace.taken_by(2) == [2]


def test_outputs_are_known_by_their_numbers_and_belong_to_the_models_code():
    values = [value(X, role=Role.INPUT), value(-X), value(-X), value(-X)]
    events = [
        called(aten.neg.default, Ref(0), results=(1,)),
        called(aten.clone.default, Ref(1), results=(2,), place=HERE),
        called(aten.clone.default, Ref(2), results=(3,)),
    ]
    assert model_trace(values, events, outputs=[-X, X.float(), X + 9]).outputs == [2, 0, None]


# --- recording it


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(2))

    def forward(self, x):
        scores = x @ self.weight.t()
        return scores.softmax(-1), (x > 0).sum()


class Masked(torch.nn.Module):
    def forward(self, x):
        mask = torch.empty_like(x)
        return x * mask.bernoulli_(0.5)


def recorded(model=Attention, deadline=math.inf):
    call = Call(model=model(), args=(X.float(),), kwargs={})
    model = SimpleNamespace(pristine=call, fresh=lambda: copy.deepcopy(call))
    return trace_model(model, SimpleNamespace(inputs=call.args, reference=SimpleNamespace(own=run(call))), deadline)


def test_values_are_in_float64_with_the_noise_of_float32():
    trace = recorded()
    names = [each.name for each in trace.operators if not each.is_part]
    assert names[:4] == ["aten.mm", "aten._softmax", "aten.gt", "aten.sum"]
    assert any(each.is_part for each in trace.operators)
    product, (softmax, count) = trace.operators[0], trace.outputs
    assert (product.inputs, product.place.source.text) == ((0,), "scores = x @ self.weight.t()")
    assert torch.equal(trace.values[product.outputs[0]].tensor, X)
    assert 1e-8 < trace.values[softmax].noise < 1e-6
    assert (trace.values[count].tensor.item(), trace.values[count].noise) == (3, 0.0)


def test_what_is_left_in_new_memory_is_no_value():
    trace = recorded(Masked)
    new, mask = (trace.values[each.outputs[0]] for each in trace.operators[:2])
    assert [each.name for each in trace.operators[:3]] == ["aten.empty_like", "aten.bernoulli_", "aten.mul"]
    assert (new.tensor.numel(), new.noise) == (0, 0.0)
    assert mask.tensor.numel() == 4


def test_a_trace_ends_where_it_takes_too_much(monkeypatch):
    with pytest.raises(TooLargeError, match="too much time"):
        recorded(deadline=-math.inf)
    monkeypatch.setattr("onnx_ci.pipeline.locate.model_trace._MOST_BYTES", 64)
    with pytest.raises(TooLargeError, match="too much memory"):
        recorded()
