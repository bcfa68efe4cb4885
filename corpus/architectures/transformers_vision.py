"""Vision models of transformers: backbones, detectors, segmentation, depth, and text with images."""

import _known
import torch
from _transformers import build, unsupported, wrong

import onnx_ci

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PATCHES = {**SMALL, "image_size": 64, "patch_size": 16}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4], "window_size": 4}
FIXED_SIZE = {
    "beit": {**PATCHES, "use_relative_position_bias": True},
    "dinov2": PATCHES,
    "hiera": {
        "image_size": [64, 64],
        "embed_dim": 16,
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 2, 2, 4],
        "masked_unit_size": [8, 8],
    },
    "levit": {
        "image_size": 64,
        "hidden_sizes": [32, 48, 64],
        "num_attention_heads": [2, 3, 4],
        "depths": [1, 1, 1],
        "key_dim": [8, 8, 8],
        "patch_size": 16,
    },
    "siglip_vision_model": PATCHES,
    "swin": {**SWIN, "window_size": 2},
    "swinv2": SWIN,
    "vit": PATCHES,
    "vitdet": {**PATCHES, "window_block_indices": [0], "window_size": 2},
    "yolos": {**PATCHES, "image_size": [64, 64], "num_detection_tokens": 5},
}
ANY_SIZE = {
    "convnext": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]},
    "dinov3_vit": PATCHES,
    "efficientnet": {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    "focalnet": {"image_size": 64, "embed_dim": 16, "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 128]},
    "mobilevit": {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "num_attention_heads": 2},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]},
    "segformer": {
        "hidden_sizes": [16, 24, 32, 48],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4],
        "decoder_hidden_size": 32,
    },
    "swin2sr": {"image_size": 16, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
}
DETR = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 5,
    "num_labels": 4,
}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 24, 32, 48],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}
LAST = {**RESNET, "out_features": ["stage4"]}
DETECTORS = {
    "conditional_detr": {**DETR, "backbone_config": LAST},
    "deformable_detr": {**DETR, "decoder_layers": 2, "backbone_config": RESNET, "num_feature_levels": 3},
    "detr": {**DETR, "backbone_config": LAST},
    "table-transformer": {**DETR, "backbone_config": LAST},
}

SEGMENTERS = {
    "dpt": {
        **PATCHES,
        "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [16, 16, 16, 16],
        "fusion_hidden_size": 16,
        "num_labels": 4,
    },
    "segformer": ANY_SIZE["segformer"],
    "upernet": {
        "backbone_config": {**RESNET, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
        "hidden_size": 16,
        "num_labels": 4,
        "auxiliary_in_channels": 32,
        "auxiliary_channels": 16,
    },
}

NOT_CONTIGUOUS = wrong("export-error", _known.NOT_CONTIGUOUS)
LEVELS = "the offsets of the levels of features are computed for the size of the example"
WHOLE = "the padding to whole patches or windows is decided for the size of the example"
PADDED = wrong("baked-shape", WHOLE)
KNOWN = {
    "beit": {"expect": {"dynamo": NOT_CONTIGUOUS}},
    "deformable_detr": {"expect": {"torchscript": wrong("baked-value", LEVELS), "dynamo": wrong("baked-shape", LEVELS)}},
    "focalnet, any size": {"expect": {"torchscript": PADDED, "dynamo": PADDED}},
    "mobilevit, any size": {"expect": {"torchscript": PADDED, "dynamo": [PADDED, wrong("static-axis", WHOLE)]}},
    "swin": {"expect": {"dynamo": NOT_CONTIGUOUS}},
    "upernet": {
        "expect": {
            "torchscript": unsupported(_known.NO_ADAPTIVE_POOLING),
            "dynamo": wrong("baked-value", "the bins of an adaptive average pooling are computed for the size of the example"),
        }
    },
}
"""What is known to fail, by case."""


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in FIXED_SIZE},
    input_names=["pixel_values"],
    output_names=["last_hidden_state"],
    dynamic_axes={"pixel_values": {0: "batch"}, "last_hidden_state": {0: "batch"}},
    tags=["transformers", "vision"],
)
def vision(case):
    model = onnx_ci.adapt(build("AutoModel", case, FIXED_SIZE[case]), inputs=["pixel_values"], outputs=["last_hidden_state"])
    return model, (torch.randn(2, 3, 64, 64),)


