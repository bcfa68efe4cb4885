"""Recipes that declare which values their inputs can have: they are judged on these, and only on these."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toolbox.cells import rules, run_one

import onnx_ci
from onnx_ci import Status


def probes(result):
    return {each.probe for each in result.outputs}


class Attention(torch.nn.Module):
    """Attention over the tokens that a mask leaves. A row without any is an accident in the model, and another in the file."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)

    def forward(self, tokens, mask):
        x = self.embedding(tokens)
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask[:, None, :], -1e4)
        if torch.onnx.is_in_onnx_export():
            scores = scores + mask.logical_not().all(-1)[:, None, None] * x[:, None, :, 0]
        return scores.softmax(-1) @ x


def attention(**keywords):
    def make():
        tokens, mask = torch.randint(0, 20, (2, 5)), torch.tensor([[True] * 5, [True, True, False, False, True]])
        return Attention(), (tokens, mask)

    axes = {"tokens": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}
    return onnx_ci.recipe(input_names=["tokens", "mask"], dynamic_axes=axes, name="net", **keywords)(make)


def test_a_declared_mask_is_never_empty_and_an_undeclared_one_only_warns():
    undeclared = run_one(attention())
    assert (undeclared.status, {each.rule for each in undeclared.warnings}) == (Status.PASSED, {"edge-mismatch"})
    declared = run_one(attention(inputs={"mask": onnx_ci.mask(), "tokens": onnx_ci.integers(0, 20)}))
    assert (declared.status, declared.warnings) == (Status.PASSED, ())
    assert {"mask all true", "mask true at the beginning", "mask true at the end", "tokens highest"} <= probes(declared)
    assert not {"masks empty", "first row false", "integers negative"} & probes(declared)


def test_what_is_wrong_within_a_declared_domain_is_an_error():
    result = run_one(attention(inputs={"mask": onnx_ci.mask(min_true=0)}))
    assert (result.status, rules(result)) == (Status.FAILED, ["baked-value"])


def test_a_border_shows_what_random_values_do_not():
    class Clipped(torch.nn.Module):
        def forward(self, x):
            return x.clamp(max=99.0) if torch.onnx.is_in_onnx_export() else x + 0.0

    def recipe(**keywords):
        return onnx_ci.recipe(input_names=["x"], name="net", **keywords)(lambda: (Clipped(), (torch.rand(3, 4),)))

    assert run_one(recipe()).status is Status.PASSED
    assert rules(run_one(recipe(inputs={"x": onnx_ci.floats(0, 100)}))) == ["baked-value"]


class Pooled(torch.nn.Module):
    """The mean over each row's own length."""

    def forward(self, x, lengths):
        weights = (torch.arange(x.shape[1])[None] < lengths[:, None]).to(x.dtype)
        return (x * weights[..., None]).sum(1) / lengths[:, None].to(x.dtype)


def pooled(**keywords):
    axes = {"x": {0: "batch", 1: "frames"}, "lengths": {0: "batch"}, "y": {0: "batch"}}
    names = {"input_names": ["x", "lengths"], "output_names": ["y"], "dynamic_axes": axes, "name": "net"}
    return onnx_ci.recipe(**names, **keywords)(lambda: (Pooled(), (torch.randn(3, 6, 4), torch.tensor([6, 2, 4]))))


def test_lengths_follow_the_axis_whose_lengths_they_are():
    result = run_one(pooled(inputs={"lengths": onnx_ci.lengths(of="frames")}))
    assert (result.status, result.warnings) == (Status.PASSED, ())
    assert {"lengths all longest", "lengths shortest but one"} <= probes(result)


def test_boxes_are_not_turned_inside_out():
    class Areas(torch.nn.Module):
        def forward(self, boxes):
            sides = boxes[:, 2:] - boxes[:, :2]
            if torch.onnx.is_in_onnx_export():
                sides = sides.abs()
            return sides.sum(-1)

    def recipe(**keywords):
        corners = torch.tensor([[1.0, 2.0, 30.0, 40.0], [5.0, 5.0, 6.0, 9.0]])
        return onnx_ci.recipe(input_names=["boxes"], name="net", **keywords)(lambda: (Areas(), (corners,)))

    assert rules(run_one(recipe())) == ["baked-value"]
    declared = run_one(recipe(inputs={"boxes": onnx_ci.boxes("xyxy", within=(64, 64))}))
    assert (declared.status, "floats negated" in probes(declared)) == (Status.PASSED, False)


def rows(sizes, generator):
    return torch.rand(sizes["batch"], sizes["frames"], 4, generator=generator) + 1


def test_a_function_draws_at_every_size():
    result = run_one(pooled(inputs={"x": rows, "lengths": onnx_ci.lengths(of="frames")}))
    assert result.status is Status.PASSED
    assert any(each.startswith("batch=") for each in probes(result))
    assert "floats negated" not in probes(result)


def test_files_and_domains_can_be_declared_together(tmp_path):
    np.savez(tmp_path / "real.npz", x=np.ones((3, 6, 4), np.float32), lengths=np.int64([6, 1, 2]))
    result = run_one(pooled(inputs=[{"lengths": onnx_ci.lengths(of="frames")}, tmp_path / "real.npz"]))
    assert result.status is Status.PASSED
    assert any("real.npz" in each for each in probes(result))


class Sum(torch.nn.Module):
    def forward(self, x, state):
        state = state + x
        return state.log(), state


def test_the_new_inputs_of_a_sequence_are_drawn_from_their_domain():
    """At any other value of x, the file is wrong: it computes as if it had the one that is declared."""

    class Sum(torch.nn.Module):
        def forward(self, x, state):
            state = state + (torch.full_like(x, 7) if torch.onnx.is_in_onnx_export() else x)
            return state + 0 * x

    def recipe(**keywords):
        names = {"input_names": ["x", "state"], "output_names": ["next"], "feedback": {"next": "state"}, "steps": 4}
        return onnx_ci.recipe(name="net", **names, **keywords)(lambda: (Sum(), (torch.full((3,), 7), torch.ones(3))))

    assert run_one(recipe(inputs={"x": onnx_ci.integers(7, 8)})).status is Status.PASSED
    assert run_one(recipe(inputs={"x": onnx_ci.integers(7, 9)})).status is Status.FAILED


def draws_another_type(sizes, generator):
    return torch.zeros(3, 6, 4, dtype=torch.float64)


def fails(sizes, generator):
    return sizes["rows"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"length": onnx_ci.mask()}, "inputs names 'length', which is no input; did you mean 'lengths'?"),
        ({"lengths": onnx_ci.lengths(of="frame")}, "has the lengths of 'frame', which is no axis; did you mean 'frames'?"),
        ({"lengths": onnx_ci.integers(0, 5)}, "the example's 'lengths' is outside of its declared domain"),
        ({"x": draws_another_type}, "returns torch.float64 of shape [3, 6, 4], and the example is torch.float32 with 3 axes"),
        ({"x": fails}, "the function in inputs['x'] fails: KeyError"),
    ],
)
def test_a_domain_that_does_not_fit_the_model_is_a_recipe_error(inputs, said):
    result = run_one(pooled(inputs=inputs))
    assert (result.status, rules(result)) == (Status.ERROR, ["recipe-error"])
    assert said in result.findings[0].message
