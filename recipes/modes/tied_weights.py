"""Weights that two layers use in the same way are stored once; tied weights of a linear layer twice. From opset 9.

A linear layer's weights are transposed in advance, by dynamo up to 8192 elements. Of larger ones, `repeated-weight` tells.
"""

import torch
from torch import nn

import onnx_ci


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(10, 6)
        self.decoder = nn.Linear(6, 10, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, words):
        return self.decoder(self.encoder(words))


class Twins(nn.Module):
    """Two layers with equal weights, which the exporters merge."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.load_state_dict(self.one.state_dict())

    def forward(self, x):
        return self.other(self.one(x).relu())


@onnx_ci.recipe(input_names=["words"], output_names=["scores"], dynamic_axes={"words": {0: "batch"}, "scores": {0: "batch"}})
def tied_weights():
    return Tied(), (torch.tensor([[1, 2, 3], [4, 5, 6]]),)


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
def shared_layer():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer), (torch.randn(2, 4),)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
    weights="trained",  # keeps onnx-ci from drawing other weights, which would not be equal
)
def equal_weights():
    return Twins(), (torch.randn(2, 4),)
