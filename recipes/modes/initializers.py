"""Weights as inputs with defaults, as inputs without defaults, and under chosen names. From opset 9."""

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
            onnx_ci.known_failure("checker", "the weights are removed and no inputs replace them", seen="torch 2.13.0"),
            onnx_ci.known_failure("load-error", "the weights are removed and no inputs replace them", seen="torch 2.13.0"),
        ]
    },
)
def without_weights():
    return network(), (torch.randn(2, 3),)


@onnx_ci.recipe(
    input_names=["x", *(f"learned_{i}" for i in range(8))],
    **SIGNATURE,
    allow=["name-mismatch"],  # more names than inputs: they name the weights, and dynamo ignores them
)
def named_weights():
    return network(), (torch.randn(2, 3),)
