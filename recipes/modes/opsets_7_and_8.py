"""Opsets 7 and 8: weights are always inputs, whatever keep_initializers_as_inputs says; onnx-ci recognizes them."""

import torch
from torch import nn

import onnx_ci


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, opsets="7-8")
def opsets_7_and_8():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)), (torch.randn(2, 3),)
