"""Image classifiers of timm, with few and narrow layers wherever its builders allow that."""

import functools

import _known
import torch
from _libraries import import_timm

import onnx_ci

CONVOLUTIONAL = {
    "convmixer": ("convmixer.ConvMixer", {"dim": 32, "depth": 3, "kernel_size": 7, "patch_size": 7}),
    "convnext": ("test_convnext", {}),
    "cspnet": ("cs3darknet_s", {}),
    "densenet": ("densenet121", {"growth_rate": 8, "block_config": (2, 2, 2, 2)}),
    "dpn": (
        "dpn.DPN",
        {
            "k_sec": (1, 1, 1, 1),
            "inc_sec": (8, 8, 8, 8),
            "k_r": 16,
            "groups": 4,
            "num_init_features": 8,
            "b": True,
            "small": True,
        },
    ),
    "edgenext": ("edgenext_xx_small", {}),
    "efficientnet": ("test_efficientnet", {}),
    "efficientvit_mit": ("efficientvit_b0", {}),
    "efficientvit_msra": ("efficientvit_m0", {}),
    "efficientvim": ("efficientvim_m1", {}),
    "fasternet": ("fasternet_t0", {}),
    "fastvit": ("fastvit_t8", {}),
    "focalnet": ("focalnet.FocalNet", {"depths": (1, 1, 1, 1), "embed_dim": 16}),
    "ghostnet": ("ghostnet_050", {}),
    "ghostnetv3": ("ghostnetv3_050", {}),
    "hardcorenas": ("hardcorenas_a", {}),
    "hgnetv2": ("hgnetv2_b0", {}),
    "inception_next": ("inception_next_atto", {}),
    "iformer": ("iformer_t", {}),
    "lcnet": ("lcnet_050", {}),
    "mambaout": ("test_mambaout", {}),
    "mobilenetv3": ("mobilenetv3_small_050", {}),
    "mobilenetv4": ("mobilenetv4_conv_small_035", {}),
    "mobileone": ("mobileone_s0", {}),
    "mobilevit": ("mobilevit_xxs", {}),
    "mobilevitv2": ("mobilevitv2_050", {}),
    "nfnet": ("test_nfnet", {}),
    "pvt_v2": ("pvt_v2_b0", {"depths": (1, 1, 1, 1)}),
    "regnet": ("regnety_002", {}),
    "repghostnet": ("repghostnet_050", {}),
    "repvit": ("repvit_m0_9", {}),
    "resnest": ("resnest14d", {"layers": [1, 1, 1, 1], "base_width": 16, "stem_width": 8}),
    "resnet": ("test_resnet", {}),
    "resnetv2": ("resnetv2_18", {"layers": (1, 1, 1, 1), "channels": (16, 32, 48, 64)}),
    "rexnet": ("rexnet_100", {}),
    "senet": ("seresnet18", {"layers": (1, 1, 1, 1), "channels": (16, 32, 48, 64)}),
    "sequencer": (
        "sequencer.Sequencer2d",
        {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 32), "hidden_sizes": (8, 16, 16, 16)},
    ),
    "sknet": ("skresnet18", {"layers": (1, 1, 1, 1), "channels": (16, 32, 48, 64)}),
    "starnet": ("starnet_s050", {}),
    "swiftformer": ("swiftformer_xs", {}),
    "tiny_vit": (
        "tiny_vit_5m_224",
        {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4)},
    ),
    "tresnet": ("tresnet_m", {"layers": [1, 1, 1, 1], "width_factor": 0.25}),
    "vit_any_size": (
        "vit_tiny_patch16_224",
        {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 64, "dynamic_img_size": True},
    ),
    "vovnet": ("ese_vovnet19b_slim", {}),
    "xcit": ("xcit_nano_12_p16_224", {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 64}),
}
"""Models for images of any size."""

