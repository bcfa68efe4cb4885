"""What a model decides by numbers between float32 and float64: its file is judged by the model's own decisions."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import Function, recipe_of, rules, run_one

import onnx_ci
from onnx_ci import Status
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.running import flatten_outputs
from onnx_ci.pipeline.reference.own_decisions import OtherRunError, RecordedDecisions
from onnx_ci.pipeline.reference.reference import make_reference

FRAMES = 60
DECLARED = {
    "input_names": ["x", "lengths"],
    "output_names": ["y"],
    "dynamic_axes": {"x": {0: "batch", 1: "frames"}, "lengths": {0: "batch"}, "y": {0: "batch"}},
    "inputs": {"lengths": onnx_ci.floats(0.3, 1.0)},
}
ARGS = (torch.randn(2, FRAMES, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([1.0, 0.8]))
"""0.8 * 60 is 48 in float32, and a little more in float64."""


def averaged(x, is_inside):
    mask = is_inside.to(x.dtype)
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def below(x, lengths):
    return averaged(x, torch.arange(x.shape[1]) < (lengths * x.shape[1])[:, None])


def up_to(x, lengths):
    return averaged(x, torch.arange(x.shape[1]) <= (lengths * x.shape[1])[:, None])


def by_ceil(x, lengths):
    return averaged(x, torch.arange(x.shape[1]) < torch.ceil(lengths * x.shape[1])[:, None])


def by_ceil_in_place(x, lengths):
    return averaged(x, torch.arange(x.shape[1]) < (lengths * x.shape[1]).ceil_()[:, None])


def by_integers(x, lengths):
    return averaged(x, torch.arange(x.shape[1]) < -(-lengths * x.shape[1]).floor().long()[:, None])


def by_floor_division(x, lengths):
    return averaged(x, torch.arange(x.shape[1]) < -(-lengths * x.shape[1]).div(1, rounding_mode="floor")[:, None])


DECIDING = [below, by_ceil, by_ceil_in_place, by_integers, by_floor_division]


@pytest.mark.parametrize(("function", "exporter"), [*((each, "torchscript") for each in DECIDING), (by_ceil, "dynamo")])
def test_a_file_that_decides_as_the_model_passes(function, exporter):
    result = run_one(recipe_of(function, *ARGS, **DECLARED), opsets="18", exporters=exporter)
    assert (rules(result), result.status) == ([], Status.PASSED)
    assert max(each.drift for each in result.outputs) < 16
    assert result.outputs[0].probe == "example"
    assert result.outputs[0].noise < 1e-6


@pytest.mark.parametrize(
    ("tolerance", "exporter"),
    [({}, "dynamo"), ({"rtol": 1e-4, "atol": 1e-5}, "torchscript")],
    ids=["by drift", "by tolerance"],
)
def test_a_file_that_decides_as_float64_does_is_wrong(tolerance, exporter):
    artifact = onnx_ci.export(recipe_of(up_to, *ARGS, **DECLARED, **tolerance), opset=18, exporter=exporter)
    wrong = onnx_ci.verify(artifact, recipe_of(below, *ARGS, **DECLARED, **tolerance), opset=18, exporter=exporter)
    assert rules(wrong) == ["numeric-drift"]
    if not tolerance:
        (found,) = [each for each in wrong.findings if each.rule == "numeric-drift"]
        assert "something that the model decides by numbers here falls between float32 and float64" in found.message
    right = onnx_ci.verify(
        onnx_ci.export(recipe_of(below, *ARGS, **DECLARED, **tolerance), opset=18, exporter=exporter),
        recipe_of(below, *ARGS, **DECLARED, **tolerance),
        opset=18,
        exporter=exporter,
    )
    assert rules(right) == []


def test_a_small_fault_is_not_hidden_by_the_other_decision():
    def slightly_off(x, lengths):
        return below(x, lengths) * (1 + 1e-4)

    artifact = onnx_ci.export(recipe_of(slightly_off, *ARGS, **DECLARED), opset=18)
    verdict = onnx_ci.verify(artifact, recipe_of(below, *ARGS, **DECLARED), opset=18)
    assert "numeric-drift" in rules(verdict)


def test_an_integer_output_beside_it_is_compared_where_it_does_not_depend_on_rounding():
    def with_count(x, lengths):
        return by_ceil(x, lengths), torch.ceil(lengths * x.shape[1]).long()

    keywords = {**DECLARED, "output_names": ["y", "count"]}
    result = run_one(recipe_of(with_count, *ARGS, **keywords), opsets="18")
    assert rules(result) == []
    assert (result.outputs[0].name, result.outputs[0].probe) == ("y", "example")
    assert result.outputs[0].noise < 1e-6


# --- what is not replayed


def reference_of(function, *args):
    def build():
        return Call(model=Function(function), args=args, kwargs={})

    copies = Copies(build(), build)
    return make_reference(copies, flatten_outputs(copies.first_run()))


def remains(x):
    """What a cancellation leaves."""
    return (x + 1e7) - 1e7 - x


def noisy(size):
    return lambda x, lengths: below(x, lengths) + ((lengths + size) - size)[:, None]


RANDOM = (torch.rand(100, generator=torch.Generator().manual_seed(0)),)
NOT_REPLAYED = {
    "decides alike": (below, (ARGS[0], torch.tensor([1.0, 0.5])), False),
    "remains of a cancellation": (lambda x: torch.where(remains(x) > 0, x + 1, x - 1), RANDOM, True),
    "the same by a product": (lambda x: (remains(x) > 0) * (x + 1) + ~(remains(x) > 0) * (x - 1), RANDOM, True),
    "noise beside a decision": (noisy(1e7), ARGS, True),
    "a model in float64": (noisy(1e17), (ARGS[0].double(), ARGS[1].double()), False),
}


@pytest.mark.parametrize(("function", "args", "is_too_noisy"), NOT_REPLAYED.values(), ids=NOT_REPLAYED)
def test_what_the_model_does_not_decide_otherwise_by_precise_numbers_is_not_replayed(function, args, is_too_noisy):
    reference = reference_of(function, *args)
    assert reference.decisions is None
    assert reference.is_too_noisy == is_too_noisy


def test_the_reference_as_float64_decides_is_kept_beside_it():
    reference = reference_of(below, *ARGS)
    assert reference.decisions is not None
    assert not reference.is_too_noisy
    assert reference.undecided is not None
    assert reference.undecided.is_too_noisy
    assert torch.allclose(reference.exact[0], reference.own[0].double(), atol=1e-6)
    assert not torch.allclose(reference.undecided.exact[0], reference.own[0].double(), atol=1e-3)


def test_a_run_that_computes_something_else_cannot_replay():
    decisions = RecordedDecisions(1e-7)
    x = torch.rand(4)
    with decisions:
        assert (x > 0.5).shape == (4,)
    with decisions.replayed():
        assert (x.double() > 0.5).shape == (4,)
    with pytest.raises(OtherRunError, match="did not call"), decisions.replayed():
        x.double().floor()
    with pytest.raises(OtherRunError, match="also called"), decisions.replayed():
        x.double() + 1


def test_the_larger_value_of_a_near_tie_is_the_models_own():
    exact = torch.tensor([[0.1, 0.1 + 2**-30]], dtype=torch.float64)  # equal in float32
    decisions = RecordedDecisions(torch.finfo(torch.float32).eps)
    with decisions:
        assert exact.float().argmax(1).tolist() == [0]
    assert exact.argmax(1).tolist() == [1]
    with decisions.replayed():
        assert exact.argmax(1).tolist() == [0]
    assert decisions.are_replaced
