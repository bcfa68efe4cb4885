"""Python numbers take the data type of the tensor, traced and scripted, contrary to the documentation. From opset 9."""

import torch

import onnx_ci


class Add(torch.nn.Module):
    def forward(self, x):
        y = x + 2
        return y + 3


class Promote(torch.nn.Module):
    """Floats with integers, and integers with Python numbers: the types are promoted as in PyTorch."""

    def forward(self, x, n):
        return x * n, n + 1.5, n / 2, x > 1


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def casts_traced():
    return Add(), (torch.tensor([1.0]),)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    expect={
        "dynamo": onnx_ci.known_failure("export-error", "torch.export does not accept scripted modules", seen="torch 2.13.0")
    },
)
def casts_scripted():
    return torch.jit.script(Add()), (torch.tensor([1.0]),)


@onnx_ci.recipe(input_names=["x", "n"], output_names=["product", "sum", "half", "is_large"])
def casts_promoted():
    return Promote(), (torch.randn(3, 4), torch.tensor([1, -2, 3, 4]))
