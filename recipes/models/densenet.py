"""DenseNet-121: dense blocks that concatenate the outputs of all preceding layers. From opset 9."""

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import build


@onnx_ci.recipe(
    input_names=["input"],
    output_names=["output"],
    dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
    tags=["vision"],
)
def densenet121(weights=None):
    return build("densenet121", weights), (torch.randn(2, 3, 64, 64),)
