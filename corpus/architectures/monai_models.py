"""Networks of MONAI for medical images, in 2D unless they are for volumes alone, with few and narrow layers."""

import functools

import torch
from _libraries import import_after_torchvision

import onnx_ci

SEEN = "torch 2.13.0, monai 1.6.1"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
KNOWN = {
    "att_trans": {"expect": {"torchscript": wrong("baked-shape", "attention is traced for the example's number of patches")}},
    "quicknat": {
        "expect": {"torchscript": wrong("export-error", "max unpooling checks a size that is a tensor while it is traced")}
    },
    "swin_unetr": {
        "expect": dict.fromkeys(
            ("torchscript", "dynamo"), wrong("baked-shape", "windows of attention shrink to images smaller than they are")
        )
    },
}
"""What is known to fail, by case."""

SCALES = {"channels": (8, 16, 32), "strides": (2, 2)}
ONE_CHANNEL = {"spatial_dims": 2, "in_channels": 1}
PLANE = {**ONE_CHANNEL, "out_channels": 3}
NARROW = {"norm_num_groups": 8, "channels": (8, 16), "attention_levels": (False, True), "num_res_blocks": 1}
IMAGE_TO_IMAGE = {
    "attention_unet": ("AttentionUnet", {**PLANE, **SCALES}),
    "autoencoder": ("AutoEncoder", {**PLANE, "channels": (8, 16, 32), "strides": (2, 2, 2)}),
    "basic_unet": ("BasicUNet", {**PLANE, "features": (8, 8, 16, 16, 32, 8)}),
    "basic_unet_plusplus": ("BasicUNetPlusPlus", {**PLANE, "features": (8, 8, 16, 16, 32, 8)}),
    "dynunet": (
        "DynUNet",
        {
            **PLANE,
            "kernel_size": (3, 3, 3),
            "strides": (1, 2, 2),
            "upsample_kernel_size": (2, 2),
            "filters": (8, 16, 32),
            "res_block": True,
        },
    ),
    "flexible_unet": (
        "FlexibleUNet",
        {
            "in_channels": 3,
            "out_channels": 3,
            "backbone": "efficientnet-b0",
            "decoder_channels": (32, 16, 8, 8, 8),
        },
    ),
    "highresnet": ("HighResNet", PLANE),
    "mednext": (
        "MedNeXt",
        {
            **PLANE,
            "init_filters": 8,
            "kernel_size": 3,
            "blocks_down": (1, 1, 1, 1),
            "blocks_bottleneck": 1,
            "blocks_up": (1, 1, 1, 1),
        },
    ),
    "quicknat": ("Quicknat", {"num_classes": 3, "num_filters": 8, "se_block": "CSE"}),
    "regunet": ("RegUNet", {**PLANE, "num_channel_initial": 8, "depth": 2}),
    "localnet": ("LocalNet", {**PLANE, "num_channel_initial": 8, "extract_levels": (0, 1, 2)}),
    "segresnet": ("SegResNet", {**PLANE, "blocks_down": (1, 1, 1), "blocks_up": (1, 1)}),
    "segresnet_ds": ("SegResNetDS", {**PLANE, "init_filters": 8, "blocks_down": (1, 1, 1)}),
    "swin_unetr": (
        "SwinUNETR",
        {"in_channels": 1, "out_channels": 3, "spatial_dims": 2, "feature_size": 12, "depths": (1, 1, 1, 1), "window_size": 4},
    ),
    "unet": ("UNet", {**PLANE, **SCALES, "num_res_units": 2}),
    "voxelmorph_unet": (
        "VoxelMorphUNet",
        {
            "spatial_dims": 2,
            "in_channels": 2,
            "unet_out_channels": 8,
            "channels": (8, 8, 16, 16),
            "final_conv_channels": (8, 8),
        },
    ),
}
"""Networks for images of any size that the reduced images divide."""

CHANNELS = {"flexible_unet": 3, "voxelmorph_unet": 2}


def build(name, options):
    return getattr(import_after_torchvision("monai.networks.nets"), name)(**options)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in IMAGE_TO_IMAGE},
    input_names=["image"],
    output_names=["result"],
    dynamic_axes={name: {0: "batch", 2: "height", 3: "width"} for name in ("image", "result")},
    dynamic_sizes={"height": (32, 96), "width": (64, 128)},  # the networks reduce images to up to 1/32 of their size
    tags=["monai"],
)
def monai(case):
    return build(*IMAGE_TO_IMAGE[case]), (torch.randn(2, CHANNELS.get(case, 1), 64, 96),)


CLASSIFIERS = {
    "densenet": (
        "DenseNet",
        {**PLANE, "init_features": 16, "growth_rate": 8, "block_config": (2, 2, 2)},
    ),
    "efficientnet": (
        "EfficientNet",
        {
            "blocks_args_str": ["r1_k3_s11_e1_i32_o16_se0.25", "r1_k3_s22_e6_i16_o24_se0.25", "r1_k5_s22_e6_i24_o40_se0.25"],
            "in_channels": 1,
            "num_classes": 3,
            "width_coefficient": 0.5,
        },
    ),
    "patch_discriminator": ("PatchDiscriminator", {**PLANE, "out_channels": 1, "channels": 8, "num_layers_d": 2}),
    "resnet": (
        "ResNet",
        {
            "block": "basic",
            "layers": [1, 1, 1, 1],
            "block_inplanes": [8, 16, 24, 32],
            "spatial_dims": 2,
            "n_input_channels": 1,
            "num_classes": 3,
        },
    ),
}


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in CLASSIFIERS},
    input_names=["image"],
    dynamic_axes={"image": {0: "batch", 2: "height", 3: "width"}},
    tags=["monai"],
)
def monai_classifier(case):
    return build(*CLASSIFIERS[case]), (torch.randn(2, 1, 64, 96),)


