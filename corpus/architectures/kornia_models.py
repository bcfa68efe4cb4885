"""Local features, filters and networks of kornia."""

import functools

import torch
from _libraries import import_after_torchvision

import onnx_ci

SEEN = "torch 2.13.0, kornia 0.9.0"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
KNOWN = {
    "bilateral_blur": {"expect": {"torchscript": onnx_ci.unsupported("unfold of an image whose size is dynamic", seen=SEEN)}},
    "mkd": {
        "expect": {
            "torchscript": wrong("nonfinite-mismatch", "atan2 is written as a quotient, which is 0 / 0 in a patch of one gray"),
            "dynamo": wrong(
                "baked-value",
                "in a patch of one gray, atan2 divides 0 by 0, and the optimizer drops an added 1e-8",
            ),
        }
    },
    "sift": {"expect": {"dynamo": wrong("baked-value", "the optimizer of onnxscript drops an added 1e-10")}},
    "tiny_vit": {"expect": {"torchscript": wrong("baked-shape", "windows are merged into as many images as the example has")}},
}
"""What is known to fail, by case."""

DESCRIPTORS = {
    "hardnet": ("HardNet", {"pretrained": False}),
    "hynet": ("HyNet", {"pretrained": False}),
    "mkd": ("MKDDescriptor", {"whitening": None}),
    "sift": ("SIFTDescriptor", {"patch_size": 32}),
    "sosnet": ("SOSNet", {"pretrained": False}),
    "tfeat": ("TFeat", {"pretrained": False}),
}


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in DESCRIPTORS},
    input_names=["patch"],
    output_names=["descriptor"],
    dynamic_axes={"patch": {0: "batch"}, "descriptor": {0: "batch"}},
    inputs={"patch": onnx_ci.floats(0, 1)},  # gray values
    tags=["kornia", "features"],
)
def descriptor(case):
    name, options = DESCRIPTORS[case]
    model = getattr(import_after_torchvision("kornia.feature"), name)(**options)
    if case == "sosnet":
        model = onnx_ci.adapt(model, inputs=["input"])  # TorchScript would make an input of its other argument
    return model, (torch.rand(2, 1, 32, 32),)


IMAGE = {0: "batch", 2: "height", 3: "width"}
IMAGE_TO_IMAGE = {
    "bilateral_blur": ("filters.BilateralBlur", {"kernel_size": 3, "sigma_color": 0.1, "sigma_space": (1.5, 1.5)}),
    "corner_harris": ("feature.CornerHarris", {"k": 0.04}),
    "gaussian_blur": ("filters.GaussianBlur2d", {"kernel_size": (5, 5), "sigma": (1.5, 1.5)}),
    "keynet": ("feature.KeyNet", {"pretrained": False}),
    "median_blur": ("filters.MedianBlur", {"kernel_size": (3, 3)}),
    "sobel": ("filters.Sobel", {}),
}


def build(name, options):
    module, _, attribute = name.rpartition(".")
    return getattr(import_after_torchvision(f"kornia.{module}"), attribute)(**options)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in IMAGE_TO_IMAGE},
    input_names=["image"],
    output_names=["result"],
    dynamic_axes={"image": IMAGE, "result": IMAGE},
    inputs={"image": onnx_ci.floats(0, 1)},
    tags=["kornia", "image"],
)
def image_filter(case):
    return build(*IMAGE_TO_IMAGE[case]), (torch.rand(2, 1 if case == "keynet" else 3, 32, 48),)


@onnx_ci.recipe(
    each={case: {} for case in ("rrdbnet", "small_sr")},
    input_names=["image"],
    output_names=["larger"],
    dynamic_axes={"image": IMAGE, "larger": {0: "batch", 2: "rows", 3: "columns"}},
    inputs={"image": onnx_ci.floats(0, 1)},
    tags=["kornia", "image"],
)
def super_resolution(case):
    if case == "small_sr":
        return build("models.small_sr.SmallSRNet", {"upscale_factor": 2, "pretrained": False}), (torch.rand(2, 1, 32, 48),)
    options = {"num_in_ch": 3, "num_out_ch": 3, "num_feat": 8, "num_block": 1, "num_grow_ch": 4}
    return build("models.rrdbnet.RRDBNet", options), (torch.rand(2, 3, 16, 24),)


@onnx_ci.recipe(
    input_names=["image"],
    output_names=["magnitude", "edges"],
    dynamic_axes={"image": IMAGE},
    inputs={"image": onnx_ci.floats(0, 1)},
    tags=["kornia", "image"],
)
def canny():
    return build("filters.Canny", {"hysteresis": False}), (torch.rand(2, 3, 32, 48),)


FIXED_SIZE = {
    "mobile_vit": ("models.vit_mobile.MobileViT", {"mode": "xxs"}),
    "tiny_vit": (
        "models.tiny_vit.TinyViT",
        {
            "img_size": 64,
            "num_classes": 10,
            "embed_dims": (16, 16, 32, 32),
            "depths": (1, 1, 1, 1),
            "num_heads": (1, 2, 2, 2),
            "window_sizes": (4, 4, 4, 2),
        },
    ),
    "vit": ("models.vit.VisionTransformer", {"image_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 4}),
}


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in FIXED_SIZE},
    input_names=["image"],
    output_names=["features"],
    dynamic_axes={"image": {0: "batch"}, "features": {0: "batch"}},
    tags=["kornia"],
)
def kornia_fixed(case):
    return build(*FIXED_SIZE[case]), (torch.randn(2, 3, 64, 64),)


@onnx_ci.recipe(
    input_names=["image"],
    output_names=["logits", "boxes"],
    dynamic_axes={name: {0: "batch"} for name in ("image", "logits", "boxes")},
    tags=["kornia", "detection"],
)
def rt_detr():
    models = import_after_torchvision("kornia.models.rt_detr")
    config = models.RTDETRConfig(
        "resnet18d",
        num_classes=5,
        input_size=64,
        neck_hidden_dim=32,
        neck_dim_feedforward=32,
        head_hidden_dim=32,
        head_num_queries=6,
        head_num_decoder_layers=2,
    )
    return models.RTDETR.from_config(config), (torch.rand(2, 3, 64, 64),)


@onnx_ci.recipe(
    input_names=["image"],
    output_names=["features"],
    dynamic_axes={"image": IMAGE},
    dynamic_sizes={"height": (32, 96), "width": (64, 128)},  # multiples of 16
    tags=["kornia", "features"],
)
def disk():
    features = import_after_torchvision("kornia.feature.disk._unets")
    model = features.Unet(in_features=3, size=5, down=[8, 16, 16], up=[16, 9])
    return model, (torch.rand(2, 3, 64, 96),)
