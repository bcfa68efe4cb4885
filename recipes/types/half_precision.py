"""Half precision: float16 from opset 9; bfloat16 from opset 15, and only in a runtime that has kernels for it."""

import torch
from torch import nn

import onnx_ci


class Bfloat16Weights(nn.Module):
    """Weights in bfloat16, computation in float32, which any runtime can run."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8).bfloat16()

    def forward(self, x):
        return nn.functional.linear(x, self.linear.weight.float(), self.linear.bias.float())


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
NOT_IN_ONNX = [
    onnx_ci.known_failure(rule, "at this opset, the operators do not accept bfloat16", seen="torch 2.13.0")
    for rule in ("checker", "load-error")
]
NO_KERNEL = onnx_ci.known_failure(
    "load-error", "ONNX Runtime has no bfloat16 kernel for Gemm on the CPU", seen="onnxruntime 1.31.1"
)


@onnx_ci.recipe(**SIGNATURE)
def float16():
    return network().half(), (torch.randn(2, 4).half(),)


@onnx_ci.recipe(
    **SIGNATURE,
    expect={"torchscript 9-14": NOT_IN_ONNX, "torchscript cpu 15-": NO_KERNEL, "dynamo cpu": NO_KERNEL},
)
def bfloat16():
    return network().bfloat16(), (torch.randn(2, 4).bfloat16(),)


@onnx_ci.recipe(**SIGNATURE)
def bfloat16_weights():
    return Bfloat16Weights(), (torch.randn(2, 4),)
