"""An LSTM for sequences of any length, as in the FAQ of the torch.onnx documentation. From opset 9.

dynamo unrolls the sequence at the length of the example; control_flow/scan.py shows what to write instead.
"""

import torch

import onnx_ci

UNROLLED = [
    onnx_ci.known_failure("static-axis", "the sequence is unrolled; see control_flow/scan.py", seen="torch 2.13.0"),
    onnx_ci.known_failure("baked-shape", "the sequence is unrolled; see control_flow/scan.py", seen="torch 2.13.0"),
]


@onnx_ci.recipe(
    input_names=["input", "h0", "c0"],
    output_names=["output", "hn", "cn"],
    dynamic_axes={"input": {0: "sequence"}, "output": {0: "sequence"}},
    tags=["recurrent"],
    expect={"dynamo": UNROLLED},
)
def lstm(weights=None):
    layers = 4
    model = torch.nn.LSTM(10, 20, num_layers=layers, bidirectional=True)
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    states = torch.randn(layers * 2, 3, 20), torch.randn(layers * 2, 3, 20)
    return model, (torch.randn(5, 3, 10), states)
