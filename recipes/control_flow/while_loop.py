"""A loop whose count is an input, for the dynamo exporter: torch's while_loop becomes an ONNX Loop. From opset 18."""

import torch
from torch._higher_order_ops import while_loop

import onnx_ci


class Loop(torch.nn.Module):
    def forward(self, x, count):
        def more(i, x):
            return i < count

        def step(i, x):
            return i + 1, x + i

        return while_loop(more, step, (torch.zeros((), dtype=torch.int64), x))[1]


@onnx_ci.recipe(
    input_names=["input_data", "loop_range"],
    output_names=["output"],
    expect={
        "torchscript": onnx_ci.known_failure(
            "export-error", "only torch.export supports while_loop; see loops.py", seen="torch 2.13.0"
        )
    },
)
def loop_while():
    return Loop(), (torch.ones(2, 3, dtype=torch.int64), torch.tensor(5))
