"""A model above 2 GB, which one protobuf file cannot hold: the exporter puts the weights beside it, and both are judged.

The checker must be given the file's path: a model in memory is refused. Holds from opset 9, and needs about 8 GB of
memory and 2.3 GB of disk.
"""

import torch

import onnx_ci


@onnx_ci.recipe(
    input_names=["words"],
    output_names=["vectors"],
    dynamic_axes={"words": {0: "count"}, "vectors": {0: "count"}},
    opsets=17,
    tags=["slow"],
    on_request="needs 10 GiB of memory",
)
def two_gigabytes():
    return torch.nn.Embedding(2**20, 544), (torch.tensor([0, 1, 2**20 - 1]),)
