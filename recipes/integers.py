"""Integers: embeddings of hashed ids hold from opset 9; TorchScript rounds the division of negative numbers the wrong way."""

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
    """Takes the remainder away first, so that there is nothing to round."""

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
    expect={"torchscript": onnx_ci.fails("numeric-drift", "rounded towards zero: -3 in place of -4", seen="torch 2.13.0")},
)
def floor_division():
    return FloorDivision(), NUMBERS


@onnx_ci.recipe(**SIGNATURE)
def floor_division_made_exact():
    return ExactDivision(), NUMBERS
