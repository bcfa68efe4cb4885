"""Dynamic axes by number, by name and mixed, as in the documentation. From opset 9."""

import torch
from torch import nn

import onnx_ci


class Detector(nn.Module):
    """Shapes as in the documentation: (b, 3, w, h) and (b, 4) in, (b, d, 5) out."""

    def __init__(self):
        super().__init__()
        self.image, self.context = nn.Conv2d(3, 5, 3, padding=1), nn.Linear(4, 5)

    def forward(self, image, context):
        return torch.cat([self.image(image).flatten(2).transpose(1, 2), self.context(context)[:, None]], dim=1)


NAMES = {"input_names": ["input_1", "input_2"], "output_names": ["output"]}
EXAMPLE = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8.0).reshape(2, 4)


@onnx_ci.recipe(**NAMES, dynamic_axes={"input_1": [0, 2, 3], "input_2": [0], "output": [0, 1]})
def axes_by_number():
    return Detector(), EXAMPLE


@onnx_ci.recipe(
    **NAMES,
    dynamic_axes={
        "input_1": {0: "batch", 2: "width", 3: "height"},
        "input_2": {0: "batch"},
        "output": {0: "batch", 1: "detections"},
    },
)
def axes_by_name():
    return Detector(), EXAMPLE


@onnx_ci.recipe(
    **NAMES,
    dynamic_axes={"input_1": [0, 2, 3], "input_2": {0: "batch"}, "output": [0, 1]},
    expect={
        "dynamo": onnx_ci.known_failure(
            "name-mismatch", "axes that must be equal get the same automatic name", seen="torch 2.13.0"
        )
    },
)
def axes_mixed():
    return Detector(), EXAMPLE


AXIS_OF_CHANNELS = onnx_ci.known_failure(
    "vacuous", "axis 1 holds the channels, whose number the model fixes", seen="torch 2.13.0"
)


@onnx_ci.recipe(
    **NAMES,
    dynamic_axes={  # as in the documentation, although width and height are axes 2 and 3
        "input_1": {0: "batch", 1: "width", 2: "height"},
        "input_2": {0: "batch"},
        "output": {0: "batch", 1: "detections"},
    },
    expect={
        "torchscript": AXIS_OF_CHANNELS,
        "dynamo": [
            AXIS_OF_CHANNELS,
            onnx_ci.known_failure("export-error", "torch.export rejects it too", seen="torch 2.13.0"),
        ],
    },
)
def axes_off_by_one():
    return Detector(), EXAMPLE
