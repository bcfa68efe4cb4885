"""How a model uses its weights, as a trace shows it: which of them a file must contain as they are, and what is folded in."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from onnx_ci.pipeline.contract.weight_uses import WeightUses, weight_uses
from onnx_ci.pipeline.model.operators import OperatorCall
from onnx_ci.pipeline.trace.trace import Operator, Ref, Role, Trace, Value

aten = torch.ops.aten
WEIGHTS = {
    "weight": torch.linspace(-1, 1, 16).reshape(4, 4) ** 3,
    "bias": torch.linspace(0.1, 2, 4),
    "gain": torch.tensor([2.0, 1.0, 0.5, 3.0]),
    "shift": torch.tensor([1.0, 0.0, -1.0, 2.0]),
    "mean": torch.tensor([0.5, 0.25, -1.0, 0.0]),
    "var": torch.tensor([1.0, 4.0, 0.25, 9.0]),
}
X, CONSTANT = Ref(0), Ref(1)
WEIGHT, BIAS, GAIN, SHIFT, MEAN, VAR = map(Ref, range(2, 8))
A, B = Ref(8), Ref(9)
"""The results of the first operators of a test."""


def trace_of(*calls, constant=None, kept=None):
    """A trace of calls, each with one result; one in place changes what its first argument shows."""
    values = [Value(Role.INPUT, (4, 4), torch.float32), Value(Role.CONSTANT, (4, 4), torch.float32, memory=1, kept=constant)]
    for name, tensor in WEIGHTS.items():
        numbers = tensor.double() if tensor.dim() == 1 else None
        values.append(Value(Role.WEIGHT, tuple(tensor.shape), tensor.dtype, name=name, memory=len(values), kept=numbers))
    events = []
    for operator, *args in calls:
        call, position = OperatorCall(operator, args, {}), len(values)
        memory = values[args[0].value].memory if call.writes or call.is_view else position
        values.append(Value(Role.RESULT, (4, 4), torch.float32, memory=memory, kept=(kept or {}).get(position)))
        events.append(Operator(call, (position,), (position,) if call.writes else ()))
    return Trace(values=values, events=events, inputs=(0,))


def uses_of(*calls, doubtful=(), **options):
    return weight_uses(trace_of(*calls, **options), WEIGHTS, {name: WEIGHTS[name] for name in doubtful})


LINEAR = (aten.addmm.default, BIAS, X, WEIGHT)


@pytest.mark.parametrize(
    ("calls", "direct"),
    [
        ([(aten.mm.default, X, WEIGHT)], {"weight"}),
        ([(aten.t.default, WEIGHT), (aten.clone.default, A), (aten.mm.default, X, B)], {"weight"}),
        ([(aten.mul.Tensor, WEIGHT, 1.0005), (aten.mm.default, X, A)], set()),
        ([(aten.mul.Tensor, WEIGHT, 1.0005), (aten.mm.default, X, WEIGHT)], set()),
        ([(aten.pow.Tensor_Tensor, X, WEIGHT)], set()),
        ([(aten.sub.Tensor, X, GAIN, 1)], set()),
        ([(aten.add.Tensor, X, GAIN, 2)], set()),
        ([(aten.add_.Tensor, WEIGHT, 1), (aten.mm.default, X, A)], set()),
        ([(aten.select.int, WEIGHT, 0, 0), (aten.zero_.default, A), (aten.mm.default, X, WEIGHT)], set()),
        ([(aten.t.default, WEIGHT)], set()),
        # what follows a layer may be folded into it
        ([LINEAR, (aten.relu.default, A), (aten.mul.Tensor, B, 1.0005)], {"weight", "bias"}),
        ([LINEAR, (aten.mul.Tensor, A, 1.0005)], set()),
        ([LINEAR, (aten.mul.Tensor, A, 3.0)], {"weight", "bias"}),
        ([LINEAR, (aten.add.Tensor, A, 0.5)], {"weight"}),
        ([LINEAR, (aten.add.Tensor, CONSTANT, A)], {"weight"}),
        ([LINEAR, (aten.add_.Tensor, CONSTANT, A)], {"weight", "bias"}),
        ([LINEAR, (aten.view.default, A, [16]), (aten.add.Tensor, B, SHIFT)], {"weight"}),
        ([(aten.mm.default, X, WEIGHT), (aten.add.Tensor, A, SHIFT)], {"weight", "shift"}),
        ([LINEAR, (aten.add.Tensor, A, X)], {"weight", "bias"}),
    ],
)
def test_direct_weights_are_only_combined_with_data_as_they_are(calls, direct):
    uses = uses_of(*calls)
    assert (uses.direct, uses.norms) == (direct, ())


def test_a_weight_in_another_shape_is_reshaped():
    assert uses_of((aten.view.default, WEIGHT, [16]), (aten.mul.Tensor, X, A)).reshaped == {"weight"}
    assert uses_of((aten.t.default, WEIGHT), (aten.mul.Tensor, X, A)).reshaped == set()


def test_a_product_with_zeros_does_not_change_a_weight():
    zeros, numbers = torch.zeros(4, 4), torch.ones(4, 4)
    state, layer = (aten.mm.default, CONSTANT, WEIGHT), (aten.mm.default, X, WEIGHT)
    assert uses_of(state, layer, constant=zeros).direct == {"weight"}
    assert uses_of((aten.addmm.default, BIAS, CONSTANT, WEIGHT), layer, constant=zeros).direct == {"weight"}
    assert uses_of(state, layer, constant=numbers).direct == set()
    assert uses_of(state, layer).direct == set()


def test_a_weight_is_not_direct_if_something_else_in_the_file_may_be_close_to_it():
    near = WEIGHTS["weight"].double() * 1.0001
    calls = [(aten.mm.default, X, WEIGHT), (aten.mm.default, X, CONSTANT)]
    assert uses_of(*calls, constant=near, doubtful=["weight"]).direct == set()
    assert uses_of(*calls, constant=near, doubtful=["gain"]).direct == {"weight"}
    assert uses_of(*calls, constant=near + 1, doubtful=["weight"]).direct == {"weight"}
    computed_from_data = [(aten.neg.default, X), (aten.mm.default, A, WEIGHT)]
    assert uses_of(*computed_from_data, kept={8: near}, doubtful=["weight"]).direct == {"weight"}


def test_a_weight_is_not_direct_if_one_that_changes_is_close_to_it():
    twice = {**WEIGHTS, "bias": WEIGHTS["gain"] * 1.0001}
    trace = trace_of((aten.mul.Tensor, X, GAIN), (aten.mul.Tensor, BIAS, 2.0))
    assert weight_uses(trace, twice, {"gain": twice["gain"]}).direct == set()
    assert weight_uses(trace, WEIGHTS, {"gain": WEIGHTS["gain"]}).direct == {"gain"}


def test_a_trace_that_does_not_show_everything_shows_no_direct_weight():
    trace = trace_of((aten.mm.default, X, WEIGHT))
    cond = Operator(OperatorCall(torch.ops.higher_order.cond, [X, torch.relu, torch.neg, (X,)], {}), ())
    for change in ({"is_complete": False}, {"is_accepted": False}, {"events": [*trace.events, cond]}):
        assert weight_uses(dataclasses.replace(trace, **change), WEIGHTS, {}) == WeightUses()


# --- BatchNorm

CONVOLUTION = (aten.convolution.default, X, WEIGHT, BIAS, [1], [0], [1], False, [0], 1)


def norm(operand, *, training=False, gain=GAIN, mean=MEAN):
    return (aten.native_batch_norm.default, operand, gain, SHIFT, mean, VAR, training, 0.1, 0.0)


def test_a_norm_behind_a_layer_is_folded_into_it():
    uses = uses_of(CONVOLUTION, (aten.clone.default, A), norm(B))
    (folded,) = uses.norms
    assert (folded.weight, folded.bias, folded.norm_bias) == ("weight", "bias", "shift")
    assert folded.scale.tolist() == [2.0, 0.5, 1.0, 1.0]
    assert folded.shift.tolist() == [0.0, -0.125, 0.0, 2.0]
    assert folded.terms.tolist() == [2.0, 0.125, 2.0, 2.0]
    assert uses.direct == {*WEIGHTS} - {"var"}  # the file may have its square root


def test_a_second_norm_is_folded_in_too():
    first, second = uses_of(CONVOLUTION, norm(A), norm(B)).norms
    assert second.scale.tolist() == [each * each for each in first.scale.tolist()]


@pytest.mark.parametrize(
    "calls",
    [
        [CONVOLUTION, norm(A, training=True)],
        [CONVOLUTION, norm(A, mean=X)],
        [CONVOLUTION, norm(A, mean=WEIGHT)],
        [(*CONVOLUTION[:7], True, [0], 2), norm(A)],
    ],
    ids=["training", "statistics of data", "without numbers", "grouped deconvolution"],
)
def test_a_norm_that_cannot_be_folded_leaves_no_weight_before_it_direct(calls):
    uses = uses_of(*calls)
    assert uses.norms == ()
    assert uses.direct.isdisjoint({"weight", "bias"})
