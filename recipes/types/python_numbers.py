"""Python numbers as arguments: constants with dynamo, undeclared inputs with TorchScript. As tensors: from opset 9."""

import torch

import onnx_ci


class Scale(torch.nn.Module):
    def forward(self, x, factor: float, shift: int):
        return x * factor + shift


CONSTANTS = onnx_ci.known_failure("baked-argument", "the numbers become constants", seen="torch 2.13.0")
UNDECLARED = [
    onnx_ci.known_failure("baked-argument", "the arguments are numbers, not tensors", seen="torch 2.13.0"),
    onnx_ci.known_failure("input-extra", "TorchScript makes each number an input with a generated name", seen="torch 2.13.0"),
]


@onnx_ci.recipe(input_names=["x"], output_names=["y"], expect={"torchscript": UNDECLARED, "dynamo": CONSTANTS})
def numbers():
    return Scale(), (torch.randn(3, 4), 2.0, 3)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    expect={
        "torchscript": UNDECLARED,
        "dynamo": [
            CONSTANTS,
            onnx_ci.known_failure("export-error", "torch.export does not accept scripted modules", seen="torch 2.13.0"),
        ],
    },
)
def numbers_scripted():
    return torch.jit.script(Scale()), (torch.randn(3, 4), 2.0, 3)


@onnx_ci.recipe(input_names=["x", "factor", "shift"], output_names=["y"])
def numbers_as_tensors():
    return Scale(), (torch.randn(3, 4), torch.tensor(2.0), torch.tensor(3))
