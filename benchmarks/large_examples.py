"""Few layers on large inputs, written down once and not tuned: what a first cell costs where each run takes long."""

import torch
from torch import nn
from torch.nn import functional

import onnx_ci


def large(name, model, example, *inputs, axes=None):
    """A recipe with one output. The sizes of ``axes`` are dynamic, both of the first input and of the output."""
    names = {"input_names": inputs, "output_names": ["out"]}
    dynamic = {inputs[0]: axes, "out": axes} if axes else {}
    return onnx_ci.recipe(lambda: (model(), example()), name=name, **names, dynamic_axes=dynamic)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.down = self.block(3, 8), self.block(8, 16)
        self.inside, self.up = self.block(16, 16), self.block(32, 8)
        self.last = nn.Conv2d(16, 2, 1)

    def block(self, inside, outside):
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())

    def forward(self, image):
        first = self.first(image)
        down = self.down(functional.max_pool2d(first, 2))
        x = functional.interpolate(self.inside(functional.max_pool2d(down, 2)), scale_factor=2.0)
        x = functional.interpolate(self.up(torch.cat((x, down), 1)), scale_factor=2.0)
        return self.last(torch.cat((x, first), 1))


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_points = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, points):
        return self.head(self.of_points(points).amax(1))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(1000, 64), nn.LayerNorm(64), nn.Linear(64, 16)

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens)))


class Signal(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv1d(1, 8, 9, padding=4), nn.GELU(), nn.Conv1d(8, 1, 9, padding=4))


class Volume(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 8, 3, padding=1))


def convolution():
    return nn.Conv2d(3, 16, 3, padding=1)


def image(size):
    return lambda: (torch.randn(1, 3, size, size),)


BATCH, LENGTH, ALL = {0: "batch"}, {1: "length"}, {0: "batch", 2: "height", 3: "width"}

convolution_1024 = large("convolution_1024", convolution, image(1024), "image")
convolution_2048 = large("convolution_2048", convolution, image(2048), "image")
dynamic_1024 = large("dynamic_1024", convolution, image(1024), "image", axes=ALL)
dynamic_2048 = large("dynamic_2048", convolution, image(2048), "image", axes=ALL)
signal = large("signal", Signal, lambda: (torch.randn(1, 1, 10**6),), "signal", axes={2: "length"})
volume = large("volume", Volume, lambda: (torch.randn(1, 1, 128, 128, 128),), "volume", axes=BATCH)
tokens = large("tokens", Tokens, lambda: (torch.randint(0, 1000, (1, 50_000)),), "tokens", axes=LENGTH)
points = large("points", PointNet, lambda: (torch.randn(1, 10**5, 3),), "points", axes=BATCH)
unet = large("unet", UNet, image(1024), "image", axes=BATCH)
product = large("product", lambda: nn.Linear(4096, 4096), lambda: (torch.randn(4096, 4096),), "x", axes={0: "rows"})
