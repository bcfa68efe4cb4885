"""A model above 2 GB, which one protobuf file cannot hold: the exporters put the weights beside it, and both are judged.

The checker must be given the file's path: a model in memory is refused. Holds from opset 9. dynamo itself needs little more
than the model, TorchScript four times as much; onnx-ci needs five times the model for its references.
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
    on_request="needs 12 GiB of memory",
)
def two_gigabytes():
    return torch.nn.Embedding(2**20, 544), (torch.tensor([0, 1, 2**20 - 1]),)
