"""A model above 2 GB, too large for one protobuf file: its weights are stored as external data. From opset 9.

The checker needs the file's path: it rejects such a model in memory. dynamo itself needs little more memory than the model,
TorchScript three times as much. With onnx-ci it is two and a half times with dynamo, and still three with TorchScript.
"""

import torch

import onnx_ci


@onnx_ci.recipe(
    input_names=["words"],
    output_names=["vectors"],
    dynamic_axes={"words": {0: "count"}, "vectors": {0: "count"}},
    opsets="17-18",
    weights="trained",  # keeps onnx-ci from drawing a second set of weights
    tags=["slow"],
    manual="needs 8 GiB of memory",
)
def two_gigabytes():
    return torch.nn.Embedding(2**20, 544), (torch.tensor([0, 1, 2**20 - 1]),)
