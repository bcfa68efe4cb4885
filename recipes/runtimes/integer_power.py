"""One file in several runtimes, which shows whose fault a difference is: here, that of ONNX Runtime. From opset 12.

ONNX Runtime computes the power of two int64 numbers in float64, which rounds. ONNX's reference evaluator computes the same
file correctly, so the finding names the runtime. Below opset 12 the exporter itself converts the integers to floats.
"""

import torch

import onnx_ci


class Power(torch.nn.Module):
    def forward(self, base, exponent):
        return base**exponent


class Product(torch.nn.Module):
    """A power by multiplication, which every runtime computes in integers."""

    def forward(self, base):
        square = base * base
        return square * square * base


@onnx_ci.recipe(
    input_names=["base", "exponent"],
    output_names=["power"],
    runtimes=["onnxruntime", "reference"],
    inputs={"exponent": onnx_ci.integers(0, 28)},
    expect={
        "torchscript 9-11": [
            onnx_ci.known_failure(
                "dtype-mismatch", "at this opset, Pow takes only floats, and the result stays a float", seen="torch 2.13.0"
            ),
            onnx_ci.known_failure("numeric-drift", "float32 has only 24 bits of precision", seen="torch 2.13.0"),
        ],
        **{
            where: onnx_ci.known_failure(
                "runtime-disagreement",
                "ONNX Runtime computes in float64, and the result is off by 11",
                seen="onnxruntime 1.31.1",
            )
            for where in ("torchscript 12-", "dynamo")
        },
    },
)
def integer_power():
    return Power(), (torch.tensor([3, 5]), torch.tensor([27, 26]))


@onnx_ci.recipe(input_names=["base"], output_names=["power"], runtimes=["onnxruntime", "reference"])
def integer_power_as_product():
    return Product(), (torch.tensor([3, 6001]),)
