"""Detection models of torchvision without their postprocessing, and its segmentation models."""

import torch
from _libraries import import_torchvision

import onnx_ci

IMAGE = {0: "batch", 2: "height", 3: "width"}
KNOWN = {
    "fcos": {
        "expect": {
            "dynamo": onnx_ci.known_failure(
                "shape-mismatch", "a declared size has a term for images of at most 128 × 128", seen="torch 2.13.0"
            )
        }
    },
    "ssdlite320_mobilenet_v3_large": {
        "expect": {
            "dynamo": onnx_ci.known_failure(
                "baked-shape",
                "the file says of intermediate values that they have the sizes of the example",
                seen="torch 2.13.0",
            )
        }
    },
}
"""What is known to fail, by case."""


def detector(case):
    """The detector, without weights, on the smallest backbone that its builder allows."""
    torchvision = import_torchvision()
    detection, ops = torchvision.models.detection, torchvision.ops
    if case in ("fcos", "retinanet"):
        backbone = detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet18",
            weights=None,
            trainable_layers=5,
            returned_layers=[2, 3, 4],
            extra_blocks=ops.feature_pyramid_network.LastLevelP6P7(256, 256),
        )
        return (detection.FCOS if case == "fcos" else detection.RetinaNet)(backbone, num_classes=4)
    return detection.__dict__[case](weights=None, weights_backbone=None, num_classes=4)


class RawDetections(torch.nn.Module):
    """The network of a detector with dense heads: what users export to run the postprocessing on the host."""

    def __init__(self, model):
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(self, image):
        features = self.backbone(image)
        return self.head(list(features.values()) if isinstance(features, dict) else [features])


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in ("fcos", "retinanet", "ssdlite320_mobilenet_v3_large")},
    input_names=["image"],
    dynamic_axes={"image": IMAGE},
    tags=["torchvision", "detection"],
)
def dense_detector(case):
    return RawDetections(detector(case)), (torch.randn(2, 3, 64, 96),)


class RegionProposals(torch.nn.Module):
    """The backbone and the region proposal head of Faster R-CNN."""

    def __init__(self, model):
        super().__init__()
        self.backbone, self.head = model.backbone, model.rpn.head

    def forward(self, image):
        return self.head(list(self.backbone(image).values()))


@onnx_ci.recipe(
    each={"fasterrcnn_mobilenet_v3_large_320_fpn": {}},
    input_names=["image"],
    dynamic_axes={"image": IMAGE},
    tags=["torchvision", "detection"],
)
def region_proposals(case):
    return RegionProposals(detector(case)), (torch.randn(2, 3, 64, 96),)


@onnx_ci.recipe(
    each={"deeplabv3_mobilenet_v3_large": {}, "lraspp_mobilenet_v3_large": {}},
    input_names=["image"],
    output_names=["classes"],
    dynamic_axes={"image": IMAGE, "classes": IMAGE},
    tags=["torchvision", "segmentation"],
)
def torchvision_segmentation(case):
    model = import_torchvision().models.get_model(case, weights=None, weights_backbone=None, num_classes=4)
    return onnx_ci.adapt(model, outputs=["out"]), (torch.randn(2, 3, 64, 96),)
