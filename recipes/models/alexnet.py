"""AlexNet with a dynamic batch axis: the first example of the torch.onnx documentation. From opset 9."""

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import build


@onnx_ci.recipe(
    input_names=["actual_input_1"],
    output_names=["output1"],
    dynamic_axes={"actual_input_1": {0: "batch"}, "output1": {0: "batch"}},
    tags=["vision"],
)
def alexnet(weights=None):
    return build("alexnet", weights), (torch.randn(2, 3, 224, 224),)
