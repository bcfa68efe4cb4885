"""The documentation's SumModule, with fixed sizes, and with a named and an unnamed dynamic axis. From opset 9."""

import torch

import onnx_ci


class SumModule(torch.nn.Module):
    def forward(self, x):
        return torch.sum(x, dim=1)


@onnx_ci.recipe(input_names=["x"], output_names=["sum"])
def sum_fixed():
    return SumModule(), (torch.ones(2, 2),)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["sum"],
    dynamic_axes={"x": {0: "my_custom_axis_name"}, "sum": [0]},  # the second axis is called sum_dynamic_axes_1 in the file
)
def sum_dynamic():
    return SumModule(), (torch.ones(2, 2),)