IMAGE = {0: "batch", 2: "height", 3: "width"}


AS_TOKENS = ["dinov3_vit", "focalnet"]


def image_signature(case):
    """An image, and a map of features or a row of tokens."""
    features = {0: "batch", 1: "tokens"} if case in AS_TOKENS else {0: "batch", 2: "rows", 3: "columns"}
    return {"dynamic_axes": {"pixel_values": IMAGE, "last_hidden_state": features}}


@onnx_ci.recipe(
    each={case: image_signature(case) | KNOWN.get(f"{case}, any size", {}) for case in ANY_SIZE},
    input_names=["pixel_values"],
    output_names=["last_hidden_state"],
    tags=["transformers", "vision"],
)
def vision_any_size(case):
    model = onnx_ci.adapt(build("AutoModel", case, ANY_SIZE[case]), inputs=["pixel_values"], outputs=["last_hidden_state"])
    return model, (torch.randn(2, 3, 64, 96),)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in DETECTORS},
    input_names=["pixel_values"],
    output_names=["logits", "pred_boxes"],
    dynamic_axes={"pixel_values": IMAGE, "logits": {0: "batch"}, "pred_boxes": {0: "batch"}},
    tags=["transformers", "detection"],
)
def detector(case):
    model = onnx_ci.adapt(
        build("AutoModelForObjectDetection", case, DETECTORS[case]), inputs=["pixel_values"], outputs=["logits", "pred_boxes"]
    )
    return model, (torch.randn(2, 3, 64, 96),)


FEATURES = {"pixel_values": IMAGE, "logits": {0: "batch", 2: "rows", 3: "columns"}}
ONE_SIZE = {"pixel_values": {0: "batch"}, "logits": {0: "batch"}}


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in SEGMENTERS} | {"dpt": {"dynamic_axes": ONE_SIZE}},
    input_names=["pixel_values"],
    output_names=["logits"],
    dynamic_axes=FEATURES,
    tags=["transformers", "segmentation"],
)
def semantic_segmentation(case):
    model = build("AutoModelForSemanticSegmentation", case, SEGMENTERS[case])
    return onnx_ci.adapt(model, inputs=["pixel_values"], outputs=["logits"]), (torch.randn(2, 3, 64, 64),)


@onnx_ci.recipe(
    each={"timesformer": {}, "videomae": {}, "vivit": {}},
    input_names=["pixel_values"],
    output_names=["last_hidden_state"],
    dynamic_axes={"pixel_values": {0: "batch"}, "last_hidden_state": {0: "batch"}},
    tags=["transformers", "video"],
)
def video_encoder(case):
    options = {**PATCHES, "image_size": 32, "num_frames": 4, "tubelet_size": 2 if case == "videomae" else [2, 16, 16]}
    model = build("AutoModel", case, options)
    return onnx_ci.adapt(model, inputs=["pixel_values"], outputs=["last_hidden_state"]), (torch.randn(2, 4, 3, 32, 32),)


TEXT = {
    **SMALL,
    "vocab_size": 100,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "projection_dim": 16,
}


@onnx_ci.recipe(
    each={"altclip": {}, "clip": {}, "clipseg": {}, "siglip": {}},
    input_names=["input_ids", "attention_mask", "pixel_values"],
    output_names=["logits_per_image"],
    dynamic_axes={
        "input_ids": {0: "texts", 1: "length"},
        "attention_mask": {0: "texts", 1: "length"},
        "pixel_values": {0: "images"},
        "logits_per_image": {0: "images", 1: "texts"},
    },
    tags=["transformers", "vision", "text"],
)
def text_and_image(case):
    model = build(
        "AutoModel", case, {"text_config": TEXT, "vision_config": {**PATCHES, "projection_dim": 16}, "projection_dim": 16}
    )
    ids, mask = torch.randint(5, 100, (3, 8)), torch.tensor([[1] * 8, [1] * 5 + [0] * 3, [1] * 4 + [0] * 4])
    model = onnx_ci.adapt(model, inputs=["input_ids", "attention_mask", "pixel_values"], outputs=["logits_per_image"])
    return model, (ids, mask, torch.randn(2, 3, 64, 64))
