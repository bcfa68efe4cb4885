"""A project with an export that is right and one that is wrong."""

import torch

import onnx_ci


class Double(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        return 2 * x + self.weight


class Total(torch.nn.Module):
    def forward(self, x):
        total = torch.zeros(4)
        for i in range(x.shape[0]):  # tracing unrolls the loop for the three rows of the example
            total = total + x[i]
        return total


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def double():
    return Double(), (torch.randn(3, 4),)


@onnx_ci.recipe(input_names=["x"], output_names=["total"], dynamic_axes={"x": {0: "rows"}})
def total():
    return Total(), (torch.randn(3, 4),)
