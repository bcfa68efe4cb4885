"""Segmentation models, whose output is upsampled: correct from opset 11.

Below that, the exporter writes Upsample (opset 9) or Resize (opset 10), which sample other points than PyTorch. The checker
accepts the file, although the output is off by more than 100,000 times PyTorch's own rounding.
"""

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import build

SIGNATURE = {
    "input_names": ["image"],
    "output_names": ["classes"],
    "dynamic_axes": {"image": {0: "batch"}, "classes": {0: "batch"}},
    "tags": ["vision"],
    "expect": {
        "torchscript 9-10": onnx_ci.known_failure(
            "numeric-drift", "the bilinear interpolation differs from PyTorch's", seen="torch 2.13.0"
        )
    },
}


@onnx_ci.recipe(**SIGNATURE)
def lraspp(weights=None):
    return build("lraspp_mobilenet_v3_large", weights, weights_backbone=None), (torch.randn(2, 3, 64, 64),)


@onnx_ci.recipe(**SIGNATURE)
def fcn(weights=None):
    return build("fcn_resnet50", weights, weights_backbone=None), (torch.randn(1, 3, 64, 64),)
