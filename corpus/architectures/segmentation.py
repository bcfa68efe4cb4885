"""Segmentation models of segmentation_models_pytorch, with a small encoder."""

import _known
import torch
from _libraries import import_segmentation_models

import onnx_ci

MODELS = {
    "deeplabv3": {},
    "deeplabv3plus": {"decoder_channels": 32},
    "fpn": {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32},
    "linknet": {},
    "manet": {"decoder_channels": (32, 16, 16, 8, 8), "decoder_pab_channels": 8},
    "pspnet": {"psp_out_channels": 32},
    "segformer": {"decoder_segmentation_channels": 32},
    "unet": {"decoder_channels": (32, 16, 16, 8, 8)},
    "unetplusplus": {"decoder_channels": (32, 16, 16, 8, 8)},
    "upernet": {"decoder_channels": 16},
}

SEEN = "torch 2.13.0, segmentation_models_pytorch 0.6.0"
NO_SIZE = onnx_ci.unsupported(_known.NO_ADAPTIVE_POOLING, seen=SEEN)
BINS = "the bins of an adaptive average pooling are computed for the size of the example"
ONE_SIZE = [onnx_ci.known_failure(rule, BINS, seen=SEEN) for rule in ("baked-shape", "baked-value")]
KNOWN = {case: {"expect": {"torchscript": NO_SIZE, "dynamo": ONE_SIZE}} for case in ("pspnet", "upernet")}
"""What is known to fail, by case."""


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in MODELS},
    input_names=["image"],
    output_names=["classes"],
    dynamic_axes={name: {0: "batch", 2: "height", 3: "width"} for name in ("image", "classes")},
    dynamic_sizes={"height": (32, 96), "width": (64, 128)},  # the encoder reduces images to 1/32 of their size
    tags=["segmentation_models_pytorch", "segmentation"],
)
def segmentation(case):
    options = {"encoder_name": "tu-test_resnet", "encoder_weights": None, "classes": 3, **MODELS[case]}
    return import_segmentation_models().create_model(case, **options), (torch.randn(2, 3, 64, 96),)
