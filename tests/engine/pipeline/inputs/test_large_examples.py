"""A large example, of which a run takes as long as an export: fewer inputs are compared, and those that are left out are named."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import recipe_of, rules, run_one, task

from onnx_ci.pipeline.prepare.prepare import LARGE, prepare
from onnx_ci.results.records import Status

X = torch.rand(1, LARGE + 1024, generator=torch.Generator().manual_seed(0)) + 0.1
LEFT_OUT = ("floats zero", "floats negated", "floats large", "floats small", "floats extreme")
STATIC = {"input_names": ["x"], "output_names": ["y"]}
DYNAMIC = {**STATIC, "dynamic_axes": {"x": {1: "length"}, "y": {1: "length"}}}


def probes_of(x, **declared):
    return prepare(task(recipe_of(lambda x: x * 2 + 1, x, **declared))).probes


def test_of_the_special_values_those_are_left_out_that_others_have_too():
    probes = probes_of(X, **STATIC)
    assert [probe.name for probe in probes.all] == ["example", "random values", "floats mixed"]
    assert probes.left_out == LEFT_OUT
    small = probes_of(X[:, :1024], **STATIC)
    assert small.left_out == ()
    assert {*LEFT_OUT} < {probe.name for probe in small.all}


def test_sizes_are_smaller_once_all_have_been_larger():
    length = X.shape[1]
    sizes = {probe.inputs[0].shape[1] for probe in probes_of(X, **DYNAMIC).all}
    assert sizes == {length, length + 1, length // 4 + 1, 1}


def test_the_inputs_that_are_left_out_are_in_the_evidence():
    result = run_one(recipe_of(lambda x: x * 2 + 1, X, **STATIC))
    assert (result.status, result.left_out) == (Status.PASSED, LEFT_OUT)


@pytest.mark.parametrize(
    ("wrong", "right", "declared", "rule"),
    [
        (lambda x: x * float(x.max()), lambda x: x * x.max(), STATIC, "baked-value"),  # which a fresh input shows
        (lambda x: x.clamp(min=0.0) if torch.onnx.is_in_onnx_export() else x + 0.0, lambda x: x + 0.0, STATIC, "baked-value"),
        (lambda x: x[:, : int(x.shape[1])] + 0, lambda x: x[:, : x.shape[1]] + 0, DYNAMIC, "baked-shape"),  # a larger size
    ],
)
def test_what_is_wrong_is_caught_and_its_twin_passes(wrong, right, declared, rule):
    result = run_one(recipe_of(wrong, X, **declared))
    assert (result.status, rule in rules(result)) == (Status.FAILED, True)
    assert run_one(recipe_of(right, X, **declared)).status is Status.PASSED
