"""An operator that dynamo cannot convert, and a translation for it: dynamo's symbolic function. From opset 18."""

import torch
from onnxscript import opset18 as op

import onnx_ci


class Bessel(torch.nn.Module):
    def forward(self, x):
        return torch.special.spherical_bessel_j0(x)


def spherical_bessel_j0(x):
    return op.Where(op.Equal(x, 0.0), 1.0, op.Div(op.Sin(x), x))


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
MISSING = onnx_ci.unsupported("the exporter cannot convert special_spherical_bessel_j0", seen="torch 2.13.0")


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript": MISSING, "dynamo": MISSING})
def translation_missing():
    return Bessel(), (torch.randn(2, 3),)


@onnx_ci.recipe(
    **SIGNATURE,
    custom_translation_table={torch.ops.aten.special_spherical_bessel_j0.default: spherical_bessel_j0},
    expect={"torchscript": MISSING},
)
def translation_table():
    return Bessel(), (torch.randn(2, 3),)
