"""SuperResolution: convolutions and a pixel shuffle, for images of any size. From opset 9."""

import torch
from torch import nn

import onnx_ci


@onnx_ci.recipe(
    input_names=["image"],
    output_names=["larger_image"],
    dynamic_axes={
        "image": {0: "batch", 2: "height", 3: "width"},
        "larger_image": {0: "batch", 2: "larger_height", 3: "larger_width"},
    },
    tags=["vision"],
)
def super_resolution():
    factor = 3
    model = nn.Sequential(
        nn.Conv2d(1, 64, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, factor**2, 3, padding=1),
        nn.PixelShuffle(factor),
    )
    return model, (torch.randn(2, 1, 16, 12),)
