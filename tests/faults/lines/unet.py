"""Mistakes in models that go down to a coarse image and up again."""

from __future__ import annotations

import numpy as np
import torch
from faults.lines.line_fault import DYNAMO, TS13, TS14, TS15, TS16, TS17, line_fault
from torch import nn
from torch.nn import functional


def image() -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, 8, 12),)


def odd_image() -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, 9, 11),)


SAME = {"x": "batch _ height width", "y": "batch _ height width"}
POOLED = {"x": "batch _ height width", "y": "batch _"}


class Net(nn.Module):
    """One level: half of the size, and back."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 2, 1)

    def joined(self, skip, up):
        return torch.cat([skip, up], dim=1)

    def forward(self, x):
        skip = torch.relu(self.inner(x))
        down = torch.relu(self.down(skip))
        up = self.up(down)
        return self.last(self.joined(skip, up))


class CroppedSkip(Net):
    def joined(self, skip, up):
        height, width = int(skip.shape[2]), int(skip.shape[3])  # FAULT
        return torch.cat([skip, up[:, :, :height, :width]], dim=1)


class CroppedSkipRight(Net):
    def joined(self, skip, up):
        return torch.cat([skip, up[:, :, : skip.shape[2], : skip.shape[3]]], dim=1)


class PaddedSkip(Net):
    """The upper level is padded to the size of the lower one, as in the best known U-Net for PyTorch."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(4, 6, 2, stride=2)

    def joined(self, skip, up):
        rows, columns = torch.tensor([skip.size(2) - up.size(2), skip.size(3) - up.size(3)])  # FAULT
        up = functional.pad(up, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return torch.cat([skip, up], dim=1)


class PaddedSkipRight(PaddedSkip):
    def joined(self, skip, up):
        rows, columns = skip.size(2) - up.size(2), skip.size(3) - up.size(3)
        up = functional.pad(up, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return torch.cat([skip, up], dim=1)


class EvenSize(Net):
    """Images of an odd height or width are padded first, and cropped last."""

    def padded(self, x):
        if x.shape[2] % 2 or x.shape[3] % 2:  # FAULT
            x = functional.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2), value=1.0)
        return x

    def forward(self, x):
        height, width = x.shape[-2:]
        return super().forward(self.padded(x))[..., :height, :width]


class EvenSizeRight(EvenSize):
    def padded(self, x):
        return functional.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2), value=1.0)


class GlobalPooling(Net):
    """The whole image decides the weight of each channel."""

    def __init__(self):
        super().__init__()
        self.weigh = nn.Linear(4, 4)

    def pooled(self, skip):
        return functional.avg_pool2d(skip, [int(size) for size in skip.shape[2:]])  # FAULT

    def joined(self, skip, up):
        weights = self.weigh(self.pooled(skip).flatten(1)).sigmoid()
        return torch.cat([skip * weights[:, :, None, None], up], dim=1)


class GlobalPoolingRight(GlobalPooling):
    def pooled(self, skip):
        return skip.mean((2, 3))


class Coordinates(nn.Module):
    """CoordConv: the position of each pixel is a channel."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(5, 6, 3, padding=1)
        self.last = nn.Conv2d(6, 2, 1)

    def coordinates(self, x):
        height, width = x.shape[-2:]
        rows = np.linspace(-1, 1, height, dtype=np.float32)  # FAULT
        columns = 2 * torch.arange(width) / (width - 1) - 1
        rows = torch.as_tensor(rows)[:, None] + torch.zeros_like(columns)
        return torch.stack([rows, columns + torch.zeros_like(rows)]).expand(x.shape[0], -1, -1, -1)

    def forward(self, x):
        x = torch.cat([x, self.coordinates(x)], dim=1)
        return self.last(functional.silu(self.conv(x)))


class CoordinatesRight(Coordinates):
    def coordinates(self, x):
        height, width = x.shape[-2:]
        columns = 2 * torch.arange(width) / (width - 1) - 1
        rows = (2 * torch.arange(height) / (height - 1) - 1)[:, None] + torch.zeros_like(columns)
        return torch.stack([rows, columns + torch.zeros_like(rows)]).expand(x.shape[0], -1, -1, -1)


class TimeStep(Net):
    """Diffusion: the step scales the features."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 6))

    def embedding(self, step):
        angles = step.item() * torch.tensor([1.0, 0.3])  # FAULT
        return self.embed(torch.cat([angles.sin(), angles.cos()]))

    def forward(self, x, step):
        skip = torch.relu(self.inner(x))
        down = functional.silu(self.down(skip))
        down = down * self.embedding(step)[:, None, None]
        return self.last(self.joined(skip, self.up(down)))


