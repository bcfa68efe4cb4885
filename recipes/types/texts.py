"""Strings: an argument becomes a constant, an output is dropped. As attributes of the model instead: from opset 9."""

import torch

import onnx_ci


class Reduce(torch.nn.Module):
    def forward(self, x, how):
        return x.sum(0) if how == "sum" else x.mean(0)


class ReduceBy(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return x.sum(0) if self.how == "sum" else x.mean(0)


class Labelled(torch.nn.Module):
    def forward(self, x):
        return x * 2, "label"


NOT_AN_OUTPUT = onnx_ci.known_failure("output-mismatch", "the string is not an output of the file", seen="torch 2.13.0")


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    expect={
        exporter: onnx_ci.known_failure("baked-argument", "the file always uses the string of the example", seen="torch 2.13.0")
        for exporter in ("torchscript", "dynamo")
    },
)
def text_input():
    return Reduce(), (torch.randn(3, 4), "sum")


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def text_attribute():
    return ReduceBy("sum"), (torch.randn(3, 4),)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    expect={
        "torchscript": NOT_AN_OUTPUT,
        "dynamo": [
            NOT_AN_OUTPUT,
            onnx_ci.known_failure("export-error", "the exporter does not accept a string as an output", seen="torch 2.13.0"),
        ],
    },
)
def text_output():
    return Labelled(), (torch.randn(3, 4),)
