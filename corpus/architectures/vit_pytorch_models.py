"""Vision transformers of vit-pytorch: two layers and a width of 32."""

import functools

import torch
from _libraries import import_after_torchvision

import onnx_ci

SEEN = "torch 2.13.0, vit_pytorch 1.26.11"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
KNOWN = {
    "simple_vit_with_fft": {"expect": {"torchscript": onnx_ci.unsupported("a Fourier transform (aten::fft_fft2)", seen=SEEN)}},
    "small_dataset": {"expect": {"torchscript": wrong("load-error", "ONNX Runtime has no EyeLike of booleans")}},
}
"""What is known to fail, by case."""

HEADS = {"image_size": 64, "num_classes": 10, "dim": 32, "heads": 2, "dim_head": 16}
PLAIN = {**HEADS, "patch_size": 16, "depth": 2, "mlp_dim": 32}
FIXED_SIZE = {
    "cait": ("cait.CaiT", {**PLAIN, "cls_depth": 1}),
    "cct": (
        "cct.CCT",
        {
            "img_size": 64,
            "embedding_dim": 32,
            "num_layers": 2,
            "num_heads": 2,
            "mlp_ratio": 2,
            "num_classes": 10,
            "positional_embedding": "sine",
        },
    ),
    "cross_vit": (
        "cross_vit.CrossViT",
        {
            "image_size": 64,
            "num_classes": 10,
            "sm_dim": 16,
            "lg_dim": 32,
            "sm_patch_size": 8,
            "sm_enc_heads": 2,
            "sm_enc_mlp_dim": 32,
            "sm_enc_dim_head": 8,
            "lg_enc_depth": 1,
            "lg_enc_heads": 2,
            "lg_enc_mlp_dim": 32,
            "lg_enc_dim_head": 16,
            "cross_attn_depth": 1,
            "cross_attn_heads": 2,
            "cross_attn_dim_head": 16,
            "depth": 1,
        },
    ),
    "deepvit": ("deepvit.DeepViT", PLAIN),
    "levit": (
        "levit.LeViT",
        {"image_size": 64, "num_classes": 10, "stages": 2, "dim": (32, 48), "depth": (1, 1), "heads": (2, 2), "mlp_mult": 2},
    ),
    "look_vit": (
        "look_vit.LookViT",
        {**HEADS, "depth": 1, "highres_patch_size": 8, "cross_attn_heads": 2, "cross_attn_dim_head": 16},
    ),
    "nest": (
        "nest.NesT",
        {
            "image_size": 64,
            "patch_size": 4,
            "num_classes": 10,
            "dim": 16,
            "heads": 2,
            "num_hierarchies": 2,
            "block_repeats": (1, 1),
            "dim_head": 8,
        },
    ),
    "normalized_vit": ("normalized_vit.nViT", PLAIN),
    "parallel_vit": ("parallel_vit.ViT", PLAIN),
    "pit": ("pit.PiT", {**PLAIN, "depth": (1, 1)}),
    "rvt": ("rvt.RvT", PLAIN),
    "simple_vit_with_fft": ("simple_vit_with_fft.SimpleViT", {**PLAIN, "freq_patch_size": 8}),
    "small_dataset": ("vit_for_small_dataset.ViT", PLAIN),
    "t2t": ("t2t.T2TViT", {**HEADS, "depth": 2, "mlp_dim": 32, "t2t_layers": ((7, 4), (3, 2))}),
    "vit_5": ("vit_5.ViT", PLAIN),
    "xcit": ("xcit.XCiT", {**PLAIN, "cls_depth": 1}),
}
"""Models for images of one size."""


def build(name, options):
    module, _, attribute = name.rpartition(".")
    return getattr(import_after_torchvision(f"vit_pytorch.{module}"), attribute)(**options)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in FIXED_SIZE},
    input_names=["image"],
    output_names=["logits"],
    dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
    tags=["vit_pytorch"],
)
def vit_pytorch_fixed(case):
    model = build(*FIXED_SIZE[case])
    return model, (torch.randn(2, 3, 64, 64),)


WINDOWED = {"num_classes": 10, "dim": (16, 32), "depth": (1, 1)}
ANY_SIZE = {
    "crossformer": (
        "crossformer.CrossFormer",
        {
            "num_classes": 10,
            "dim": (32, 32, 32, 32),
            "depth": (1, 1, 1, 1),
            "global_window_size": (4, 2, 2, 1),
            "local_window_size": 2,
        },
    ),
    "cvt": (
        "cvt.CvT",
        {
            "num_classes": 10,
            "s1_emb_dim": 16,
            "s2_emb_dim": 16,
            "s2_heads": 2,
            "s2_depth": 1,
            "s3_emb_dim": 32,
            "s3_heads": 2,
            "s3_depth": 1,
        },
    ),
    "max_vit": ("max_vit.MaxViT", {**WINDOWED, "dim": 16, "dim_conv_stem": 16, "dim_head": 8, "window_size": 4}),
    "regionvit": (
        "regionvit.RegionViT",
        {"num_classes": 10, "dim": (16, 16, 32, 32), "depth": (1, 1, 1, 1), "window_size": 2},
    ),
    "scalable_vit": (
        "scalable_vit.ScalableViT",
        {**WINDOWED, "dim": 16, "heads": (2, 2), "reduction_factor": (4, 2), "window_size": (4, None)},
    ),
    "twins_svt": (
        "twins_svt.TwinsSVT",
        {
            "num_classes": 10,
            **{f"s{at}_{key}": value for at in range(1, 5) for key, value in (("emb_dim", 16), ("depth", 1))},
            **{f"s{at}_local_patch_size": 2 for at in range(1, 5)},
            **{f"s{at}_global_k": 2 for at in range(1, 5)},
        },
    ),
}
"""Models for images whose sides are multiples of 64."""


@onnx_ci.recipe(
    each={case: {} for case in ANY_SIZE},
    input_names=["image"],
    output_names=["logits"],
    dynamic_axes={"image": {0: "batch", 2: "height", 3: "width"}, "logits": {0: "batch"}},
    dynamic_sizes={"height": (128, 192), "width": (64, 192)},  # multiples of their windows in every stage
    tags=["vit_pytorch"],
)
def vit_pytorch(case):
    return build(*ANY_SIZE[case]), (torch.randn(2, 3, 64, 128),)


@onnx_ci.recipe(
    input_names=["video"],
    output_names=["logits"],
    dynamic_axes={"video": {0: "batch"}, "logits": {0: "batch"}},
    tags=["vit_pytorch"],
)
def vit_pytorch_video():
    options = {
        "image_size": 32,
        "image_patch_size": 8,
        "frames": 4,
        "frame_patch_size": 2,
        "num_classes": 10,
        "dim": 32,
        "spatial_depth": 1,
        "temporal_depth": 1,
        "heads": 2,
        "dim_head": 16,
        "mlp_dim": 32,
    }
    return build("vivit.ViViT", options), (torch.randn(2, 3, 4, 32, 32),)
