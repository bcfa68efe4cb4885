"""Mistakes in vision transformers: tokens, windows and grids."""

from __future__ import annotations

import math

import torch
from faults.lines.line_fault import DYNAMO, TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn
from torch.nn import functional

IMAGE = {"x": "batch _ 4*rows 4*columns", "y": "batch _"}
TOKENS = {"x": "batch tokens _", "y": "batch tokens _"}


def image() -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, 8, 12),)


def square() -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, 8, 8),)


class Embedding(nn.Module):
    """Patches of four pixels, a class token and positions."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 4, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def tokens(self, x):
        return self.token.expand(x.shape[0], -1, -1)

    def positions(self, features):
        height, width = features.shape[-2:]
        grid = self.position.reshape(1, 2, 2, 8).permute(0, 3, 1, 2)
        resized = functional.interpolate(grid, size=(height, width), mode="bilinear", align_corners=False)
        return resized.flatten(2).transpose(1, 2)

    def forward(self, x):
        features = self.patches(x)
        patches = features.flatten(2).transpose(1, 2)
        sequence = torch.cat([self.tokens(x), patches + self.positions(features)], dim=1)
        scores = sequence @ sequence.transpose(1, 2) / math.sqrt(8)
        mixed = torch.softmax(scores, dim=-1) @ sequence
        return self.head(self.norm(mixed[:, 0]))


class ClassToken(Embedding):
    def tokens(self, x):
        return self.token.repeat(int(x.size(0)), 1, 1)  # FAULT


class InterpolatedPositions(Embedding):
    """Positions are only resized if the image is not of the size of the training."""

    def positions(self, features):
        height, width = features.shape[-2:]
        if height * width == self.position.shape[1]:  # FAULT
            return self.position
        return super().positions(features)


class ScaledPositions(Embedding):
    def positions(self, features):
        height, width = features.shape[-2:]
        grid = self.position.reshape(1, 2, 2, 8).permute(0, 3, 1, 2)
        scale = (float(height) / 2, float(width) / 2)  # FAULT
        resized = functional.interpolate(grid, scale_factor=scale, mode="bilinear", align_corners=False)
        return resized.flatten(2).transpose(1, 2)


class CachedPositions(Embedding):
    """Positions are kept until the size of the image changes."""

    def __init__(self):
        super().__init__()
        self.kept = None

    def positions(self, features):
        if self.kept is None or self.kept.shape[1] != features.shape[2] * features.shape[3]:  # FAULT
            self.kept = super().positions(features).detach()
        return self.kept


class SlicedPositions(nn.Module):
    """A table of positions for the longest sequence, of which the first are used."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 40, 8))
        self.mix = nn.Linear(8, 8)

    def embedded(self, x):
        _, length, _ = x.size()
        return x + self.table[:, : int(length)]  # FAULT

    def forward(self, x):
        x = torch.relu(self.mix(self.embedded(x)))
        return x - x.mean(1, keepdim=True)


class SlicedPositionsRight(SlicedPositions):
    def embedded(self, x):
        _, length, _ = x.size()
        return x + self.table[:, :length]


class Windows(nn.Module):
    """Swin: attention within windows of four by four."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 4, 1)

    def windows(self, x):
        batch, channels, height, width = x.shape
        x = x.reshape(batch, channels, height // 4, 4, width // 4, 4)
        return x.permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, channels)

    def merged(self, windows, x):
        batch, channels, height, width = x.shape
        x = windows.reshape(batch, height // 4, width // 4, 4, 4, channels)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, height, width)

    def forward(self, x):
        x = self.embed(x)
        windows = self.windows(x)
        scores = torch.softmax(windows @ windows.transpose(1, 2), dim=-1)
        return torch.relu(self.out(self.merged(scores @ windows, x)))


class FrozenWindows(Windows):
    """The batch is the count of the windows divided by that of one image, which is a number."""

    def merged(self, windows, x):
        _, channels, height, width = x.shape
        batch = int(windows.shape[0] / (height * width / 16))  # FAULT
        x = windows.reshape(batch, height // 4, width // 4, 4, 4, channels)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, height, width)


class SwappedWindows(Windows):
    """The rows of windows are a number; the columns follow from it, in the wrong order for another height."""

    def merged(self, windows, x):
        batch, channels, height, width = x.shape
        rows = round(float(height) / 4)  # FAULT
        x = windows.reshape(batch, rows, -1, 4, 4, channels)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, height, width)


class ShiftedMask(Windows):
    """The mask of the windows is filled slice by slice."""

    def mask(self, x):
        height, width = int(x.shape[2]), int(x.shape[3])  # FAULT
        regions = torch.zeros(height, width)
        regions[:-2, :] += 1
        regions[:, :-2] += 2
        return regions

    def forward(self, x):
        x = self.embed(x)
        x = x * (self.mask(x) + 1)
        windows = self.windows(x)
        return torch.relu(self.out(self.merged(windows.softmax(-1), x)))


class ShiftedMaskRight(ShiftedMask):
    def mask(self, x):
        rows, columns = torch.arange(x.shape[2]), torch.arange(x.shape[3])
        return (rows < x.shape[2] - 2)[:, None].float() + 2 * (columns < x.shape[3] - 2).float()


class SquareGrid(nn.Module):
    """Tokens become an image again, whose side is the root of their count."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.conv = nn.Conv2d(8, 4, 3, padding=1)

    def grid(self, x):
        side = int(math.sqrt(x.shape[1]))  # FAULT
        return x.transpose(1, 2).reshape(x.shape[0], 8, -1, side)

    def forward(self, x):
        return torch.relu(self.conv(self.grid(self.norm(x)))).mean((2, 3))


