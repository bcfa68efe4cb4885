"""Recipes of models for the benchmarks: torchvision architectures at small sizes, and small models of other kinds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import import_torchvision


def vision(
    name: str,
    size: tuple[int, ...],
    *,
    outputs: tuple[str, ...] = ("output",),
    make: Callable[[Any], nn.Module] | None = None,
    **options: Any,
) -> onnx_ci.Recipe:
    """The torchvision model ``name`` on a batch of two inputs of ``size``, with a dynamic batch axis.

    Args:
        name: the name of the recipe, and of the model for ``torchvision.models.get_model``.
        size: the size of one input: channels, frames, height and width.
        outputs: the names of the outputs; for a dict, its keys in order.
        make: creates the model from ``torchvision.models`` instead of ``get_model``.
        **options: options that ``get_model`` passes to the model.
    """

    def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        models = import_torchvision().models
        model = models.get_model(name, weights=None, **options) if make is None else make(models)
        return model, (torch.randn(2, *size),)

    return onnx_ci.recipe(
        build,
        name=name,
        input_names=["input"],
        output_names=outputs,
        dynamic_axes={each: {0: "batch"} for each in ("input", *outputs)},
    )


def maxvit(models: Any) -> nn.Module:
    """``maxvit_t`` with windows of 2, for which 64 × 64 is large enough; its default windows of 7 require 224 × 224."""
    return models.maxvit.MaxVit(
        input_size=(64, 64),
        stem_channels=64,
        partition_size=2,
        block_channels=[64, 128, 256, 512],
        block_layers=[2, 2, 5, 2],
        head_dim=32,
        stochastic_depth_prob=0.2,
    )


def small_vit(models: Any) -> nn.Module:
    return models.VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64)


class Encoder(nn.Module):
    """Token indices through an embedding and a transformer encoder to one output per sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        return torch.softmax(self.head(self.encoder(self.embedding(tokens)).mean(1)), -1)


class TwoHeads(nn.Module):
    """A perceptron with LayerNorm and two outputs of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.LeakyReLU(0.1)
        )
        self.first, self.second = nn.Linear(32, 6), nn.Linear(32, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model."""
        y = self.trunk(x)
        return torch.tanh(self.first(y)), self.second(y)


class Convolutions(nn.Module):
    """A convolutional network with BatchNorm, both kinds of pooling, a slice and a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.second_norm = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        # The pooling separates BatchNorm from the convolution, into which the exporter would fold it.
        x = torch.relu(self.norm(nn.functional.max_pool2d(self.first(x), 2)))
        x = self.second_norm(nn.functional.avg_pool2d(torch.sigmoid(self.second(x)), 3, 2, 1))
        x = x[:, :, 0:2, 0:2].reshape(x.shape[0], -1)
        return torch.log_softmax(self.head(x), -1)


class DeepFM(nn.Module):
    """A click rate of categories and numbers: linear terms, pairs and a deep part. Embeddings start near zero, as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.embedding = nn.Embedding(60, 1), nn.Embedding(60, 8)
        for table in (self.linear, self.embedding):
            nn.init.normal_(table.weight, std=1e-4)
        self.numbers = nn.Linear(4, 1)
        self.deep = nn.Sequential(
            nn.Linear(6 * 8 + 4, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1, bias=False)
        )

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        categories = categories + 10 * torch.arange(6)  # each field has ten categories of its own
        vectors = self.embedding(categories)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)
        deep = self.deep(torch.cat([vectors.flatten(1), numbers], 1))
        return torch.sigmoid(self.linear(categories).sum(1) + self.numbers(numbers) + pairs + deep)


def _small(
    name: str, model: Callable[[], nn.Module], example: Callable[[], tuple[Any, ...]], axes: dict[str, dict[int, str]]
) -> onnx_ci.Recipe:
    """A recipe of a small model. ``axes`` names its inputs and outputs; names of outputs begin with ``out``."""
    return onnx_ci.recipe(
        lambda: (model(), example()),
        name=name,
        input_names=[each for each in axes if not each.startswith("out")],
        output_names=[each for each in axes if each.startswith("out")],
        dynamic_axes=axes,
    )


