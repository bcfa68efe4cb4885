"""ResNets with a dynamic batch axis. From opset 9."""

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
def resnet18(weights=None):
    return build("resnet18", weights), (torch.randn(2, 3, 224, 224),)


@onnx_ci.recipe(**SIGNATURE)
def resnet50(weights=None):
    return build("resnet50", weights), (torch.randn(2, 3, 224, 224),)
