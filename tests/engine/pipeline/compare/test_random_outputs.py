"""Random models are compared on every probe by their distributions: right files pass, and wrong ones are named."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import ROWS, recipe_of, rules, run_one
from torch import nn

import onnx_ci
from onnx_ci import Severity, Status
from onnx_ci.pipeline.compare.random_outputs import compare_random
from onnx_ci.pipeline.inputs.probes import EXAMPLE, Probe
from onnx_ci.pipeline.reference.random_samples import KEPT, ROUNDS, runs_needed, sample_of
from onnx_ci.pipeline.reference.reference import Reference

SHAPED = {"input_names": ["x"], "output_names": ["y"]}

both_exporters = pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])


def random_recipe(function, *args, **keywords):
    return recipe_of(function, *(args or (torch.rand(5, 16) * 0.8 + 0.1,)), nondeterministic=True, **(keywords or ROWS))


def verified(file, model, *args, effort="quick", **keywords):
    """The verdict on the file of one function as that of another one, by default on the example alone."""
    artifact = onnx_ci.export(random_recipe(file, *args, **keywords), opset=13)
    return onnx_ci.verify(artifact, random_recipe(model, *args, **keywords), opset=13, effort=effort)


# --- what is right passes


def noise(x):
    return x + 0.1 * torch.randn_like(x)


def one_channel(x):
    return torch.cat([x[:, :1] + torch.randn_like(x[:, :1]), x[:, 1:].exp()], 1)


def one_draw_for_all(x):
    return x + torch.rand(1)


def bernoulli(x):
    return (torch.rand_like(x) < x).float()


def booleans(x):
    return torch.rand_like(x) < x


def integers(x):
    return (torch.rand_like(x) * 7).long()


def scalar(x):
    return (x.sum() + torch.randn(1)).reshape(())


def sometimes_infinite(x):
    return torch.log(bernoulli(x))


PER_ROW = (noise, one_channel, one_draw_for_all, bernoulli, booleans, integers, sometimes_infinite)
NAMED = {"input_names": ["x"], "output_names": [each.__name__ for each in PER_ROW]}


@both_exporters
def test_a_right_random_file_passes_on_every_probe(exporter):
    axes = {name: {0: "rows"} for names in NAMED.values() for name in names}
    recipe = random_recipe(lambda x: tuple(each(x) for each in PER_ROW), dynamic_axes=axes, **NAMED)
    result = run_one(recipe, opsets="18", exporters=exporter)
    assert (rules(result), result.status) == ([], Status.PASSED)


def test_a_random_scalar_passes():
    assert rules(run_one(random_recipe(scalar, **SHAPED))) == []


def test_an_output_whose_shape_is_random_is_compared_by_its_sizes():
    kept = {"dynamic_axes": {"y": {0: "kept"}}, **SHAPED, "allow": ["vacuous"]}

    def above(share):
        return lambda x: x.flatten()[torch.rand_like(x.flatten()) > share]

    assert rules(verified(above(0.5), above(0.5), **kept)) == []
    assert rules(verified(above(0.5), above(0.2), **kept)) == ["numeric-drift"]


def test_dropout_in_training_mode_passes():
    recipe = onnx_ci.recipe(name="drops", nondeterministic=True, training=True, **ROWS)(
        lambda: (nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3)), (torch.randn(5, 8),))
    )
    assert rules(run_one(recipe, exporters="torchscript")) == []


def test_dropout_as_the_last_layer_passes():
    """ONNX Runtime seeds Dropout with consecutive numbers, so that some elements are the same in many runs."""
    recipe = onnx_ci.recipe(name="drops", nondeterministic=True, training=True, **ROWS)(
        lambda: (nn.Dropout(0.5), (torch.randn(32, 64),))
    )
    assert rules(run_one(recipe)) == []


def test_multinomial_passes():
    assert rules(run_one(random_recipe(lambda x: torch.multinomial(x, 8, replacement=True)))) == []


# --- what is wrong is named


def message(result):
    return next(each.message for each in result.findings if each.severity is Severity.ERROR)


def test_a_size_that_is_frozen_in_the_noise_is_found_on_another_size():
    result = run_one(random_recipe(lambda x: x + torch.randn(int(x.shape[0]), 16)))
    assert set(rules(result)) == {"baked-shape", "shape-mismatch"}
    assert {each.probe for each in result.findings if each.rule == "baked-shape"} == {"rows=6", "rows=1"}


def test_a_value_that_is_frozen_is_found_on_another_value():
    result = verified(lambda x: noise(x) + x.mean().item(), lambda x: noise(x) + x.mean(), effort="full")
    assert rules(result) == ["baked-value"]


def test_the_complement_of_a_probability_is_another_distribution():
    result = verified(bernoulli, lambda x: bernoulli(1 - x))
    assert rules(result) == ["numeric-drift"]
    assert "has the mean" in message(result)


@both_exporters
def test_the_bernoulli_of_onnx_runtime_is_found(exporter):
    """It draws with 1 - p, like the definition of the operator as a function (onnxruntime 1.31.1)."""
    result = run_one(random_recipe(torch.bernoulli), opsets="18", exporters=exporter)
    assert "numeric-drift" in rules(result)


def test_another_spread_of_some_elements():
    def spread_over(x, scale):
        return torch.randn_like(x) * scale

    scale = torch.linspace(0.5, 1.5, 16)
    result = verified(lambda x: spread_over(x, scale), lambda x: spread_over(x, scale.flip(0)))
    assert rules(result) == ["numeric-drift"]
    assert "has the spread" in message(result)


def test_another_distribution_with_the_same_moments():
    x = torch.rand(20, 64)
    result = verified(lambda x: x + torch.randn_like(x), lambda x: x + (torch.rand_like(x) - 0.5) * 12**0.5, x)
    assert rules(result) == ["numeric-drift"]
    assert "is distributed differently" in message(result)


@pytest.mark.parametrize("factor", [1.01, 0.5])
def test_an_element_that_is_not_random_must_agree(factor):
    def scaled(factor):
        return lambda x: torch.cat([x[:, :8] + torch.randn_like(x[:, :8]), x[:, 8:-1], factor * x[:, -1:]], 1)

    assert rules(verified(scaled(1.0), scaled(factor))) == ["numeric-drift"]


def test_noise_that_is_missing():
    assert rules(verified(lambda x: x + 0.5, lambda x: x + torch.rand_like(x))) == ["numeric-drift"]


def test_another_share_of_infinite_values():
    result = verified(lambda x: torch.log(bernoulli(x)), lambda x: torch.log(bernoulli(1 - x)))
    assert rules(result) == ["nonfinite-mismatch"]


def test_an_axis_that_the_model_never_moved_is_reported():
    result = run_one(random_recipe(lambda x: noise(x).reshape(5, 16)))
    assert "vacuous" in rules(result)
    assert any("was not tested" in each.message for each in result.findings)


def test_an_output_that_is_always_empty_proves_nothing():
    result = run_one(random_recipe(lambda x: (noise(x), x[:0]), input_names=["x"], output_names=["y", "empty"]))
    assert rules(result) == ["vacuous"]
    assert "output 'empty' was never compared" in result.findings[-1].message


# --- the statistic


def compared(file, model):
    """The findings about one output of a file and of a model, of which each is a function from a generator to a draw."""

    def samples(draw, seed):
        generator = torch.Generator().manual_seed(seed)
        return tuple((sample_of(draw(generator)),) for _ in range(runs_needed([own])))

    own = model(torch.Generator().manual_seed(0))
    reference = Reference(own=(own,), exact=(own,), noise=(1.0,), stable=(own,), eps=2.0**-23, method="random")
    probe = Probe(name=EXAMPLE, inputs=(), reference=reference, samples=samples(model, 1))
    return compare_random(["y"], samples(file, 2), probe)


def test_a_scalar_is_drawn_more_often_than_a_large_output():
    assert runs_needed([torch.zeros(())]) == 8 * ROUNDS
    assert runs_needed([torch.zeros(64), torch.zeros(0)]) == ROUNDS


def test_a_shift_of_every_element_of_a_large_output_is_found_though_only_some_are_kept():
    def draw(shift):
        return lambda generator: shift + torch.rand(4 * KEPT, generator=generator)

    assert compared(draw(0.0), draw(0.0)) == []
    assert "has the mean" in compared(draw(0.1), draw(0.0))[0].message


def test_a_large_constant_hides_no_other_element():
    """Rounding of a large element is not that of the noise, but all are measured at its size."""

    def draw(shift):
        return lambda generator: torch.cat([torch.full((1,), 100.0), shift + torch.randn(500, generator=generator)])

    assert compared(draw(0.0), draw(0.0)) == []
    assert compared(draw(1.0), draw(0.0))


def test_rounding_of_constants_is_no_difference():
    def draw(factor):
        return lambda generator: torch.cat([torch.randn(100, generator=generator), torch.linspace(1, 9, 100) * factor])

    assert compared(draw(1 + 1e-6), draw(1.0)) == []
    assert "in the file and" in compared(draw(1.01), draw(1.0))[0].message


def test_the_rounding_of_what_is_equal_in_every_run_is_no_difference():
    assert compared(lambda _: torch.full((50,), 1.0), lambda _: torch.full((50,), 1.0 + 1e-6)) == []
