"""An LSTM for any batch size and sequence length, and one for fixed sizes, which dynamo can export too. From opset 9."""

import torch

import onnx_ci

UNROLLED = [
    onnx_ci.known_failure("static-axis", "the sequence is unrolled; see control_flow/scan.py", seen="torch 2.13.0"),
    onnx_ci.known_failure("baked-shape", "the sequence is unrolled; see control_flow/scan.py", seen="torch 2.13.0"),
]


@onnx_ci.recipe(
    input_names=["input", "h0", "c0"],
    output_names=["output", "hn", "cn"],
    dynamic_axes={
        "input": {0: "sequence", 1: "batch"},
        "h0": {1: "batch"},
        "c0": {1: "batch"},
        "output": {0: "sequence", 1: "batch"},
        "hn": {1: "batch"},
        "cn": {1: "batch"},
    },
    tags=["recurrent"],
    expect={
        "dynamo": [
            *UNROLLED,
            onnx_ci.known_failure(
                "shape-mismatch",
                "the output keeps the example's length, and its batch axis absorbs the difference",
                seen="torch 2.13.0",
            ),
        ]
    },
)
def lstm_of_any_batch():
    states = torch.randn(4, 3, 20), torch.randn(4, 3, 20)
    return torch.nn.LSTM(10, 20, num_layers=2, bidirectional=True), (torch.randn(5, 3, 10), states)


@onnx_ci.recipe(input_names=["input", "h0", "c0"], output_names=["output", "hn", "cn"], tags=["recurrent"])
def lstm_of_fixed_size():
    states = torch.randn(4, 3, 20), torch.randn(4, 3, 20)
    return torch.nn.LSTM(10, 20, num_layers=2, bidirectional=True), (torch.randn(5, 3, 10), states)
