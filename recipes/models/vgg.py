"""VGG-11 with a dynamic batch axis. From opset 9."""

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import build


@onnx_ci.recipe(
    input_names=["input"],
    output_names=["output"],
    dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
    tags=["vision", "large"],
)
def vgg11(weights=None):
    return build("vgg11", weights), (torch.randn(1, 3, 224, 224),)