def mixed() -> dict[str, onnx_ci.Recipe]:
    """Small and quick models of many kinds."""
    batch = {0: "batch"}
    sequence = {0: "sequence", 1: "batch"}
    image = (3, 32, 32)
    recipes = [
        vision("resnet18", image),
        vision("mobilenet_v2", image),
        vision("mobilenet_v3_small", image),
        vision("squeezenet1_1", (3, 64, 64)),
        vision("shufflenet_v2_x0_5", image),
        vision("densenet121", image),
        vision("efficientnet_b0", image),
        vision("vit", image, make=small_vit),
        # The length is not dynamic: the exporter freezes it in the attention's reshapes, as onnx-ci reports.
        _small("encoder", Encoder, lambda: (torch.randint(0, 50, (2, 7)),), {"tokens": batch, "out": batch}),
        _small(
            "lstm",
            lambda: nn.LSTM(6, 8, num_layers=2, bidirectional=True),
            lambda: (torch.randn(5, 2, 6), (torch.randn(4, 2, 8), torch.randn(4, 2, 8))),
            {
                "x": sequence,
                "h": {1: "batch"},
                "c": {1: "batch"},
                "out": sequence,
                "out_h": {1: "batch"},
                "out_c": {1: "batch"},
            },
        ),
        _small(
            "gru",
            lambda: nn.GRU(6, 8, num_layers=2),
            lambda: (torch.randn(5, 2, 6), torch.randn(2, 2, 8)),
            {"x": sequence, "h": {1: "batch"}, "out": sequence, "out_h": {1: "batch"}},
        ),
        _small("convolutions", Convolutions, lambda: (torch.randn(2, 3, 16, 16),), {"x": batch, "out": batch}),
        _small(
            "deepfm",
            DeepFM,
            lambda: (torch.randint(0, 10, (3, 6)), torch.randn(3, 4)),
            {"categories": batch, "numbers": batch, "out": batch},
        ),
        _small("two_heads", TwoHeads, lambda: (torch.randn(3, 16),), {"x": batch, "out": batch, "out_second": batch}),
    ]
    return {recipe.name: recipe for recipe in recipes}


def architectures() -> dict[str, onnx_ci.Recipe]:
    """Torchvision's architectures: classification, segmentation and video, at the smallest sizes that make sense."""
    image, larger = (3, 32, 32), (3, 64, 64)
    full = (3, 224, 224)  # a pooling to a fixed size exports only from a multiple of it
    segmentation = functools.partial(vision, size=larger, weights_backbone=None)
    recipes = [
        vision("alexnet", full),
        vision("vgg11", full),
        vision("resnet18", image),
        vision("resnet50", image),
        vision("densenet121", image),
        vision("squeezenet1_1", larger),
        vision("mobilenet_v2", image),
        vision("mobilenet_v3_small", image),
        vision("mobilenet_v3_large", image),
        vision("shufflenet_v2_x1_0", image),
        vision("mnasnet0_5", image),
        vision("efficientnet_b0", image),
        vision("regnet_y_400mf", image),
        vision("regnet_x_400mf", image),
        vision("resnext50_32x4d", image),
        vision("wide_resnet50_2", image),
        vision("googlenet", larger, init_weights=True),
        vision("inception_v3", (3, 96, 96), init_weights=True),
        vision("convnext_tiny", image),
        vision("swin_t", larger),
        vision("swin_v2_t", larger),
        vision("vit_b_32", larger, image_size=64),
        vision("maxvit_t", larger, make=maxvit),
        segmentation("fcn_resnet50", outputs=("out", "aux"), aux_loss=True),
        segmentation("deeplabv3_mobilenet_v3_large", outputs=("out", "aux"), aux_loss=True),
        segmentation("lraspp_mobilenet_v3_large", outputs=("out",)),
        vision("r3d_18", (3, 4, 32, 32)),
    ]
    return {recipe.name: recipe for recipe in recipes}
