"""A small Vision Transformer, from torchvision's definition. Holds from opset 14."""

import torch

import onnx_ci
from onnx_ci.recipes.torchvision_models import import_torchvision


@onnx_ci.recipe(
    input_names=["image"],
    output_names=["logits"],
    dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
    tags=["vision", "transformer"],
    expect={
        "torchscript 9-13": onnx_ci.unsupported(
            "unflatten is there from opset 13, scaled_dot_product_attention from 14", seen="torch 2.13.0"
        ),
        "dynamo 26-": [
            onnx_ci.fails("opset-mismatch", "the conversion fails, and the file is at opset 18", seen="torch 2.13.0"),
            onnx_ci.fails("checker", "it has the Attention of opset 23 in it", seen="torch 2.13.0"),
            onnx_ci.fails("load-error", "it has the Attention of opset 23 in it", seen="torch 2.13.0"),
        ],
    },
)
def vit():
    model = import_torchvision().models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10
    )
    return model, (torch.randn(2, 3, 32, 32),)
