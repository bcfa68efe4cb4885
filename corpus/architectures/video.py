"""Video classifiers and optical flow of torchvision."""

import torch
from _libraries import import_torchvision

import onnx_ci

CLIP = {0: "batch", 2: "frames", 3: "height", 4: "width"}


def build(case):
    import_torchvision()
    from torchvision.models.video import resnet

    convolutions = {
        "r3d": [resnet.Conv3DSimple] * 4,
        "mc3": [resnet.Conv3DSimple] + [resnet.Conv3DNoTemporal] * 3,
        "r2plus1d": [resnet.Conv2Plus1D] * 4,
    }
    stem = resnet.R2Plus1dStem if case == "r2plus1d" else resnet.BasicStem
    return resnet.VideoResNet(resnet.BasicBlock, convolutions[case], [1, 1, 1, 1], stem, num_classes=10)


@onnx_ci.recipe(
    each={"mc3": {}, "r2plus1d": {}, "r3d": {}},
    input_names=["clip"],
    output_names=["logits"],
    dynamic_axes={"clip": CLIP, "logits": {0: "batch"}},
    tags=["torchvision", "video"],
)
def video_resnet(case):
    return build(case), (torch.randn(2, 3, 4, 32, 48),)


@onnx_ci.recipe(
    input_names=["clip"],
    output_names=["logits"],
    dynamic_axes={"clip": {0: "batch"}, "logits": {0: "batch"}},
    each={"mvit": {}, "swin3d": {}},
    tags=["torchvision", "video"],
)
def video_transformer(case):
    import_torchvision()
    from torchvision.models.video import mvit, swin_transformer

    if case == "swin3d":
        model = swin_transformer.SwinTransformer3d(
            patch_size=[2, 4, 4],
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 2],
            window_size=[2, 4, 4],
            num_classes=10,
        )
        return model, (torch.randn(2, 3, 4, 32, 32),)
    setting = [
        mvit.MSBlockConfig(
            num_heads=heads,
            input_channels=first,
            output_channels=last,
            kernel_q=[3, 3, 3],
            kernel_kv=[3, 3, 3],
            stride_q=[1, step, step],
            stride_kv=[1, 2, 2],
        )
        for heads, first, last, step in ((1, 16, 32, 1), (2, 32, 32, 2))
    ]
    model = mvit.MViT(
        spatial_size=(32, 32),
        temporal_size=4,
        block_setting=setting,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=10,
    )
    return model, (torch.randn(2, 3, 4, 32, 32),)


@onnx_ci.recipe(
    input_names=["first", "second"],
    output_names=["flow"],
    dynamic_axes={name: {0: "batch", 2: "height", 3: "width"} for name in ("first", "second", "flow")},
    dynamic_sizes={"height": (128, 136), "width": (144, 160)},  # multiples of 8, not smaller than 128
    expect={
        "dynamo": onnx_ci.known_failure(
            "export-error", "the optimizer of onnxscript fails on a split without sizes", seen="torch 2.13.0, onnxscript 0.7.2"
        )
    },
    tags=["torchvision", "flow"],
)
def optical_flow_raft():
    import_torchvision()
    from torchvision.models.optical_flow import raft_small

    model = onnx_ci.adapt(raft_small(weights=None), fixed={"num_flow_updates": 2}, outputs=lambda made: made[-1])
    return model, (torch.randn(1, 3, 128, 144), torch.randn(1, 3, 128, 144))