class TimeStepRight(TimeStep):
    def embedding(self, step):
        angles = step * torch.tensor([1.0, 0.3])
        return self.embed(torch.cat([angles.sin(), angles.cos()]))


class Interleaved(nn.Module):
    """Two images are interleaved row by row, written into an empty one."""

    def __init__(self):
        super().__init__()
        self.even, self.odd = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)

    def interleaved(self, even, odd):
        batch, channels, height, width = even.shape
        result = torch.zeros(batch, channels, 2 * height, width)
        result[:, :, 0::2] = even
        rows = result.transpose(2, 3)[..., 1::2]
        rows[:] = odd.transpose(2, 3)  # FAULT
        return result

    def forward(self, x):
        return torch.tanh(self.interleaved(self.even(x), self.odd(x)))


class InterleavedRight(Interleaved):
    def interleaved(self, even, odd):
        return torch.stack([even, odd], dim=3).flatten(2, 3)


class Squeeze(Net):
    """The bottleneck is flattened with a frozen batch."""

    def squeezed(self, down):
        batch, channels = down.size()[:2]
        return down.view(len(down), channels, -1).mean(-1).view(batch, channels, 1, 1)  # FAULT

    def forward(self, x):
        skip = torch.relu(self.inner(x))
        down = self.down(skip)
        down = down * self.squeezed(down).sigmoid()
        return self.last(self.joined(skip, self.up(torch.relu(down))))


class SqueezeRight(Squeeze):
    def squeezed(self, down):
        return down.mean((2, 3), keepdim=True)


class Tiled(Net):
    """The image is cut into tiles, with rows and columns in an order that only square images have."""

    def tiles(self, x):
        batch, channels, height, width = x.shape
        rows, columns = int(height) // 4, width // 4  # FAULT
        return x.reshape(batch, channels, rows, -1, columns, 4).transpose(3, 4).flatten(2, 3)

    def forward(self, x):
        tiles = self.tiles(torch.relu(self.inner(x)))
        return tiles.amax((-1, -2)).tanh()


class TiledRight(Tiled):
    def tiles(self, x):
        batch, channels, height, width = x.shape
        return x.reshape(batch, channels, height // 4, -1, width // 4, 4).transpose(3, 4).flatten(2, 3)


class ResizedTwice(Net):
    """Two mistakes: the size of the coarse image, and a branch on the shape of the fine one."""

    def coarse(self, x):
        size = (int(x.shape[2] / 2), int(x.shape[3] / 2))  # FAULT1
        return functional.interpolate(x, size=size)

    def oriented(self, x):
        if x.shape[2] > x.shape[3]:  # FAULT2
            x = x.flip(2)
        return x

    def forward(self, x):
        x = torch.relu(self.inner(self.oriented(x)))
        return functional.interpolate(self.coarse(x), scale_factor=2.0) + 1


class ResizedTwiceRight(ResizedTwice):
    def coarse(self, x):
        return functional.interpolate(x, size=(x.shape[2] // 2, x.shape[3] // 2))

    def oriented(self, x):
        taller = torch.ones(x.shape[2]).sum() > torch.ones(x.shape[3]).sum()
        return torch.where(taller, x.flip(2), x)


FAULTS = [
    line_fault(CroppedSkip, CroppedSkipRight, odd_image, SAME, TS13),
    line_fault(PaddedSkip, PaddedSkipRight, odd_image, SAME, TS14),
    line_fault(EvenSize, EvenSizeRight, image, SAME, TS15, DYNAMO),
    line_fault(GlobalPooling, GlobalPoolingRight, image, {"x": "batch _ 2*height _", "y": "batch _ 2*height _"}, TS16),
    line_fault(Coordinates, CoordinatesRight, image, SAME, TS17),
    line_fault(
        TimeStep,
        TimeStepRight,
        lambda: (torch.randn(2, 3, 8, 8), torch.tensor(0.7)),
        {"x": "batch _ _ _", "step": "", "y": "batch _ _ _"},
        TS14,
    ),
    line_fault(Interleaved, InterleavedRight, image, {"x": "batch _ height _", "y": "batch _ 2*height _"}, TS13),
    line_fault(Squeeze, SqueezeRight, image, {"x": "batch _ _ _", "y": "batch _ _ _"}, TS15),
    line_fault(
        Tiled,
        TiledRight,
        image,
        {"x": "batch _ 4*height 4*width", "y": "batch _ tiles"},
        TS13,
    ),
    line_fault(
        ResizedTwice,
        ResizedTwiceRight,
        image,
        {"x": "batch _ 2*height 2*width", "y": "batch _ 2*height 2*width"},
        TS16,
        DYNAMO,
    ),
]
