"""Long sums and sigmoids, which runtimes round more than PyTorch: right files pass, and wrong ones are still found."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from toolbox.cells import Function, recipe_of, rules, run_one
from torch import nn

import onnx_ci
from onnx_ci import Status


class Pooled(nn.Module):
    """The mean of a feature map over an image, and a head.

    Args:
        first: the first element that is counted.
        bias: whether the convolution has a bias.
        scale: what one weight of the head is multiplied by.
    """

    def __init__(self, *, first: int = 0, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1, bias=bias), nn.Linear(8, 4)
        self.first, self.scale = first, scale

    def forward(self, x):
        means = torch.relu(self.conv(x)).flatten(2)[..., self.first :].mean(-1)
        factors = torch.ones_like(self.head.weight)
        factors[0, 0] = self.scale
        return nn.functional.linear(means, self.head.weight * factors, self.head.bias)


class Normalized(nn.Module):
    """A feature map, normalized over groups of channels or each channel by itself."""

    def __init__(self, *, eps: float = 1e-5, groups: int = 2) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(groups, 8, eps=eps)

    def forward(self, x):
        return self.norm(self.conv(x))


def on_image(model, size):
    """A recipe of ``model()`` on a random image."""
    return onnx_ci.recipe(name="net")(lambda: (model(), (torch.randn(1, 3, size, size),)))


def judged(recipe, wrong):
    """The verdict on a file that computes what ``wrong()`` does, with the weights of the recipe's model."""

    def build():
        own, args = recipe.function()
        model = wrong()
        model.load_state_dict(own.state_dict(), strict=False)
        return model, args

    return onnx_ci.verify(onnx_ci.export(dataclasses.replace(recipe, function=build), opset=13), recipe, opset=13)


def references(result):
    return {each.reference for each in result.outputs}


# --- what is right passes


@pytest.mark.parametrize("size", [38, 224])
def test_a_mean_over_an_image_passes(size):
    result = run_one(on_image(Pooled, size))
    assert (result.status, rules(result)) == (Status.PASSED, [])


def test_the_report_shows_which_comparisons_needed_the_rounding_of_long_sums():
    result = run_one(on_image(Pooled, 224))
    by_probe = {each.probe: each.reference for each in result.outputs}
    assert by_probe["floats zero"] == "runtime rounding"
    assert by_probe["example"] == "float64"


@pytest.mark.parametrize(
    ("function", "x"),
    [
        pytest.param(lambda x: x.mean(1), torch.full((2, 5000, 3), 0.3), id="mean of tokens"),
        pytest.param(lambda x: x.cumsum(1), torch.full((2, 20000), 0.3), id="cumsum"),
        pytest.param(lambda x: x.var((2, 3)), torch.full((1, 2, 150, 150), 100.0) + torch.rand(1, 2, 150, 150), id="variance"),
        pytest.param(lambda x: torch.logsumexp(x, 1), torch.full((1, 100000), -12.0), id="logsumexp"),
    ],
)
def test_a_long_sum_of_equal_terms_passes(function, x):
    result = run_one(recipe_of(function, x))
    assert (result.status, rules(result)) == (Status.PASSED, [])


@pytest.mark.parametrize("groups", [1, 8])
def test_a_normalization_of_an_all_zero_image_passes(groups):
    result = run_one(on_image(lambda: Normalized(groups=groups), 112))
    assert (result.status, rules(result)) == (Status.PASSED, [])


def test_a_model_that_cannot_run_in_float64_passes():
    class Single(Function):
        def forward(self, x):
            if x.element_size() != 4:
                raise TypeError("only float32")
            return super().forward(x)

    recipe = onnx_ci.recipe(name="net")(lambda: (Single(lambda x: x.mean((2, 3))), (torch.full((1, 3, 224, 224), 0.3),)))
    result = run_one(recipe)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    assert "runtime rounding" in references(result)


def test_the_steps_of_a_sequence_pass():
    @onnx_ci.recipe(name="net", input_names=["x", "state"], output_names=["y", "new"], feedback={"new": "state"}, steps=3)
    def net():
        def step(x, state):
            return (x + state).mean((1, 2)), 0.5 * (x + state)

        return Function(step), (torch.full((1, 300, 300), 0.3), torch.full((1, 300, 300), 0.1))

    result = run_one(net)
    assert (result.status, rules(result)) == (Status.PASSED, [])


def saturated(bias=-9.0, scale=1.0):
    """A model whose sigmoid is far from one half everywhere."""

    class Saturated(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return torch.sigmoid(scale * self.head(x) + bias)

    return Saturated()


def with_saturated_head(x):
    return onnx_ci.recipe(name="net")(lambda: (saturated(), (x,)))


@pytest.mark.parametrize("factor", [1, 10])
def test_a_saturated_sigmoid_passes(factor):
    result = run_one(with_saturated_head(factor * torch.rand(2, 8)))
    assert (result.status, rules(result)) == (Status.PASSED, [])


# --- what is wrong fails


@pytest.mark.parametrize("wrong", [{"bias": -9.1}, {"scale": 1.1}], ids=["bias", "scale"])
def test_a_fault_before_a_saturated_sigmoid_fails(wrong):
    recipe = with_saturated_head(torch.rand(2, 8))
    assert judged(recipe, saturated).status is Status.PASSED
    assert rules(judged(recipe, lambda: saturated(**wrong))) == ["numeric-drift"]


@pytest.mark.parametrize("size", [38, 112])
def test_a_mean_over_one_element_too_few_fails(size):
    recipe = on_image(Pooled, size)
    assert judged(recipe, Pooled).status is Status.PASSED
    assert "numeric-drift" in rules(judged(recipe, lambda: Pooled(first=1)))


@pytest.mark.parametrize(
    "wrong", [lambda: Pooled(bias=False), lambda: Pooled(scale=1.001)], ids=["dropped bias", "scaled weight"]
)
def test_a_wrong_weight_before_or_after_a_long_sum_fails(wrong):
    assert rules(judged(on_image(Pooled, 224), wrong)) == ["numeric-drift"]


def test_a_wrong_epsilon_of_a_long_normalization_fails():
    recipe = on_image(Normalized, 64)
    assert judged(recipe, Normalized).status is Status.PASSED
    assert rules(judged(recipe, lambda: Normalized(eps=1e-4))) == ["numeric-drift"]


def test_short_sums_leave_the_unit_as_it_is():
    result = judged(on_image(Pooled, 10), lambda: Pooled(scale=1.001))
    assert rules(result) == ["numeric-drift"]
    assert "runtime rounding" not in references(result)