PLAIN = {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 64}
WINDOWED = {"depths": (1, 1, 1, 1), "embed_dim": 16, "num_heads": (1, 2, 2, 4), "img_size": 64}
MLP = {"embed_dim": 32, "num_blocks": 2, "img_size": 64}
FIXED_SIZE = {
    "beit": ("beit_base_patch16_224", PLAIN),
    "byobnet": ("test_byobnet", {}),
    "cait": ("cait_xxs24_224", {"embed_dim": 32, "depth": 2, "depth_token_only": 1, "img_size": 64}),
    "coat": ("coat_lite_tiny", {"embed_dims": [32, 48, 64, 64], "serial_depths": [1, 1, 1, 1], "num_heads": 8, "img_size": 64}),
    "convit": ("convit_tiny", {"embed_dim": 16, "depth": 3, "local_up_to_layer": 2, "img_size": 64}),
    "crossvit": (
        "crossvit.CrossVit",
        {
            "img_size": 64,
            "img_scale": (1.0, 1.0),
            "patch_size": (8, 16),
            "embed_dim": (16, 32),
            "depth": ((1, 2, 0), (1, 2, 0)),
            "num_heads": (2, 2),
            "mlp_ratio": (2, 2, 1),
        },
    ),
    "davit": ("davit_tiny", {"depths": (1, 1, 1, 1), "embed_dims": (16, 24, 32, 48), "num_heads": (2, 2, 2, 2)}),
    "deit": ("deit_tiny_distilled_patch16_224", PLAIN),
    "dla": ("dla46_c", {}),
    "efficientformerv2": ("efficientformerv2_s0", {"img_size": 64}),
    "eva02": ("eva02_tiny_patch14_224", {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 56}),
    "gmlp": ("gmlp_ti16_224", {"img_size": 64}),
    "hiera": ("hiera_tiny_224", {"embed_dim": 16, "stages": (1, 1, 1, 1), "img_size": 64}),
    "levit": ("levit_128s", {"embed_dim": (32, 48, 64), "num_heads": (2, 3, 4), "depth": (1, 1, 1), "img_size": 64}),
    "maxvit": ("maxvit_pico_rw_256", {"img_size": 64}),
    "mixer": ("mlp_mixer.MlpMixer", MLP),
    "nest": ("nest.Nest", {"depths": (1, 1, 1), "embed_dims": (16, 32, 48), "num_heads": (1, 2, 3), "img_size": 64}),
    "pit": ("pit_ti_224", {"base_dims": [8, 8, 8], "depth": [1, 1, 1], "heads": [2, 4, 8], "img_size": 64}),
    "samvit": ("samvit_base_patch16_224", {**PLAIN, "window_size": 2, "global_attn_indexes": (1,)}),
    "swin": ("swin_tiny_patch4_window7_224", {**WINDOWED, "window_size": 4}),
    "swinv2": ("swinv2_tiny_window8_256", {**WINDOWED, "window_size": 4}),
    "swinv2_cr": ("swinv2_cr_tiny_ns_224", WINDOWED),
    "tnt": ("tnt_s_patch16_224", {"embed_dim": 32, "inner_dim": 8, "depth": 2, "num_heads_outer": 4, "img_size": 64}),
    "twins": (
        "twins_svt_small",
        {"depths": (1, 1, 2, 1), "embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4), "img_size": 64},
    ),
    "visformer": ("visformer_tiny", {"embed_dim": 32, "depth": (1, 1, 1), "num_heads": 2, "init_channels": 8, "img_size": 64}),
    "vit": ("vit_tiny_patch16_224", PLAIN),
    "vit_hybrid": ("vit_tiny_r_s16_p8_224", PLAIN),
    "vit_relpos": ("vit_relpos_small_patch16_224", PLAIN),
    "volo": (
        "volo.VOLO",
        {"layers": (1, 1, 1, 1), "embed_dims": (32, 64, 64, 64), "num_heads": (2, 4, 4, 4), "img_size": 64},
    ),
}
"""Models for images of one size."""

SEEN = "torch 2.13.0, timm 1.0.31"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
NOT_4D = wrong("export-error", "dynamo converts attention over 4D tensors only, and this one has 5D")
NOT_CONTIGUOUS = wrong("export-error", _known.NOT_CONTIGUOUS)
RESIZED = wrong(
    "baked-shape",
    "an image that is not divided evenly into patches is resized by a branch on its size, of which the file has one side",
)
KNOWN = {
    "beit": {"expect": {"dynamo": NOT_CONTIGUOUS}},
    "eva02": {
        "expect": {
            "torchscript": wrong("export-error", "is_causal of scaled_dot_product_attention comes from a size, which is traced")
        }
    },
    "hiera": {"expect": {"dynamo": NOT_4D}},
    "maxvit": {"expect": {"dynamo": NOT_CONTIGUOUS}},
    "mobilevit": {"expect": {"torchscript": RESIZED, "dynamo": RESIZED}},
    "mobilevitv2": {"expect": {"torchscript": RESIZED, "dynamo": RESIZED}},
    "nest": {"expect": {"dynamo": NOT_4D}},
    "samvit": {"expect": {"dynamo": NOT_4D}},
    "sequencer": {
        "expect": {
            "dynamo": wrong("baked-shape", "after an LSTM, a size is computed with the number of columns of the example")
        }
    },
    "twins": {"expect": {"dynamo": NOT_4D}},
    "vit_any_size": {
        "expect": {"torchscript": onnx_ci.unsupported("bicubic interpolation with antialiasing", seen=SEEN)},
    },
    "vit_relpos": {"expect": {"dynamo": NOT_CONTIGUOUS}},
    "volo": {"expect": {"torchscript": onnx_ci.unsupported("fold (aten::col2im) needs opset 18", seen=SEEN)}},
}
"""What is known to fail, by case."""


def build(name, options):
    timm = import_timm()
    module, _, attribute = name.rpartition(".")
    if module:
        return getattr(getattr(timm.models, module), attribute)(num_classes=10, **options)
    return timm.create_model(name, num_classes=10, **options)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in CONVOLUTIONAL},
    input_names=["image"],
    output_names=["logits"],
    dynamic_axes={"image": {0: "batch", 2: "height", 3: "width"}, "logits": {0: "batch"}},
    tags=["timm"],
)
def timm(case):
    return build(*CONVOLUTIONAL[case]), (torch.randn(2, 3, 64, 96),)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in FIXED_SIZE},
    input_names=["image"],
    output_names=["logits"],
    dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
    tags=["timm"],
)
def timm_fixed(case):
    name, options = FIXED_SIZE[case]
    return build(name, options), (torch.randn(2, 3, *[options.get("img_size", 64)] * 2),)
