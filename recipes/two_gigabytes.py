"""A model above 2 GB, which no protobuf file can hold: its weights are put beside it, and both are judged. From opset 9.

The checker must be given the file's path: a model in memory is refused. dynamo itself needs little more memory than
the model, TorchScript four times as much. With onnx-ci's references it is five times with dynamo and six with TorchScript.
"""

import torch

import onnx_ci


@onnx_ci.recipe(
    input_names=["words"],
    output_names=["vectors"],
    dynamic_axes={"words": {0: "count"}, "vectors": {0: "count"}},
    opsets="17-18",
    weights="trained",  # so that no second set of weights is drawn
    tags=["slow"],
    on_request="needs 14 GiB of memory",
)
def two_gigabytes():
    return torch.nn.Embedding(2**20, 544), (torch.tensor([0, 1, 2**20 - 1]),)
