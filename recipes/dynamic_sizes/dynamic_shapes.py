"""Dynamic sizes as torch.export declares them; for TorchScript, onnx-ci converts them to dynamic_axes. From opset 9."""

import torch
from torch.export import Dim

import onnx_ci


class Pair(torch.nn.Module):
    def forward(self, one, other):
        return torch.cat([one * 2, other], dim=1)


NAMES = {"input_names": ["one", "other"], "output_names": ["both"]}
EXAMPLE = torch.arange(6.0).reshape(2, 3), torch.arange(8.0).reshape(2, 4)


@onnx_ci.recipe(**NAMES, dynamic_shapes=({0: "batch", 1: "n"}, {0: "batch", 1: "m"}))
def shapes_by_position():
    return Pair(), EXAMPLE


@onnx_ci.recipe(
    **NAMES, dynamic_shapes={"one": {0: Dim("batch"), 1: Dim("n", max=64)}, "other": {0: Dim("batch"), 1: Dim("m")}}
)
def shapes_by_name():
    return Pair(), EXAMPLE


@onnx_ci.recipe(**NAMES, dynamic_shapes=({1: Dim.DYNAMIC}, {1: Dim.AUTO}))
def shapes_unnamed():
    return Pair(), EXAMPLE
