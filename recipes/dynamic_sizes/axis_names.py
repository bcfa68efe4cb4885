"""Axes with the same name have the same size; axes that must be equal need the same name. From opset 9."""

import torch

import onnx_ci


class AddTransposed(torch.nn.Module):
    def forward(self, x):
        return x + x.T


class Concatenate(torch.nn.Module):
    def forward(self, one, other):
        return torch.cat([one, other], dim=1)


SQUARE = torch.arange(16.0).reshape(4, 4)


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "size", 1: "size"}, "y": {0: "size", 1: "size"}})
def one_axis_name():
    return AddTransposed(), (SQUARE,)


SAME_NAME = onnx_ci.known_failure("name-mismatch", "dynamo gives axes that must be equal the same name", seen="torch 2.13.0")


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    dynamic_axes={"x": {0: "rows", 1: "columns"}, "y": {0: "rows", 1: "columns"}},
    expect={"dynamo": SAME_NAME},
)
def two_axis_names():
    return AddTransposed(), (SQUARE,)


@onnx_ci.recipe(
    input_names=["one", "other"],
    output_names=["both"],
    dynamic_axes={"one": {0: "batch", 1: "n"}, "other": {0: "batch", 1: "m"}, "both": {0: "batch", 1: "n_and_m"}},
)
def axis_names_of_two_inputs():
    return Concatenate(), (torch.randn(2, 3), torch.randn(2, 4))
