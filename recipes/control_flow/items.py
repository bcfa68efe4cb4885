"""A size that is data: tracing turns ``y.item()`` into a constant, but not the tensor itself. From opset 9."""

import torch

import onnx_ci


class Item(torch.nn.Module):
    def forward(self, x, rows):
        return x.reshape(rows.item(), -1)


class Tensor(torch.nn.Module):
    def forward(self, x, rows):
        return x.reshape(rows, -1)


SIGNATURE = {
    "input_names": ["x", "rows"],
    "output_names": ["y"],
    "dynamic_axes": {"y": {0: "rows", 1: "columns"}},
}


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript": onnx_ci.known_failure("input-missing", "item() turns the tensor into a constant", seen="torch 2.13.0")
    },
)
def item():
    return Item(), (torch.randn(12), torch.tensor(3))


@onnx_ci.recipe(**SIGNATURE)
def item_kept_a_tensor():
    return Tensor(), (torch.randn(12), torch.tensor(3))
