"""Mistakes in forecasting: horizons, periods and patches."""

from __future__ import annotations

import math

import numpy as np
import torch
from faults.lines.line_fault import DYNAMO, TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn
from torch.nn import functional


def series() -> tuple[torch.Tensor]:
    return (torch.randn(3, 12, 4),)


SAME = {"x": "batch time _", "y": "batch time _"}
SUMMARY = {"x": "batch time _", "y": "batch _"}


class Decomposition(nn.Module):
    """Trend by a moving average whose width is a quarter of the series, and the rest."""

    def __init__(self):
        super().__init__()
        self.trend, self.rest = nn.Linear(4, 4), nn.Linear(4, 4)

    def smoothed(self, x):
        width = 2 * int(x.shape[1] // 8) + 1  # FAULT
        front, back = x[:, :1].repeat(1, width // 2, 1), x[:, -1:].repeat(1, width // 2, 1)
        padded = torch.cat([front, x, back], dim=1)
        return functional.avg_pool1d(padded.transpose(1, 2), width, stride=1).transpose(1, 2)

    def forward(self, x):
        trend = self.smoothed(x)
        return self.trend(trend) + torch.tanh(self.rest(x - trend))


class DecompositionRight(Decomposition):
    def smoothed(self, x):
        half = x.shape[1] // 8
        steps = torch.arange(x.shape[1])
        sums = torch.zeros_like(x)
        offsets = torch.arange(-x.shape[1] + 1, x.shape[1])
        indices = (steps[:, None] + offsets).clamp(min=0).minimum(steps[-1])
        within = (offsets.abs() <= half).float()
        sums = torch.einsum("bsod,o->bsd", x[:, indices], within)
        return sums / (2 * half + 1)


class MainPeriod(nn.Module):
    """The series is shifted by its strongest period."""

    def __init__(self):
        super().__init__()
        self.encode, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def shifted(self, x):
        power = torch.stack([(x[:, lag:] * x[:, :-lag]).sum() for lag in (1, 2, 3)])
        lag = int(power.argmax()) + 1  # FAULT
        return torch.cat([x[:, lag:], x[:, :lag]], dim=1)

    def forward(self, x):
        x = self.encode(x)
        return self.out(torch.relu(x + self.shifted(x)))


class MainPeriodRight(MainPeriod):
    def shifted(self, x):
        power = torch.stack([(x[:, lag:] * x[:, :-lag]).sum() for lag in (1, 2, 3)])
        time = x.shape[1]
        return x[:, (torch.arange(time) + power.argmax() + 1) % time]


class Normalization(nn.Module):
    """Each series is normalized, unless one of them is constant."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.layer = nn.Linear(4, 4)

    def normalized(self, x):
        deviation = x.std(1, keepdim=True)
        if deviation.min() > 1e-3:  # FAULT
            x = (x - x.mean(1, keepdim=True)) / deviation
        return x * self.scale

    def forward(self, x):
        return torch.tanh(self.layer(self.normalized(x)))


class NormalizationRight(Normalization):
    def normalized(self, x):
        deviation = x.std(1, keepdim=True)
        varies = deviation.min() > 1e-3
        normalized = (x - x.mean(1, keepdim=True)) / torch.where(varies, deviation, 1.0)
        return torch.where(varies, normalized, x) * self.scale


class Patches(nn.Module):
    """Patches of five steps; the last value is repeated to fill the last one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(20, 6)
        self.mix = nn.Linear(6, 6)

    def filled(self, x):
        missing = int((5 - x.shape[1] % 5) % 5)  # FAULT
        return torch.cat([x, x[:, -1:].expand(-1, missing, -1)], dim=1)

    def forward(self, x):
        patches = self.filled(x).reshape(x.shape[0], -1, 20)
        embedded = functional.gelu(self.embed(patches))
        return embedded + self.mix(embedded.mean(1, keepdim=True))


class PatchesRight(Patches):
    def filled(self, x):
        missing = (5 - x.shape[1] % 5) % 5
        return torch.cat([x, x[:, -1:].expand(-1, missing, -1)], dim=1)


class TrendBasis(nn.Module):
    """Polynomials of the time, whose coefficients are predicted."""

    def __init__(self):
        super().__init__()
        self.coefficients = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def basis(self, steps):
        grid = np.arange(steps) / steps  # FAULT
        powers = np.stack([grid**power for power in range(3)])
        return torch.tensor(powers, dtype=torch.float32)

    def forward(self, x):
        coefficients = self.coefficients(x.mean(1))
        return coefficients @ self.basis(x.shape[1])


class TrendBasisRight(TrendBasis):
    def basis(self, steps):
        grid = torch.arange(steps) / steps
        return torch.stack([torch.ones_like(grid), grid, grid * grid])


class Autoregressive(nn.Module):
    """As many steps are predicted as half of the history has, each from the one before."""

    def __init__(self):
        super().__init__()
        self.encode, self.step = nn.Linear(4, 5), nn.Linear(5, 5)
        self.out = nn.Linear(5, 1)

    def predictions(self, state, steps):
        predictions = []
        while len(predictions) < steps:  # FAULT
            state = state + 0.5 * torch.tanh(self.step(state))
            predictions.append(self.out(state))
        return torch.cat(predictions, dim=1)

    def forward(self, x):
        state = torch.tanh(self.encode(x)).mean(1)
        return self.predictions(state, x.shape[1] // 2)


class ResidualForecast(nn.Module):
    """The last value is repeated over a horizon as long as the history."""

    def __init__(self):
        super().__init__()
        self.season = nn.Conv1d(4, 4, 3, padding=1)

    def repeated(self, x):
        return torch.cat([x[:, -1:]] * x.shape[1], dim=1)  # FAULT

    def forward(self, x):
        season = self.season(x.transpose(1, 2)).transpose(1, 2)
        return self.repeated(x) + torch.tanh(season)


class ResidualForecastRight(ResidualForecast):
    def repeated(self, x):
        return x[:, -1:].expand(-1, x.shape[1], -1)


class SeasonFolded(nn.Module):
    """The series is folded by its season, a third of its length."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.conv = nn.Conv2d(4, 3, 3, padding=1)

    def folded(self, x):
        season = int(x.shape[1] / 3)  # FAULT
        return x.reshape(x.shape[0], -1, season, 4)

    def forward(self, x):
        folded = self.folded(self.embed(x)).permute(0, 3, 1, 2)
        return torch.relu(self.conv(folded)).amax(2)


class SeasonFoldedRight(SeasonFolded):
    def folded(self, x):
        return x.reshape(x.shape[0], 3, -1, 4)


class LagFeatures(nn.Module):
    """A step and the one before it; they are written into zeros."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 5)
        self.start = nn.Parameter(torch.randn(4))

    def lagged(self, x):
        lagged = torch.zeros_like(x)
        lagged[:, 0] = self.start
        for step in range(int(x.shape[1]) - 1):  # FAULT
            lagged[:, step + 1] = x[:, step]
        return lagged

    def forward(self, x):
        return torch.relu(self.layer(torch.cat([x, self.lagged(x)], dim=-1)))


class LagFeaturesRight(LagFeatures):
    def lagged(self, x):
        start = self.start.expand(x.shape[0], 1, -1)
        return torch.cat([start, x[:, :-1]], dim=1)


class Anomalies(nn.Module):
    """Two mistakes: the largest value is a number, and the time of each step is an array."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(4, 6), nn.Linear(6, 1)

    def scaled(self, x):
        return x / x.abs().max().item()  # FAULT1

    def weights(self, x):
        return torch.tensor([1 / (1 + step) for step in range(x.shape[1])])  # FAULT2

    def forward(self, x):
        x = torch.tanh(self.layer(self.scaled(x)))
        return self.out(x).squeeze(-1) * self.weights(x)


class AnomaliesRight(Anomalies):
    def scaled(self, x):
        return x / x.abs().max()

    def weights(self, x):
        return 1 / (1 + torch.arange(x.shape[1]))


class Windows(nn.Module):
    """The largest value of each window, after padding to whole windows."""

    def padded(self, x):
        windows = x.shape[1] / 4
        if windows.is_integer():  # FAULT
            return x
        return functional.pad(x, (0, 0, 0, math.ceil(windows) * 4 - x.shape[1]))

    def forward(self, x):
        return self.padded(torch.relu(x)).unflatten(1, (-1, 4)).amax(2)


class WindowsRight(Windows):
    def padded(self, x):
        return functional.pad(x, (0, 0, 0, -x.shape[1] % 4))


class AutoregressiveRight(Autoregressive):
    """As many steps as the longest history needs, of which those that are not wanted are dropped."""

    def predictions(self, state, steps):
        predictions = []
        for _ in range(16):
            state = state + 0.5 * torch.tanh(self.step(state))
            predictions.append(self.out(state))
        return torch.cat(predictions, dim=1)[:, :steps]


class Ramp(nn.Module):
    """Each step gets the share of the series that is over. Of a single step, the model makes nothing but NaN."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.head = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 2)

    def ramp(self, steps):
        return torch.from_numpy(np.arange(steps, dtype=np.float32) / np.float32(steps - 1))  # FAULT

    def forward(self, x):
        share = self.ramp(x.shape[1])[None, :, None].expand(x.shape[0], -1, 1)
        return self.head(self.recurrent(torch.cat([x, share], -1))[0].mean(1))


class RampRight(Ramp):
    def ramp(self, steps):
        return torch.arange(steps) / (steps - 1)


FAULTS = [
    line_fault(Decomposition, DecompositionRight, series, SAME, TS13, DYNAMO),
    line_fault(MainPeriod, MainPeriodRight, series, SAME, TS14),
    line_fault(Normalization, NormalizationRight, series, SAME, TS15),
    line_fault(Patches, PatchesRight, series, {"x": "batch time _", "y": "batch patches _"}, TS16, DYNAMO),
    line_fault(TrendBasis, TrendBasisRight, series, {"x": "batch time _", "y": "batch time"}, TS17, DYNAMO),
    line_fault(
        Autoregressive,
        AutoregressiveRight,
        series,
        {"x": "batch time _", "y": "batch horizon"},
        TS13,
        DYNAMO,
        dynamic_sizes={"time": range(2, 32)},
    ),
    line_fault(ResidualForecast, ResidualForecastRight, series, SAME, TS14),
    line_fault(SeasonFolded, SeasonFoldedRight, series, {"x": "batch 3*season _", "y": "batch _ season"}, TS15, DYNAMO),
    line_fault(LagFeatures, LagFeaturesRight, series, SAME, TS16),
    line_fault(Ramp, RampRight, lambda: (torch.randn(2, 9, 4),), {"x": "batch time _", "y": "batch _"}, TS17),
    line_fault(Anomalies, AnomaliesRight, series, {"x": "batch time _", "y": "batch time"}, TS13),
]
