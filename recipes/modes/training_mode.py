"""Export in training mode, from opset 9, for BatchNorm under TorchScript. Check what the file computes before training."""

import torch
from torch import nn

import onnx_ci

SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}


@onnx_ci.recipe(
    **SIGNATURE,
    training=True,
    expect={
        "dynamo": onnx_ci.known_failure("numeric-drift", "BatchNorm is exported in inference mode", seen="torch 2.13.0"),
        "torchscript cuda 14-": onnx_ci.known_failure(
            "load-error", "ONNX Runtime has no BatchNormalization in training mode on CUDA", seen="onnxruntime 1.31.1"
        ),
    },
)
def training_batch_norm():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), (torch.randn(8, 3),)


NOT_DROPPED = onnx_ci.known_failure(
    "numeric-drift",
    "nothing is dropped: below opset 12, Dropout has no training mode, and from there ONNX Runtime's optimizer removes it",
    seen="torch 2.13.0, onnxruntime 1.31.1",
)


@onnx_ci.recipe(**SIGNATURE, training=True, nondeterministic=True, expect={"torchscript": NOT_DROPPED, "dynamo": NOT_DROPPED})
def training_dropout():
    return nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Linear(64, 3)), (torch.randn(32, 3),)


@onnx_ci.recipe(**SIGNATURE, training=True, nondeterministic=True, expect={"torchscript 9-11": NOT_DROPPED})
def training_dropout_last():
    return nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5)), (torch.randn(32, 3),)
