"""A small Vision Transformer from torchvision's definition. From opset 14."""

import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import import_torchvision


@onnx_ci.recipe(
    input_names=["image"],
    output_names=["logits"],
    dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
    tags=["vision", "transformer"],
    expect={
        "torchscript 9-13": onnx_ci.unsupported(
            "unflatten is supported from opset 13, scaled_dot_product_attention from 14", seen="torch 2.13.0"
        ),
        "dynamo 26-": [
            onnx_ci.known_failure("opset-mismatch", "the conversion fails and the file stays at opset 18", seen="torch 2.13.0"),
            onnx_ci.known_failure("checker", "the file contains Attention of opset 23", seen="torch 2.13.0"),
            onnx_ci.known_failure("load-error", "the file contains Attention of opset 23", seen="torch 2.13.0"),
        ],
    },
)
def vit():
    model = import_torchvision().models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10
    )
    return model, (torch.randn(2, 3, 32, 32),)
