"""Passes that keep the numbers: onnxsim, onnxslim, and ONNX Runtime's optimized graph saved to disk. From opset 9.

Their files have the same limit as the exporter's. Each pass gets the file of the one before; the cells are called
``opset17-cpu``, ``opset17-cpu+onnxsim`` and so on, and a failure names the first pass whose file shows it.
"""

import pytest
import torch

import onnx_ci


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.convolution(x))).mean((2, 3)))


BATCH = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}


@onnx_ci.recipe(**BATCH, then=["onnxsim", "onnxslim"], manual="needs onnx-ci[onnxsim,onnxslim]")
def simplified():
    for package in ("onnxsim", "onnxslim"):
        pytest.importorskip(package, reason=f"needs {package}: pip install onnx-ci[{package}]")
    return Net(), (torch.randn(2, 3, 8, 8),)


@onnx_ci.recipe(**BATCH, opsets="17-18", then="ort-optimized")
def ort_optimized():
    return Net(), (torch.randn(2, 3, 8, 8),)


@onnx_ci.recipe(**BATCH, opsets="17-18", then=onnx_ci.graph_pass("ort-optimized", level="basic"))
def ort_optimized_basic():
    return Net(), (torch.randn(2, 3, 8, 8),)
