"""Recipes and the values that their inputs can have, declared or inferred: they are judged on these, and only on these."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from toolbox.cells import rules, run_one

import onnx_ci
from onnx_ci import Status
from onnx_ci.results.records import CellResult, Severity


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

    def recipe(name, **keywords):
        corners = torch.tensor([[1.0, 2.0, 30.0, 40.0], [5.0, 5.0, 6.0, 9.0]])
        return onnx_ci.recipe(input_names=[name], name="net", **keywords)(lambda: (Areas(), (corners,)))

    assert rules(run_one(recipe("x"))) == ["baked-value"]
    for boxes in (recipe("x", inputs={"x": onnx_ci.boxes("xyxy", within=(64, 64))}), recipe("boxes")):
        result = run_one(boxes)
        assert (result.status, "floats negated" in probes(result)) == (Status.PASSED, False)


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
        ({"length": onnx_ci.mask()}, "inputs names 'length', which is not an input; did you mean 'lengths'?"),
        ({"lengths": onnx_ci.lengths(of="frame")}, "has the lengths of 'frame', which is not an axis; did you mean 'frames'?"),
        (
            {"lengths": onnx_ci.integers(0, 5)},
            "'lengths', with values from 2 to 6, is outside of its declared domain integers(0, 5), which ends before 5",
        ),
        ({"x": draws_another_type}, "returns torch.float64 of shape [3, 6, 4], and the example is torch.float32 with 3 axes"),
        ({"x": fails}, "the function in inputs['x'] fails: KeyError"),
    ],
)
def test_a_domain_that_does_not_fit_the_model_is_a_recipe_error(inputs, said):
    result = run_one(pooled(inputs=inputs))
    assert (result.status, rules(result)) == (Status.ERROR, ["recipe-error"])
    assert said in result.findings[0].message


# --- without a declaration


def test_a_report_tells_the_values_that_inputs_are_given():
    undeclared, declared = run_one(attention()), run_one(attention(inputs={"mask": onnx_ci.mask(min_true=2)}))
    assert [each.in_words for each in undeclared.inputs] == [
        "tokens: int64[2, 5], integers(0, 20) (inferred: looked up in an embedding)",
        "mask: bool[2, 5], mask(starts_with=True) (inferred: named a mask)",
    ]
    assert declared.inputs[1].in_words == "mask: bool[2, 5], mask(min_true=2) (declared)"
    assert CellResult.from_json(declared.as_json()).inputs == declared.inputs


def test_lengths_are_recognized_so_that_their_axis_can_move():
    class Checked(Pooled):
        def forward(self, x, lengths):
            if not torch.onnx.is_in_onnx_export() and int(lengths.max()) != x.shape[1]:
                raise ValueError("the longest row is not the longest")
            return super().forward(x, lengths)

    axes = {"x": {0: "batch", 1: "frames"}, "lengths": {0: "batch"}, "y": {0: "batch"}}

    def recipe(name):
        declared = {name if key == "lengths" else key: value for key, value in axes.items()}
        names = {"input_names": ["x", name], "output_names": ["y"], "dynamic_axes": declared, "name": "net"}
        return onnx_ci.recipe(**names)(lambda: (Checked(), (torch.randn(3, 6, 4), torch.tensor([6, 2, 4]))))

    result = run_one(recipe("lengths"))
    assert result.status is Status.PASSED
    assert any("frames=" in each for each in probes(result))


class AsExported(torch.nn.Module):
    """Computes ``right``, and in the file ``wrong``."""

    def __init__(self, right, wrong):
        super().__init__()
        self.right, self.wrong = right, wrong

    def forward(self, *inputs):
        return (self.wrong if torch.onnx.is_in_onnx_export() else self.right)(*inputs)


def trunc(a, b):
    return torch.div(a, b, rounding_mode="trunc")


def floor(a, b):
    return torch.div(a, b, rounding_mode="floor")


def product(a, b):
    return a * b


def product_of_equal_signs(a, b):
    return a.abs() * b.abs()


POSITIVE = torch.rand(4, 10) + 1
SMALL = torch.rand(2, 3) / 10


@pytest.mark.parametrize(
    ("right", "wrong", "inputs", "rule", "exporter"),
    [
        (product, product_of_equal_signs, (POSITIVE, POSITIVE.flip(0)), "baked-value", "dynamo"),
        (floor, trunc, (torch.tensor([7, 8, 9]), torch.tensor([2, 3, 4])), "baked-value", "torchscript"),
        (torch.round, lambda x: torch.floor(x + 0.5), (POSITIVE,), "baked-value", "torchscript"),
        (torch.nn.Hardshrink(0.25), lambda x: torch.where(x.abs() >= 0.25, x, 0.0), (POSITIVE,), "baked-value", "torchscript"),
        (torch.nn.Softplus(), lambda x: torch.log1p(torch.exp(x)), (SMALL,), "nonfinite-mismatch", "dynamo"),
        (lambda x: x * 1.0, lambda x: x.clamp(max=50.0), (SMALL,), "edge-mismatch", "torchscript"),
    ],
    ids=["mixed signs", "mixed signs of integers", "ties", "a constant", "overflow", "extreme numbers"],
)
def test_special_values_show_another_formula(right, wrong, inputs, rule, exporter):
    def judged(exported):
        recipe = onnx_ci.recipe(name="net")(lambda: (AsExported(right, exported), inputs))
        result = run_one(recipe, exporters=exporter, opsets="18")
        return {each.rule for each in result.findings if each.severity is not Severity.NOTE}

    assert (judged(right), judged(wrong) >= {rule}) == (set(), True)


@pytest.mark.parametrize(
    ("function", "inputs", "wrong_in"),
    [
        (operator.floordiv, (torch.tensor([7, 8, 9]), torch.tensor([2, 3, 4])), {"torchscript"}),
        (torch.atan2, (POSITIVE, POSITIVE.flip(0)), {"torchscript", "dynamo"}),
    ],
    ids=["an integer division that truncates", "the angle of (0, -1), which is pi"],
)
def test_mixed_signs_find_errors_of_exporters(function, inputs, wrong_in):
    recipe = onnx_ci.recipe(name="net")(lambda: (AsExported(function, function), inputs))
    results = {exporter: run_one(recipe, exporters=exporter, opsets="18") for exporter in ("torchscript", "dynamo")}
    assert {exporter for exporter, result in results.items() if result.status is Status.FAILED} == wrong_in
    assert {rule for exporter in wrong_in for rule in rules(results[exporter])} == {"baked-value"}


# --- strategies


def test_values_are_drawn_from_a_strategy_of_hypothesis():
    def is_wrong_above(limit):
        right, wrong = (lambda x: x * 2), (lambda x: torch.where(x > limit, x, x * 2))
        values = st.lists(st.integers(0, 9), min_size=6, max_size=6)
        recipe = onnx_ci.recipe(input_names=["x"], name="net", inputs={"x": values})
        return run_one(recipe(lambda: (AsExported(right, wrong), (torch.zeros(6, dtype=torch.int64),))))

    right = is_wrong_above(9)
    assert (right.status, "x example 2" in probes(right)) == (Status.PASSED, True)
    assert not {each for each in probes(right) if each.startswith("integers")}
    assert rules(is_wrong_above(5)) == ["baked-value"]


def test_a_function_of_the_sizes_may_return_a_strategy():
    def sized(sizes, generator):
        return st.lists(st.floats(0, 1, width=32), min_size=sizes["n"], max_size=sizes["n"])

    recipe = onnx_ci.recipe(input_names=["x"], dynamic_axes={"x": {0: "n"}}, name="net", inputs={"x": sized})
    result = run_one(recipe(lambda: (torch.nn.ReLU(), (torch.rand(4),))))
    assert result.status is Status.PASSED
    assert {"x example 1", "n=5"} <= probes(result)


def test_a_strategy_of_other_values_than_the_model_takes_is_a_recipe_error():
    recipe = onnx_ci.recipe(input_names=["x"], name="net", inputs={"x": st.text()})
    result = run_one(recipe(lambda: (torch.nn.ReLU(), (torch.rand(4),))))
    assert (result.status, rules(result)) == (Status.ERROR, ["recipe-error"])
    assert "the function in inputs['x'] fails" in result.findings[0].message
