"""Arithmetic on ``tensor.shape``: in place, it changes the shape itself under TorchScript. Out of place: from opset 9."""

import torch
from torch.onnx.operators import shape_as_tensor

import onnx_ci


class InPlace(torch.nn.Module):
    def forward(self, states):
        length = states.shape[1]
        padded = length
        padded += 2
        return states.new_zeros(1) + (padded + length)


class OutOfPlace(torch.nn.Module):
    def forward(self, states):
        length = states.shape[1]
        padded = length + 2
        return states.new_zeros(1) + (padded + length)


class Shape(torch.nn.Module):
    def forward(self, states):
        return shape_as_tensor(states), states * 2


SIGNATURE = {"input_names": ["states"], "dynamic_axes": {"states": {0: "batch", 1: "length"}}}


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript": onnx_ci.known_failure("numeric-drift", "the length changes too: 16 instead of 14", seen="torch 2.13.0")
    },
)
def shape_in_place():
    return InPlace(), (torch.randn(2, 6),)


@onnx_ci.recipe(**SIGNATURE)
def shape_out_of_place():
    return OutOfPlace(), (torch.randn(2, 6),)


@onnx_ci.recipe(
    **{**SIGNATURE, "dynamic_axes": {"states": {0: "batch"}, "doubled": {0: "batch"}}},
    output_names=["shape", "doubled"],
    expect={
        "dynamo": onnx_ci.known_failure(
            "export-error", "under torch.export the shape is numbers, not a tensor", seen="torch 2.13.0"
        )
    },
)
def shape_as_output():
    return Shape(), (torch.randn(2, 6),)
