"""``Tensor.data``: TorchScript does not record changes to it, and dynamo rejects it. ``detach`` instead: from opset 9."""

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
        "torchscript": onnx_ci.known_failure(
            "numeric-drift", "the addition to .data is missing from the file", seen="torch 2.13.0"
        ),
        "dynamo": onnx_ci.known_failure("export-error", "torch.export cannot trace .data", seen="torch 2.13.0"),
    },
)
def tensor_data():
    return Data(), (torch.randn(3),)


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def tensor_detached():
    return Detached(), (torch.randn(3),)
