"""A recurrent cell for sequences of any length, for the dynamo exporter: torch's scan becomes an ONNX Scan. From opset 18.

The exporter unrolls torch.nn.LSTM at the length of the example (see models/lstm.py); this is what to write instead.
"""

import torch
from torch._higher_order_ops import scan

import onnx_ci


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(10, 20)

    def forward(self, input, h0, c0):
        def step(states, x):
            h, c = self.cell(x, states)
            return (h, c), h.clone()

        (hn, cn), output = scan(step, (h0, c0), input)
        return output, hn, cn


@onnx_ci.recipe(
    input_names=["input", "h0", "c0"],
    output_names=["output", "hn", "cn"],
    dynamic_axes={
        "input": {0: "sequence", 1: "batch"},
        "h0": {0: "batch"},
        "c0": {0: "batch"},
        "output": {0: "sequence", 1: "batch"},
        "hn": {0: "batch"},
        "cn": {0: "batch"},
    },
    tags=["recurrent"],
    expect={
        "torchscript": onnx_ci.known_failure(
            "export-error", "only torch.export supports scan; see models/lstm.py", seen="torch 2.13.0"
        ),
        "dynamo cuda": onnx_ci.unsupported(
            "on a GPU, LSTMCell is one operator of its own: export it on the CPU", seen="torch 2.11.0"
        ),
    },
)
def lstm_scan():
    return Recurrent(), (torch.randn(5, 3, 10), torch.randn(3, 20), torch.randn(3, 20))
