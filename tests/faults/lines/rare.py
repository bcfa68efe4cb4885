"""Mistakes that few inputs show: the example, and most sizes and values near it, give the right result."""

from __future__ import annotations

import math

import torch
from faults.lines.line_fault import DYNAMO, TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn
from torch.nn import functional


def tokens() -> tuple[torch.Tensor]:
    return (torch.randn(2, 12, 8),)


SAME = {"x": "batch time _", "y": "batch time _"}
POOLED = {"x": "batch time _", "y": "batch _"}


class PaddedTo32(nn.Module):
    """Images are padded to a multiple of the strides of the backbone."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.out = nn.Linear(4, 3)

    def missing(self, size):
        return math.ceil(size / 32) * 32 - size  # FAULT

    def forward(self, x):
        height, width = x.shape[-2:]
        x = functional.pad(x, (0, self.missing(width), 0, self.missing(height)))
        return self.out(torch.relu(self.conv(x)).mean((2, 3)))


class PaddedTo32Right(PaddedTo32):
    def missing(self, size):
        return -size % 32


class ScaledRotary(nn.Module):
    """Rotary positions turn more slowly in sequences that are longer than those of the training."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.trained = 48

    def factor(self, time):
        if time > self.trained:  # FAULT
            return self.trained / time
        return 1.0

    def turned(self, x):
        time = x.shape[1]
        angles = torch.arange(time)[:, None] * self.factor(time) * torch.tensor([1.0, 0.3, 0.1, 0.03])
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], dim=-1)

    def forward(self, x):
        scores = self.turned(self.query(x)) @ self.turned(self.key(x)).transpose(1, 2)
        return torch.softmax(scores / 3, dim=-1) @ x


class ScaledRotaryRight(ScaledRotary):
    def factor(self, time):
        return self.trained / torch.ones(time).sum().clamp(min=self.trained)


class LimitedValues(nn.Module):
    """Very large inputs are limited."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def limited(self, x):
        if x.abs().max() > 40:  # FAULT
            x = x.clamp(-40, 40)
        return x

    def forward(self, x):
        return self.second(torch.relu(self.first(self.limited(x))))


class LimitedValuesRight(LimitedValues):
    def limited(self, x):
        return x.clamp(-40, 40)


class LongChunks(nn.Module):
    """Long sequences are processed in chunks of 64 steps, each with a mean of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def centered(self, x):
        chunks = []
        for start in range(0, x.shape[1], 64):  # FAULT
            chunk = x[:, start : start + 64]
            chunks.append(chunk - chunk.mean(1, keepdim=True))
        return torch.cat(chunks, dim=1)

    def forward(self, x):
        return torch.tanh(self.centered(self.layer(x)))


class LongChunksRight(LongChunks):
    def centered(self, x):
        chunk = torch.arange(x.shape[1]) // 64
        same = (chunk[:, None] == chunk).float()
        return x - (same @ x) / same.sum(-1, keepdim=True)


class SilentInput(nn.Module):
    """Silence stays silence."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        loudness = x.square().mean().sqrt()
        if loudness < 1e-6:  # FAULT
            return self.layer(x)
        return self.layer(x / loudness)


class SilentInputRight(SilentInput):
    def forward(self, x):
        loudness = x.square().mean().sqrt()
        return self.layer(x / torch.where(loudness < 1e-6, 1.0, loudness))


class QuietRows(nn.Module):
    """Rows are normalized, unless they are all small already."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.layer = nn.Linear(8, 4)

    def normalized(self, x):
        norms = x.norm(dim=-1, keepdim=True)
        if norms.max() <= 1.0:  # FAULT
            return x * self.scale
        return x / norms.clamp(min=1.0) * self.scale + 0.1

    def forward(self, x):
        return torch.relu(self.layer(self.normalized(x)))


class QuietRowsRight(QuietRows):
    def normalized(self, x):
        norms = x.norm(dim=-1, keepdim=True)
        return torch.where(norms.max() <= 1.0, x * self.scale, x / norms.clamp(min=1.0) * self.scale + 0.1)


class FirstSteps(nn.Module):
    """The first steps count twice: the more, the longer the sequence is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def width(self, x):
        return 1 + int(math.sqrt(x.shape[1] / 8))  # FAULT

    def forward(self, x):
        x = torch.relu(self.layer(x))
        return x[:, : self.width(x)].mean(1) + x.amax(1)


class FirstStepsRight(FirstSteps):
    def width(self, x):
        steps = torch.arange(x.shape[1])
        return (steps * steps * 8 <= x.shape[1]).sum()


class SizeClass(nn.Module):
    """Short, middle and long sequences have an embedding each."""

    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(3, 8)
        self.layer = nn.Linear(8, 5)

    def class_of(self, x):
        time = x.shape[1]
        return torch.tensor(0 if time < 30 else 1 if time < 60 else 2)  # FAULT

    def forward(self, x):
        return self.layer(torch.tanh(x) + self.kind(self.class_of(x)))


class SizeClassRight(SizeClass):
    def class_of(self, x):
        time = torch.ones(x.shape[1]).sum()
        return (time >= 30).long() + (time >= 60).long()


FAULTS = [
    line_fault(
        PaddedTo32,
        PaddedTo32Right,
        lambda: (torch.randn(2, 3, 20, 24),),
        {"x": "batch _ height width", "y": "batch _"},
        TS13,
    ),
    line_fault(ScaledRotary, ScaledRotaryRight, tokens, SAME, TS14, DYNAMO),
    line_fault(LimitedValues, LimitedValuesRight, tokens, SAME, TS15),
    line_fault(LongChunks, LongChunksRight, tokens, SAME, TS16),
    line_fault(SilentInput, SilentInputRight, tokens, SAME, TS17),
    line_fault(QuietRows, QuietRowsRight, tokens, SAME, TS13),
    line_fault(FirstSteps, FirstStepsRight, tokens, POOLED, TS14),
    line_fault(SizeClass, SizeClassRight, tokens, SAME, TS15, DYNAMO),
]
