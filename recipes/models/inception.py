"""Inception v3, in which small differences between operators grow, as the documentation warns. From opset 9."""

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import build


@onnx_ci.recipe(
    input_names=["input"],
    output_names=["output"],
    dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
    tags=["vision"],
)
def inception_v3(weights=None):
    return build("inception_v3", weights, init_weights=False), (torch.randn(2, 3, 75, 75),)