class SquareGridRight(SquareGrid):
    def grid(self, x):
        side = torch.ones(x.shape[1]).sum().sqrt().round().long()
        index = torch.arange(side)
        return x.transpose(1, 2)[:, :, index[:, None] * side + index]


class PrunedTokens(nn.Module):
    """The tokens with the largest norms are kept."""

    def __init__(self):
        super().__init__()
        self.score, self.out = nn.Linear(8, 1), nn.Linear(8, 4)

    def pruned(self, x):
        keep = math.ceil(0.5 * x.shape[1])  # FAULT
        kept = self.score(x).squeeze(-1).topk(keep, dim=1).indices
        return torch.gather(x, 1, kept[..., None].expand(-1, -1, 8))

    def forward(self, x):
        return torch.tanh(self.out(self.pruned(x))).sum(1)


class PrunedTokensRight(PrunedTokens):
    def pruned(self, x):
        keep = (x.shape[1] + 1) // 2
        kept = self.score(x).squeeze(-1).argsort(dim=1, descending=True)[:, :keep]
        return torch.gather(x, 1, kept[..., None].expand(-1, -1, 8))


class EarlyToken(nn.Module):
    """The class token is taken before positions are added to all tokens in place, which it sees in PyTorch."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.position = nn.Parameter(torch.randn(8))

    def pooled(self, tokens):
        first = tokens[:, 0]
        tokens += self.position  # FAULT
        return first + tokens.mean(1)

    def forward(self, x):
        tokens = torch.relu(self.embed(x))
        return self.head(self.pooled(tokens + 1))


class EarlyTokenRight(EarlyToken):
    def pooled(self, tokens):
        tokens = tokens + self.position
        return tokens[:, 0] + tokens.mean(1)


class BrightWindows(Windows):
    """Two mistakes: the count of the windows of an image, and the mean of the example's pixels."""

    def merged(self, windows, x):
        _, channels, height, width = x.shape
        batch = windows.shape[0] * 16 // int(height * width)  # FAULT1
        x = windows.reshape(-1, height // 4, width // 4, 4, 4, channels)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, height, width)

    def brightened(self, x):
        return x / float(x.mean())  # FAULT2

    def forward(self, x):
        return super().forward(self.brightened(x))


class BrightWindowsRight(Windows):
    def forward(self, x):
        return super().forward(x / x.mean())


MAPS = {"x": "batch _ 4*rows 4*columns", "y": "batch _ 4*rows 4*columns"}

FAULTS = [
    line_fault(ClassToken, Embedding, image, IMAGE, TS13),
    line_fault(InterpolatedPositions, Embedding, square, IMAGE, TS14, DYNAMO),
    line_fault(ScaledPositions, Embedding, image, IMAGE, TS15, DYNAMO),
    line_fault(CachedPositions, Embedding, image, IMAGE, TS16, DYNAMO, is_run_first=True),
    line_fault(
        SlicedPositions,
        SlicedPositionsRight,
        lambda: (torch.randn(2, 6, 8),),
        TOKENS,
        TS17,
        dynamic_sizes={"tokens": range(1, 41)},
    ),
    line_fault(FrozenWindows, Windows, image, MAPS, TS13),
    line_fault(SwappedWindows, Windows, image, MAPS, TS14),
    line_fault(ShiftedMask, ShiftedMaskRight, image, MAPS, TS15),
    line_fault(
        SquareGrid,
        SquareGridRight,
        lambda: (torch.randn(2, 9, 8),),
        {"x": "batch tokens _", "y": "batch _"},
        TS16,
        dynamic_sizes={"tokens": [16, 4, 25]},
    ),
    line_fault(PrunedTokens, PrunedTokensRight, lambda: (torch.randn(2, 7, 8),), {"x": "batch tokens _", "y": "batch _"}, TS13),
    line_fault(EarlyToken, EarlyTokenRight, lambda: (torch.randn(2, 6, 8),), {"x": "batch tokens _", "y": "batch _"}, TS15),
    line_fault(BrightWindows, BrightWindowsRight, lambda: (torch.rand(2, 3, 8, 12) + 0.2,), MAPS, TS14),
]
