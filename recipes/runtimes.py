"""One file in several runtimes, so that a fault is laid at the right door: here that of ONNX Runtime. From opset 12.

ONNX Runtime computes the power of two int64 numbers in float64, which rounds. ONNX's own evaluator gets the same file
right, so the finding is about the runtime. Below opset 12 the exporter itself makes floats of them.
"""

import torch

import onnx_ci


class Power(torch.nn.Module):
    def forward(self, base, exponent):
        return base**exponent


class Product(torch.nn.Module):
    """Powers by multiplication, which every runtime computes in integers."""

    def forward(self, base):
        square = base * base
        return square * square * base


@onnx_ci.recipe(
    input_names=["base", "exponent"],
    output_names=["power"],
    runtimes=["onnxruntime", "reference"],
    expect={
        "torchscript 9-11": [
            onnx_ci.fails("dtype-mismatch", "ONNX has no power of integers, and floats stay floats", seen="torch 2.13.0"),
            onnx_ci.fails("numeric-drift", "a float32 holds the first 24 bits only", seen="torch 2.13.0"),
        ],
        **{
            where: onnx_ci.fails("runtime-disagreement", "computed in float64, off by 11", seen="onnxruntime 1.31.1")
            for where in ("torchscript 12-", "dynamo")
        },
    },
)
def integer_power():
    return Power(), (torch.tensor([3, 5]), torch.tensor([39, 27]))


@onnx_ci.recipe(input_names=["base"], output_names=["power"], runtimes=["onnxruntime", "reference"])
def integer_power_as_product():
    return Product(), (torch.tensor([3, 6001]),)
