"""Models in float16 hold from opset 9. In bfloat16 a model needs opset 15, and a runtime with kernels for it."""

import torch
from torch import nn

import onnx_ci


class Bfloat16Weights(nn.Module):
    """Rounded weights, float32 in the computation: any runtime can run it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8).bfloat16()

    def forward(self, x):
        return nn.functional.linear(x, self.linear.weight.float(), self.linear.bias.float())


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
NOT_IN_ONNX = onnx_ci.fails("checker", "the operators of this opset take no bfloat16", seen="torch 2.13.0")
NO_KERNEL = onnx_ci.fails("load-error", "the CPU has no kernel for Gemm in bfloat16", seen="onnxruntime 1.31.1")


@onnx_ci.recipe(**SIGNATURE)
def float16():
    return network().half(), (torch.randn(2, 4).half(),)


@onnx_ci.recipe(
    **SIGNATURE,
    expect={"torchscript 9-14": [NOT_IN_ONNX, NO_KERNEL], "torchscript 15-": NO_KERNEL, "dynamo": NO_KERNEL},
)
def bfloat16():
    return network().bfloat16(), (torch.randn(2, 4).bfloat16(),)


@onnx_ci.recipe(**SIGNATURE)
def bfloat16_weights():
    return Bfloat16Weights(), (torch.randn(2, 4),)
