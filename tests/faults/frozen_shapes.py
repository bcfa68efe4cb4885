"""Sizes that tracing freezes: the file takes the example's size only, or gives another one than the model."""

from __future__ import annotations

import math

import torch
from faults.fault import ROWS, ROWS_IN, ROWS_OUT, X, fault, matrix
from torch import nn
from torch.nn import functional


def four_rows() -> tuple[torch.Tensor]:
    return (torch.randn(4, 4),)


def image() -> tuple[torch.Tensor]:
    return (torch.randn(1, 2, 4, 4),)


class Token(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 4))

    def forward(self, x):
        return torch.cat([self.token.expand(int(x.shape[0]), -1), x], dim=1)


class TokenRight(Token):
    def forward(self, x):
        return torch.cat([self.token.expand(x.shape[0], -1), x], dim=1)


class Position(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(16, 4))

    def forward(self, x):
        return x + self.position[: int(x.shape[0])]


class PositionRight(Position):
    def forward(self, x):
        return x + self.position[: x.shape[0]]


class State(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5)

    def forward(self, x):
        zeros = torch.zeros(1, int(x.shape[1]), 5)
        return self.lstm(x, (zeros, zeros))[0]


class StateRight(State):
    def forward(self, x):
        zeros = torch.zeros(1, x.shape[1], 5)
        return self.lstm(x, (zeros, zeros))[0]


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.ramp = torch.zeros(0)

    def forward(self, x):
        if len(self.ramp) != x.shape[0]:
            self.ramp = torch.arange(len(x))[:, None].float()
        return x + self.ramp


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class AttentionRight(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = self.project(x).reshape(batch, time, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, time, 8))


BATCH = {**X, "dynamic_axes": {"x": {1: "batch"}, "y": {1: "batch"}}}
TIME = {**X, "dynamic_axes": {"x": {0: "batch", 1: "time"}, "y": {0: "batch", 1: "time"}}}
SQUARE = {**X, "dynamic_axes": {"x": {0: "rows"}, "y": {0: "rows", 1: "rows"}}}
DOUBLED = {**X, "dynamic_axes": {"x": {2: "h", 3: "w"}, "y": {2: "h2", 3: "w2"}}}

FAULTS = [
    # int() of a size freezes it.
    fault("view", "baked-shape", lambda x: x.view(int(x.shape[0]) * 4), lambda x: x.view(x.shape[0] * 4), matrix, **ROWS_OUT),
    # The same among sizes that stay as they are.
    fault(
        "split_axis",
        "baked-shape",
        lambda x: x.reshape(*[int(size) for size in x.shape[:1]], 2, 2),
        lambda x: x.reshape(*x.shape[:1], 2, 2),
        matrix,
        **ROWS,
    ),
    # A class token for the example's batch only.
    fault("expand", "baked-shape", Token, TokenRight, matrix, **ROWS),
    # repeat() as often as the example has rows.
    fault(
        "repeat",
        "baked-shape",
        lambda x: x[:1].repeat(len(x), 1) + x,
        lambda x: x[:1].repeat(x.shape[0], 1) + x,
        matrix,
        **ROWS,
    ),
    # Positions for the example's rows only.
    fault(
        "arange",
        "baked-shape",
        lambda x: x + torch.arange(int(x.shape[0]))[:, None],
        lambda x: x + torch.arange(x.shape[0])[:, None],
        matrix,
        **ROWS,
    ),
    # The same with learned positions.
    fault("position_table", "baked-shape", Position, PositionRight, matrix, **ROWS),
    # An initial state for the example's batch only.
    fault("lstm_state", "baked-shape", State, StateRight, lambda: (torch.randn(5, 3, 4),), **BATCH),
    # The sections of split() are numbers.
    fault(
        "split",
        "baked-shape",
        lambda x: x.split(int(x.shape[0]) // 2)[0] * 2,
        lambda x: x[: x.shape[0] // 2] * 2,
        four_rows,
        **ROWS_OUT,
    ),
    # unbind() gives as many tensors as the example has rows.
    fault("unbind", "baked-shape", lambda x: sum(x.unbind(0)), lambda x: x.sum(0), matrix, **ROWS_IN),
    # So does iterating over a tensor.
    fault(
        "comprehension",
        "baked-shape",
        lambda x: torch.stack([row.sum() for row in x]),
        lambda x: x.sum(1),
        matrix,
        **ROWS,
    ),
    # A causal mask of the example's length.
    fault(
        "causal_mask",
        "baked-shape",
        lambda x: x @ x.T * torch.ones(len(x), len(x)).tril(),
        lambda x: x @ x.T * torch.ones(x.shape[0], x.shape[0]).tril(),
        matrix,
        opset=14,
        **SQUARE,
    ),
    # Padding to a multiple, by what the example lacks.
    fault(
        "pad_to_multiple",
        "baked-shape",
        lambda x: functional.pad(x, (0, 0, 0, -int(x.shape[0]) % 4)),
        lambda x: functional.pad(x, (0, 0, 0, -x.shape[0] % 4)),
        matrix,
        **ROWS_OUT,
    ),
    # Twice the example's size rather than twice the size.
    fault(
        "resize",
        "baked-shape",
        lambda x: functional.interpolate(x, size=(int(x.shape[2]) * 2, int(x.shape[3]) * 2)),
        lambda x: functional.interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 2)),
        image,
        **DOUBLED,
    ),
    # math.ceil() gives a Python number.
    fault(
        "ceil",
        "baked-shape",
        lambda x: x[: math.ceil(x.shape[0] / 2)] * 2,
        lambda x: x[: (x.shape[0] + 1) // 2] * 2,
        four_rows,
        **ROWS_OUT,
    ),
    # min() of a size and a number is one of the two for good.
    fault(
        "python_min",
        "baked-shape",
        lambda x: x[: min(x.shape[0], 3)] * 2,
        lambda x: x[:3] * 2,
        lambda: (torch.randn(2, 4),),
        **ROWS_OUT,
    ),
    # A cache that eager mode renews is a constant of the file.
    fault("cached_ramp", "baked-shape", Cached, lambda x: x + torch.arange(x.shape[0])[:, None], matrix, **ROWS),
    # torch's own attention freezes batch and time (torch 2.13).
    fault("attention", "baked-shape", Attention, AttentionRight, lambda: (torch.randn(3, 5, 8),), opset=14, **TIME),
    # Of the sizes of production, only the last one is wrong.
    fault(
        "last_listed_size",
        "baked-shape",
        lambda x: x[:8] if x.shape[0] > 8 else x,
        lambda x: x[:8],
        matrix,
        dynamic_sizes={"rows": (2, 5, 16)},
        **ROWS_OUT,
    ),
]
