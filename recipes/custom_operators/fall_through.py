"""Operators that ONNX lacks, exported at any opset as PyTorch's own: the export succeeds, but no runtime can run the file."""

import torch
from torch.onnx import OperatorExportTypes

import onnx_ci


class Expm1(torch.nn.Module):
    def forward(self, x):
        return torch.expm1(x)


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
NOT_ONNX = [
    onnx_ci.known_failure("foreign-domain", "the operator stays in the domain org.pytorch.aten", seen="torch 2.13.0"),
    onnx_ci.known_failure("load-error", "ONNX Runtime does not implement PyTorch's operators", seen="onnxruntime 1.31.1"),
]


@onnx_ci.recipe(**SIGNATURE, operator_export_type=OperatorExportTypes.ONNX_FALLTHROUGH, expect={"torchscript": NOT_ONNX})
def fall_through():
    return Expm1(), (torch.randn(2, 3),)


@onnx_ci.recipe(**SIGNATURE, operator_export_type=OperatorExportTypes.ONNX_ATEN_FALLBACK, expect={"torchscript": NOT_ONNX})
def fall_back_to_aten():
    return Expm1(), (torch.randn(2, 3),)


@onnx_ci.recipe(**SIGNATURE, operator_export_type=OperatorExportTypes.ONNX_ATEN, expect={"torchscript": NOT_ONNX})
def all_in_aten():
    return torch.nn.ReLU(), (torch.randn(2, 3),)
