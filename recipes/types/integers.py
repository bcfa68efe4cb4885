"""Integers: embeddings of hashed ids, from opset 9; TorchScript rounds the floor division of negative numbers wrongly."""

import torch
from torch import nn

import onnx_ci


class HashedIds(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)

    def forward(self, ids):
        return self.embedding(ids * 7 % 16).sum(1), (ids > 2).sum(1), ids.max(1).values


class FloorDivision(nn.Module):
    def forward(self, x, y):
        return x // y


class ExactDivision(nn.Module):
    """Subtracts the remainder first, so that the division is exact."""

    def forward(self, x, y):
        return torch.div(x - x % y, y, rounding_mode="trunc")


SIGNATURE = {"input_names": ["x", "y"], "output_names": ["quotient"]}
NUMBERS = torch.tensor([7, -7, 7, -7, 6]), torch.tensor([2, 2, -2, -2, 3])


@onnx_ci.recipe(
    input_names=["ids"],
    output_names=["sums", "counts", "largest"],
    dynamic_axes={"ids": {0: "batch"}, "sums": {0: "batch"}, "counts": {0: "batch"}, "largest": {0: "batch"}},
)
def integers():
    return HashedIds(), (torch.randint(0, 100, (3, 5)),)


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript": onnx_ci.known_failure("numeric-drift", "rounded toward zero: -3 instead of -4", seen="torch 2.13.0")
    },
)
def floor_division():
    return FloorDivision(), NUMBERS


@onnx_ci.recipe(**SIGNATURE)
def floor_division_made_exact():
    return ExactDivision(), NUMBERS
