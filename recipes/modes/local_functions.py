"""Modules as functions in the file, from opset 15; dynamo ignores the option and exports the model as usual."""

import torch
from torch import nn

import onnx_ci

SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
TOO_OLD = onnx_ci.known_failure("export-error", "ONNX files can contain functions from opset 15", seen="torch 2.13.0")


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


@onnx_ci.recipe(**SIGNATURE, export_modules_as_functions={nn.LayerNorm}, expect={"torchscript 9-14": TOO_OLD})
def local_functions():
    return network(), (torch.randn(2, 3),)


@onnx_ci.recipe(
    **SIGNATURE,
    export_modules_as_functions=True,
    expect={
        "torchscript 9-14": TOO_OLD,
        "torchscript 15-": onnx_ci.known_failure(
            "name-mismatch", "the whole model becomes a function, and output_names is ignored", seen="torch 2.13.0"
        ),
    },
)
def local_functions_everywhere():
    return network(), (torch.randn(2, 3),)
