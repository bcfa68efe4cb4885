"""Python numbers as arguments: constants of dynamo's file, undeclared inputs of TorchScript's. Tensors hold from opset 9."""

import torch

import onnx_ci


class Scale(torch.nn.Module):
    def forward(self, x, factor: float, shift: int):
        return x * factor + shift


CONSTANTS = onnx_ci.fails("baked-argument", "the numbers are constants of the file", seen="torch 2.13.0")
UNDECLARED = [
    onnx_ci.fails("baked-argument", "numbers are no tensors", seen="torch 2.13.0"),
    onnx_ci.fails("input-extra", "TorchScript makes an input of each number, under a name of its own", seen="torch 2.13.0"),
]


@onnx_ci.recipe(input_names=["x"], output_names=["y"], expect={"torchscript": UNDECLARED, "dynamo": CONSTANTS})
def numbers():
    return Scale(), (torch.randn(3, 4), 2.0, 3)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    expect={
        "torchscript": UNDECLARED,
        "dynamo": [CONSTANTS, onnx_ci.fails("export-error", "torch.export takes no scripted module", seen="torch 2.13.0")],
    },
)
def numbers_scripted():
    return torch.jit.script(Scale()), (torch.randn(3, 4), 2.0, 3)


@onnx_ci.recipe(input_names=["x", "factor", "shift"], output_names=["y"])
def numbers_as_tensors():
    return Scale(), (torch.randn(3, 4), torch.tensor(2.0), torch.tensor(3))
