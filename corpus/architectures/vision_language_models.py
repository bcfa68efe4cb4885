"""Models of images, texts and prompts: OpenCLIP, Segment Anything, and the detectors of Ultralytics."""

import functools

import torch
from _libraries import import_after_torchvision

import onnx_ci

SEEN = "torch 2.13.0"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
TEXT = {"context_length": 16, "vocab_size": 60, "width": 32, "heads": 2, "layers": 2}
VISION = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16}
CLIPS = {
    "clip": ("CLIP", {"vision_cfg": VISION, "text_cfg": TEXT}),
    "clip_map_head": (
        "CustomTextCLIP",
        {
            "vision_cfg": {**VISION, "attentional_pool": True, "attn_pooler_queries": 4, "attn_pooler_heads": 2},
            "text_cfg": {**TEXT, "no_causal_mask": True, "pool_type": "last"},
            "init_logit_bias": -10.0,
        },
    ),
    "clip_resnet": (
        "CLIP",
        {"vision_cfg": {"image_size": 64, "layers": (1, 1, 1, 1), "width": 8, "head_width": 16}, "text_cfg": TEXT},
    ),
}


@onnx_ci.recipe(
    each={case: {} for case in CLIPS},
    input_names=["image", "text"],
    output_names=["image_features", "text_features"],
    dynamic_axes={
        "image": {0: "images"},
        "text": {0: "texts"},
        "image_features": {0: "images"},
        "text_features": {0: "texts"},
    },
    tags=["open_clip", "vision_language"],
)
def open_clip(case):
    name, options = CLIPS[case]
    model = getattr(import_after_torchvision("open_clip.model"), name)(embed_dim=16, **options)
    model = onnx_ci.adapt(model, outputs=lambda made: made[:2])
    size = options["vision_cfg"]["image_size"]
    return model, (torch.randn(2, 3, size, size), torch.randint(1, 60, (3, 16)))


def segment_anything():
    """A small Segment Anything, without weights."""
    modeling = import_after_torchvision("segment_anything.modeling")
    encoder = modeling.ImageEncoderViT(
        img_size=64,
        patch_size=16,
        embed_dim=32,
        depth=2,
        num_heads=2,
        out_chans=16,
        use_rel_pos=True,
        window_size=3,
        global_attn_indexes=(1,),
    )
    prompts = modeling.PromptEncoder(16, (4, 4), (64, 64), mask_in_chans=4)
    transformer = modeling.TwoWayTransformer(depth=1, embedding_dim=16, num_heads=2, mlp_dim=32)
    decoder = modeling.MaskDecoder(transformer_dim=16, transformer=transformer, iou_head_hidden_dim=16)
    return modeling.Sam(encoder, prompts, decoder)


@onnx_ci.recipe(
    input_names=["image"],
    output_names=["embeddings"],
    dynamic_axes={"image": {0: "batch"}, "embeddings": {0: "batch"}},
    tags=["segment_anything", "segmentation"],
)
def segment_anything_encoder():
    return segment_anything().image_encoder, (torch.randn(2, 3, 64, 64),)


def whole_sizes(_, generator):
    """A height and a width, as the floats that its own export script takes."""
    return torch.randint(20, 100, (2,), generator=generator).float()


@onnx_ci.recipe(
    input_names=["image_embeddings", "point_coords", "point_labels", "mask_input", "has_mask_input", "orig_im_size"],
    output_names=["masks", "iou_predictions", "low_res_masks"],
    dynamic_axes={"point_coords": {1: "points"}, "point_labels": {1: "points"}},
    inputs={
        "point_coords": onnx_ci.floats(0, 64),
        "point_labels": onnx_ci.one_of(-1.0, 0.0, 1.0, 2.0, 3.0),
        "has_mask_input": onnx_ci.one_of(0.0, 1.0),
        "orig_im_size": whole_sizes,
    },
    expect={
        "torchscript": wrong("baked-value", "the masks are cut to a size that int() makes of the example's size"),
        "dynamo": wrong("export-error", "the size of the masks is a value, which dynamo does not convert"),
    },
    tags=["segment_anything", "segmentation"],
)
def segment_anything_decoder():
    module = import_after_torchvision("segment_anything.utils.onnx")
    model = module.SamOnnxModel(segment_anything(), return_single_mask=True)
    points, labels = torch.rand(1, 5, 2) * 64, torch.tensor([[0.0, 1.0, 1.0, 2.0, 3.0]])
    mask, size = (torch.randn(1, 1, 16, 16), torch.tensor([1.0])), torch.tensor([48.0, 60.0])
    return model, (torch.randn(1, 16, 4, 4), points, labels, *mask, size)


DETECTORS = {
    "yolo11": "yolo11n.yaml",
    "yolo11_pose": "yolo11n-pose.yaml",
    "yolo11_seg": "yolo11n-seg.yaml",
    "yolo12": "yolo12n.yaml",
    "yolo26": "yolo26n.yaml",
    "yolov5": "yolov5n.yaml",
    "yolov8": "yolov8n.yaml",
    "yolov10": "yolov10n.yaml",
}


@onnx_ci.recipe(
    each={case: {} for case in DETECTORS},
    input_names=["image"],
    dynamic_axes={"image": {0: "batch", 2: "height", 3: "width"}},
    dynamic_sizes={"height": (32, 96), "width": (64, 128)},  # multiples of the largest stride
    inputs={"image": onnx_ci.floats(0, 1)},
    tags=["ultralytics", "detection"],
)
def ultralytics(case):
    tasks = import_after_torchvision("ultralytics.nn.tasks")
    kind = {"seg": "SegmentationModel", "pose": "PoseModel"}.get(case.partition("_")[2], "DetectionModel")
    model = getattr(tasks, kind)(DETECTORS[case], nc=4, verbose=False)
    model.model[-1].export, model.model[-1].dynamic, model.model[-1].format = True, True, "onnx"  # as its own exporter does
    return model, (torch.rand(1, 3, 64, 96),)
