"""DCGAN's generator and discriminator: transposed and strided convolutions with BatchNorm. From opset 9."""

import torch
from torch import nn

import onnx_ci

WIDTH = 16


def up(inputs, outputs, stride=2, padding=1):
    return nn.Sequential(
        nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)
    )


def down(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True)
    )


@onnx_ci.recipe(
    input_names=["noise"],
    output_names=["image"],
    dynamic_axes={"noise": {0: "batch"}, "image": {0: "batch"}},
    tags=["vision"],
)
def dcgan_generator():
    model = nn.Sequential(
        up(20, 8 * WIDTH, stride=1, padding=0),
        up(8 * WIDTH, 4 * WIDTH),
        up(4 * WIDTH, 2 * WIDTH),
        up(2 * WIDTH, WIDTH),
        nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    return model, (torch.randn(2, 20, 1, 1),)


@onnx_ci.recipe(
    input_names=["image"],
    output_names=["is_real"],
    dynamic_axes={"image": {0: "batch"}, "is_real": {0: "batch"}},
    tags=["vision"],
)
def dcgan_discriminator():
    model = nn.Sequential(
        down(3, WIDTH),
        down(WIDTH, 2 * WIDTH),
        down(2 * WIDTH, 4 * WIDTH),
        down(4 * WIDTH, 8 * WIDTH),
        nn.Conv2d(8 * WIDTH, 1, 4, bias=False),
        nn.Sigmoid(),
    )
    return model, (torch.randn(2, 3, 64, 64),)