PATCHES = {"in_channels": 1, "img_size": (32, 32), "spatial_dims": 2, "hidden_size": 32, "mlp_dim": 32, "num_heads": 4}
FIXED_SIZE = {
    "classifier": ("Classifier", {"in_shape": (1, 32, 32), "classes": 3, **SCALES}),
    "globalnet": ("GlobalNet", {**ONE_CHANNEL, "image_size": [32, 32], "num_channel_initial": 8, "depth": 2}),
    "segresnet_vae": (
        "SegResNetVAE",
        {**PLANE, "input_image_size": (32, 32), "vae_nz": 8, "blocks_down": (1, 1, 1), "blocks_up": (1, 1)},
    ),
    "unetr": ("UNETR", {**PATCHES, "out_channels": 3, "feature_size": 8}),
    "vit": ("ViT", {**PATCHES, "patch_size": (8, 8), "num_layers": 2, "classification": True, "save_attn": True}),
    "vit_autoencoder": ("ViTAutoEnc", {**PATCHES, "patch_size": (4, 4), "num_layers": 2, "deconv_chns": 8}),
}
"""Networks for images of one size."""


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in FIXED_SIZE},
    input_names=["image"],
    output_names=["result"],
    dynamic_axes={"image": {0: "batch"}, "result": {0: "batch"}},
    tags=["monai"],
)
def monai_fixed(case):
    model = build(*FIXED_SIZE[case])
    if case in ("segresnet_vae", "vit", "vit_autoencoder"):
        model = onnx_ci.adapt(model, outputs=lambda made: made[0])
    return model, (torch.randn(2, 1, 32, 32),)


VOLUMES = {
    "unet": ("UNet", {"spatial_dims": 3, "in_channels": 1, "out_channels": 2, **SCALES}),
}


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in VOLUMES},
    input_names=["volume"],
    output_names=["classes"],
    dynamic_axes={name: {0: "batch", 2: "depth", 3: "height", 4: "width"} for name in ("volume", "classes")},
    dynamic_sizes={"depth": (16, 48), "height": (16, 48), "width": (32, 48)},  # reduced to 1/16
    tags=["monai"],
)
def monai_volume(case):
    return build(*VOLUMES[case]), (torch.randn(1, 1, 16, 16, 32),)


@onnx_ci.recipe(
    input_names=["image", "timesteps"],
    output_names=["noise"],
    dynamic_axes={
        "image": {0: "batch", 2: "height", 3: "width"},
        "timesteps": {0: "batch"},
        "noise": {0: "batch", 2: "height", 3: "width"},
    },
    dynamic_sizes={"height": (16, 48), "width": (32, 64)},
    tags=["monai"],
)
def monai_diffusion_unet():
    model = build("DiffusionModelUNet", {**PLANE, **NARROW, "out_channels": 1, "num_head_channels": 8})
    return model, (torch.randn(2, 1, 16, 32), torch.tensor([10, 400]))


@onnx_ci.recipe(
    each={"autoencoder_kl": KNOWN.get("autoencoder_kl", {}), "vqvae": KNOWN.get("vqvae", {})},
    input_names=["image"],
    output_names=["result"],
    dynamic_axes={name: {0: "batch", 2: "height", 3: "width"} for name in ("image", "result")},
    dynamic_sizes={"height": (16, 48), "width": (32, 64)},
    tags=["monai"],
)
def monai_codec(case):
    if case == "vqvae":
        options = {
            "channels": (8, 16),
            "num_res_channels": (8, 16),
            "num_res_layers": 1,
            "num_embeddings": 8,
            "embedding_dim": 8,
        }
        strides = {"downsample_parameters": ((2, 4, 1, 1),) * 2, "upsample_parameters": ((2, 4, 1, 1, 0),) * 2}
        model = build("VQVAE", {**PLANE, "out_channels": 1, **options, **strides})
        return onnx_ci.adapt(model, outputs=lambda made: made[0]), (torch.randn(2, 1, 16, 32),)
    model = build("AutoencoderKL", {**PLANE, **NARROW, "out_channels": 1})

    class Reconstruct(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, image):
            return self.model.reconstruct(image)

    return Reconstruct(), (torch.randn(2, 1, 16, 32),)


@onnx_ci.recipe(
    input_names=["tokens"],
    output_names=["logits"],
    dynamic_axes={name: {0: "batch", 1: "length"} for name in ("tokens", "logits")},
    dynamic_sizes={"length": range(1, 33)},  # the length of its table of positions
    tags=["monai"],
)
def monai_decoder_transformer():
    model = build(
        "DecoderOnlyTransformer",
        {"num_tokens": 50, "max_seq_len": 32, "attn_layers_dim": 32, "attn_layers_depth": 2, "attn_layers_heads": 4},
    )
    return model, (torch.randint(0, 50, (2, 8)),)


@onnx_ci.recipe(
    each={"att": KNOWN.get("att", {}), "att_trans": KNOWN.get("att_trans", {})},
    input_names=["patches"],
    output_names=["logits"],
    dynamic_axes={"patches": {0: "batch", 1: "patches"}, "logits": {0: "batch"}},
    tags=["monai"],
)
def monai_mil(case):
    backbone = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    options = {"num_classes": 3, "mil_mode": case, "backbone": backbone, "backbone_num_features": 16, "trans_blocks": 2}
    return build("MILModel", options), (torch.randn(2, 5, 3, 16, 16),)
