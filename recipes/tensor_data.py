"""``Tensor.data``: TorchScript does not see what is done to it, dynamo refuses it. ``detach`` holds from opset 9."""

import torch

import onnx_ci


class Data(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        y.data += 1
        return y


class Detached(torch.nn.Module):
    def forward(self, x):
        return (x * 2).detach() + 1


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    expect={
        "torchscript": onnx_ci.fails("numeric-drift", "what is added to .data is lost", seen="torch 2.13.0"),
        "dynamo": onnx_ci.fails("export-error", "torch.export cannot trace .data", seen="torch 2.13.0"),
    },
)
def tensor_data():
    return Data(), (torch.randn(3),)


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def tensor_detached():
    return Detached(), (torch.randn(3),)
