"""Keyword arguments: inputs in the order of forward's parameters, in whatever order they are given. From opset 9."""

import torch

import onnx_ci


class Model(torch.nn.Module):
    def forward(self, x, y=None, z=None):
        result = x
        if y is not None:
            result = result + y
        if z is not None:
            result = result * z
        return result


X, Y, Z = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), torch.ones(3, 4), torch.arange(4.0)


@onnx_ci.recipe(input_names=["x", "y", "z"], output_names=["result"])
def keyword_inputs():
    return Model(), (X,), {"z": Z, "y": Y}


@onnx_ci.recipe(input_names=["x", "z"], output_names=["result"])
def keyword_left_out():
    return Model(), (X,), {"z": Z}


@onnx_ci.recipe(input_names=["x", "z"], output_names=["result"])
def none_input():
    return Model(), (X, None, Z)
