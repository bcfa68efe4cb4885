"""A float16 file made from a float32 export, with float16 inputs and outputs or with those of the model. From opset 9.

The file is judged in units of half precision's own rounding, simulated on the model. With ``keep_io_types`` inputs and outputs
stay float32; otherwise the file must have float16 in exactly their places.
"""

import pytest
import torch

import onnx_ci

BATCH = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
NEEDED = "needs onnx-ci[float16]"


def perceptron():
    pytest.importorskip("onnxconverter_common", reason="needs onnxconverter-common: pip install onnx-ci[float16]")
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)), (torch.randn(4, 16),)


@onnx_ci.recipe(**BATCH, then="float16", manual=NEEDED)
def float16_file():
    return perceptron()


@onnx_ci.recipe(**BATCH, then=onnx_ci.graph_pass("float16", keep_io_types=True), manual=NEEDED)
def float16_inside():
    return perceptron()
