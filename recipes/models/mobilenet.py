"""MobileNet v2, and v3 with hard swish and squeeze-and-excitation. From opset 9."""

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import build

SIGNATURE = {
    "input_names": ["input"],
    "output_names": ["output"],
    "dynamic_axes": {"input": {0: "batch"}, "output": {0: "batch"}},
    "tags": ["vision"],
}


@onnx_ci.recipe(**SIGNATURE)
def mobilenet_v2(weights=None):
    return build("mobilenet_v2", weights), (torch.randn(2, 3, 64, 64),)


@onnx_ci.recipe(**SIGNATURE)
def mobilenet_v3_small(weights=None):
    return build("mobilenet_v3_small", weights), (torch.randn(2, 3, 64, 64),)
