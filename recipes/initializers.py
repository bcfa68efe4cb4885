"""Weights as inputs with a default, as inputs without one, and under names of one's own. Hold from opset 9."""

import torch
from torch import nn

import onnx_ci

SIGNATURE = {"output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@onnx_ci.recipe(input_names=["x"], **SIGNATURE, keep_initializers_as_inputs=True)
def weights_as_inputs():
    return network(), (torch.randn(2, 3),)


@onnx_ci.recipe(
    input_names=["x"],
    **SIGNATURE,
    export_params=False,
    expect={
        "dynamo": [
            onnx_ci.fails("checker", "the weights are gone, and no input has their name", seen="torch 2.13.0"),
            onnx_ci.fails("load-error", "the weights are gone, and no input has their name", seen="torch 2.13.0"),
        ]
    },
)
def without_weights():
    return network(), (torch.randn(2, 3),)


@onnx_ci.recipe(
    input_names=["x", *(f"learned_{i}" for i in range(8))],
    **SIGNATURE,
    allow=["name-mismatch"],  # which more names than inputs are otherwise; dynamo gives them to nothing
)
def named_weights():
    return network(), (torch.randn(2, 3),)
