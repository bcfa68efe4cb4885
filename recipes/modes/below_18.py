"""dynamo below opset 18: the finished model is converted down where possible; otherwise the file stays at opset 18."""

import torch
from torch import nn

import onnx_ci


class Mean(nn.Module):
    """A mean over axes, which ReduceMean takes as an input from opset 18."""

    def forward(self, x):
        return x.mean(dim=(1, 2))


SIGNATURE = {
    "input_names": ["x"],
    "output_names": ["y"],
    "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}},
    "exporter": "dynamo",
    "opsets": "13-17",
}
AT_18 = onnx_ci.known_failure("opset-mismatch", "the conversion fails and the file stays at opset 18", seen="torch 2.13.0")


@onnx_ci.recipe(**SIGNATURE, expect={13: AT_18})
def converted_down():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)), (torch.randn(2, 3),)


@onnx_ci.recipe(**SIGNATURE, expect={"13-17": AT_18})
def not_converted_down():
    return Mean(), (torch.randn(2, 3, 4),)
