"""Mistakes in models of speech: frames, lengths and strides."""

from __future__ import annotations

import math

import torch
from faults.lines import layers
from faults.lines.line_fault import DYNAMO, TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn
from torch.nn import functional

import onnx_ci


def frames() -> tuple[torch.Tensor]:
    return (torch.randn(2, 12, 8),)


def frames_and_lengths() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 12, 8), torch.tensor([12, 7])


AXES = {"x": "batch time _", "y": "batch steps _"}
SAME = {"x": "batch time _", "y": "batch time _"}
POOLED = {"x": "batch time _", "lengths": "batch", "y": "batch _"}
OF_TIME = {"inputs": {"lengths": onnx_ci.lengths(of="time")}}


class Subsampling(nn.Module):
    """Two convolutions with a stride, as in a Conformer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.second = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.out = nn.Linear(8, 6)

    def forward(self, x):
        x = torch.relu(self.first(x.unsqueeze(1)))
        x = torch.relu(self.second(x))
        batch, channels, time, mels = x.size()
        x = x.transpose(1, 2).contiguous().view(batch, int(time), channels * mels)  # FAULT
        return self.out(x)


class SubsamplingRight(Subsampling):
    def forward(self, x):
        x = torch.relu(self.first(x.unsqueeze(1)))
        x = torch.relu(self.second(x))
        batch, channels, time, mels = x.size()
        x = x.transpose(1, 2).contiguous().view(batch, time, channels * mels)
        return self.out(x)


class StackedFrames(nn.Module):
    """Three frames become one; those that are left over are dropped."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.project = nn.Linear(24, 6)

    def whole(self, x):
        return int(x.shape[1]) // 3 * 3  # FAULT

    def forward(self, x):
        x = self.norm(x)
        kept = x[:, : self.whole(x)]
        stacked = kept.reshape(x.shape[0], -1, 24)
        return functional.gelu(self.project(stacked))


class StackedFramesRight(StackedFrames):
    def whole(self, x):
        return x.shape[1] // 3 * 3


