"""A model that computes in half precision by autocast is judged by that rounding, although float64 shows no cast."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import Function, rules, run_one

import onnx_ci
from onnx_ci import Status
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.running import flatten_outputs
from onnx_ci.pipeline.reference.reference import make_reference

HALF = torch.finfo(torch.float16).eps


class Deep(torch.nn.Module):
    """Six layers in float16, of whose results the file may have all wrong by a share."""

    def __init__(self, error=0.0):
        super().__init__()
        self.layers = torch.nn.Sequential(*(each for _ in range(6) for each in (torch.nn.Linear(64, 64), torch.nn.Tanh())))
        self.error = error

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            y = self.layers(x)
        if torch.onnx.is_in_onnx_export() and self.error:
            y = y * (1 + self.error)
        return y.float()


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_rounding_to_half_precision_by_autocast_is_not_too_noisy(exporter):
    recipe = onnx_ci.recipe(
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, name="net"
    )
    right, wrong = (
        run_one(recipe(lambda error=error: (Deep(error), (torch.randn(4, 64),))), opsets="18", exporters=exporter)
        for error in (0.0, 0.05)
    )
    assert (right.status, rules(right)) == (Status.PASSED, [])
    assert rules(wrong) == ["numeric-drift"]


def eps_of(function):
    def build():
        return Call(model=Function(function), args=(torch.randn(3, 4), torch.randn(4, 2)), kwargs={})

    copies = Copies(build(), build)
    return make_reference(copies, flatten_outputs(copies.first_run())).eps


def test_only_autocast_for_the_models_own_device_is_coarse():
    def product(x, weight, device, enabled):
        with torch.autocast(device, dtype=torch.float16, enabled=enabled):
            return (x @ weight).float()

    single = torch.finfo(torch.float32).eps
    assert eps_of(lambda x, weight: product(x, weight, "cpu", True)) == HALF
    assert eps_of(lambda x, weight: product(x, weight, "cpu", False)) == single
    assert eps_of(lambda x, weight: product(x, weight, "mps", True)) == single
