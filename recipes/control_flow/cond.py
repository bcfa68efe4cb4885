"""A branch that depends on data, for the dynamo exporter: torch.cond becomes an ONNX If. From opset 18."""

import torch

import onnx_ci


class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    dynamic_axes={"x": {0: "length"}, "y": {0: "length"}},
    expect={
        "torchscript": onnx_ci.known_failure(
            "export-error", "only torch.export supports torch.cond; see branches.py", seen="torch 2.13.0"
        )
    },
)
def branch_cond():
    return Branch(), (torch.tensor([1.0, 2.0, -0.5]),)
