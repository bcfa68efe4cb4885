"""An ATen operator that TorchScript cannot export, and a symbolic function for it. From the opset of its operators, here 9."""

import torch
from torch import nn

import onnx_ci


class Expm1(nn.Module):
    def forward(self, x):
        return torch.expm1(x)


def expm1(g, x):
    return g.op("Sub", g.op("Exp", x), g.op("Constant", value_t=torch.tensor(1.0)))


def wrong_relu(g, x):
    return x


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}


@onnx_ci.recipe(
    **SIGNATURE, expect={"torchscript": onnx_ci.unsupported("the exporter cannot convert aten::expm1", seen="torch 2.13.0")}
)
def symbolic_missing():
    return Expm1(), (torch.randn(2, 3),)


@onnx_ci.recipe(**SIGNATURE)
def symbolic():
    torch.onnx.register_custom_op_symbolic("aten::expm1", expm1, 9)
    return Expm1(), (torch.randn(2, 3),)


@onnx_ci.recipe(
    **SIGNATURE,
    expect={"torchscript": onnx_ci.known_failure("numeric-drift", "the symbolic function omits the ReLU", seen="torch 2.13.0")},
)
def symbolic_wrong():
    torch.onnx.register_custom_op_symbolic("aten::relu", wrong_relu, 9)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    return model, (torch.randn(2, 3),)