class Overlapping(nn.Module):
    """Windows of four frames, every second frame."""

    def __init__(self):
        super().__init__()
        self.window = nn.Parameter(torch.hann_window(4, periodic=False) + 0.1)
        self.project = nn.Linear(8, 5)

    def starts(self, x):
        return [2 * step for step in range((x.shape[1] - 4) // 2 + 1)]  # FAULT

    def forward(self, x):
        windows = [x[:, start : start + 4] * self.window[:, None] for start in self.starts(x)]
        energy = torch.stack([window.square().mean(1) for window in windows], dim=1)
        return self.project(torch.log1p(energy))


class OverlappingRight(Overlapping):
    def forward(self, x):
        starts = 2 * torch.arange((x.shape[1] - 4) // 2 + 1)
        windows = x[:, starts[:, None] + torch.arange(4)] * self.window[:, None]
        return self.project(torch.log1p(windows.square().mean(2)))


class MaskedMean(nn.Module):
    """The mask of the frames is made in a module of its own."""

    mask = staticmethod(layers.sequence_mask_frozen)

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6))

    def forward(self, x, lengths):
        encoded = self.encoder(x)
        mask = self.mask(lengths).to(encoded.dtype).unsqueeze(-1)
        return (encoded * mask).sum(1) / mask.sum(1)


class MaskedMeanRight(MaskedMean):
    mask = staticmethod(layers.sequence_mask)


class NormalizedRows(nn.Module):
    """Mean and variance over the frames of each row."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.conv = nn.Conv1d(8, 6, 3, padding=1)

    def forward(self, x):
        rows = []
        for row in x:  # FAULT
            row = (row - row.mean(0)) / (row.std(0) + 1e-3)
            rows.append(row * self.scale)
        return self.conv(torch.stack(rows).transpose(1, 2)).transpose(1, 2)


class NormalizedRowsRight(NormalizedRows):
    def forward(self, x):
        x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3)
        return self.conv((x * self.scale).transpose(1, 2)).transpose(1, 2)


class GatedByEnergy(nn.Module):
    """Loud audio is made quieter."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1, groups=4)
        self.out = nn.Linear(8, 4)

    def quieter(self, x):
        loudest = x.abs().max()
        if loudest > 0.5:  # FAULT
            x = x / loudest
        return x

    def forward(self, x):
        x = self.quieter(x)
        x = torch.relu(self.conv(x.transpose(1, 2)))
        return self.out(x.transpose(1, 2))


class GatedByEnergyRight(GatedByEnergy):
    def quieter(self, x):
        loudest = x.abs().max()
        return x / torch.where(loudest > 0.5, loudest, 1.0)


class StridedPadding(nn.Module):
    """The waveform is padded such that the strides of the encoder fit."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Conv1d(1, 6, 8, stride=4)
        self.decoder = nn.ConvTranspose1d(6, 1, 8, stride=4)

    def forward(self, wave):
        samples = wave.shape[-1]
        steps = math.ceil((samples - 8) / 4)  # FAULT
        padded = functional.pad(wave, (0, steps * 4 + 8 - samples))
        encoded = torch.relu(self.encoder(padded.unsqueeze(1)))
        return self.decoder(encoded).squeeze(1)[..., :samples]


class StridedPaddingRight(StridedPadding):
    def forward(self, wave):
        samples = wave.shape[-1]
        padded = functional.pad(wave, (0, -samples % 4))
        encoded = torch.relu(self.encoder(padded.unsqueeze(1)))
        return self.decoder(encoded).squeeze(1)[..., :samples]


class HalvedFrames(nn.Module):
    """Pyramid: the second layer sees half of the frames."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(16, 6)

    def halved(self, x):
        half = int(x.shape[1] * 0.5)  # FAULT
        return torch.cat([x[:, :half], x[:, half : 2 * half]], dim=-1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.second(self.halved(x))


class HalvedFramesRight(HalvedFrames):
    def halved(self, x):
        half = x.shape[1] // 2
        return torch.cat([x[:, :half], x[:, half : 2 * half]], dim=-1)


class LimitedLoudness(nn.Module):
    """Features are limited without a gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 6)
        self.limit = 0.5

    def limited(self, x):
        x = x * 2.0
        x.detach().clamp_(max=self.limit)  # FAULT
        return x

    def forward(self, x):
        x = self.limited(self.first(x))
        return torch.sigmoid(self.second(x))


class LimitedLoudnessRight(LimitedLoudness):
    def limited(self, x):
        return (x * 2.0).clamp(max=self.limit)


class StatisticsPooling(nn.Module):
    """Speaker embedding. Two mistakes: the count of the frames, and the weights of their positions."""

    def __init__(self):
        super().__init__()
        self.frame = nn.Conv1d(8, 10, 3, padding=1)
        self.embed = nn.Linear(20, 4)

    def positions(self, x):
        return torch.linspace(0.5, 1.0, int(x.shape[-1]))  # FAULT1

    def count(self, x):
        return float(x.shape[-1])  # FAULT2

    def forward(self, x):
        x = torch.relu(self.frame(x.transpose(1, 2)))
        mean = (x * self.positions(x)).sum(-1) / self.count(x)
        deviation = (x.square().mean(-1) + 1e-2).sqrt()
        return self.embed(torch.cat([mean, deviation], dim=-1))


class StatisticsPoolingRight(StatisticsPooling):
    def positions(self, x):
        time = x.shape[-1]
        return 0.5 + 0.5 * torch.arange(time) / (time - 1)

    def count(self, x):
        return x.shape[-1]


FAULTS = [
    line_fault(Subsampling, SubsamplingRight, frames, AXES, TS13, DYNAMO),
    line_fault(StackedFrames, StackedFramesRight, frames, AXES, TS14),
    line_fault(Overlapping, OverlappingRight, frames, AXES, TS15, DYNAMO),
    line_fault(MaskedMean, MaskedMeanRight, frames_and_lengths, POOLED, TS13, marked=layers.sequence_mask_frozen, **OF_TIME),
    line_fault(NormalizedRows, NormalizedRowsRight, frames, SAME, TS16),
    line_fault(GatedByEnergy, GatedByEnergyRight, frames, SAME, TS17),
    line_fault(
        StridedPadding, StridedPaddingRight, lambda: (torch.randn(2, 22),), {"wave": "batch time", "y": "batch time"}, TS13
    ),
    line_fault(HalvedFrames, HalvedFramesRight, frames, AXES, TS14, DYNAMO),
    line_fault(LimitedLoudness, LimitedLoudnessRight, frames, SAME, TS14),
    line_fault(StatisticsPooling, StatisticsPoolingRight, frames, {"x": "batch time _", "y": "batch _"}, TS15),
]
