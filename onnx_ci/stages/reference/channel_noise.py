"""Noise for each channel of an output whose channels differ in size, such as boxes in pixels beside scores from 0 to 1.

One number for the whole tensor would be that of the boxes, and hide errors of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

APART = 16.0
"""How many times larger the largest channel is than the smallest, so that one number does not fit both."""

ENOUGH = 16
"""In so many elements of a channel, at least, rounding shows: fewer could all be right by chance."""


@dataclass(frozen=True, kw_only=True)
class ChannelNoise:
    """How much rounding changes each slice of an output along one axis."""

    axis: int
    noise: torch.Tensor
    """A float64 number for each index of ``axis``."""

    @property
    def count(self) -> int:
        """The number of channels."""
        return len(self.noise)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the same channels."""
        return self.axis < tensor.dim() and tensor.shape[self.axis] == self.count

    def spread_over(self, tensor: torch.Tensor) -> torch.Tensor:
        """The noise of each element of ``tensor``, which has the same channels."""
        shape = [self.count if axis == self.axis else 1 for axis in range(tensor.dim())]
        return self.noise.reshape(shape).expand(tensor.shape)

    def at_least(self, noise: torch.Tensor) -> Self:
        """The same, except that no channel has less than ``noise``: a number, or one for each of them."""
        return type(self)(axis=self.axis, noise=torch.maximum(self.noise, noise))

    def in_proportion(self, own: torch.Tensor, other: torch.Tensor, noise: float) -> Self:
        """Twice the noise of ``other``, which has the same channels as ``own``, in proportion to their sizes.

        Args:
            own: the output that this is the noise of.
            other: the same output on another input.
            noise: twice the noise of the whole of ``other``; that of a channel that vanishes in ``own``.
        """
        sizes, others = largest_of_channels(own, self.axis), largest_of_channels(other, self.axis)
        proportion = torch.maximum(self.noise / sizes * others, others * torch.finfo(other.dtype).eps)
        return type(self)(axis=self.axis, noise=torch.where(sizes > 0, 2 * proportion, noise))


def largest_of_channels(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The largest finite absolute value of each slice along ``axis``, in float64."""
    values = tensor.double().abs().movedim(axis, 0).flatten(1)
    return torch.where(torch.isfinite(values), values, 0.0).amax(1)


def channel_noise(own: torch.Tensor, spread: torch.Tensor, noise: float) -> ChannelNoise | None:
    """The noise of each channel; ``None`` if the channels of the output do not differ in size.

    Args:
        own: the output, of a floating type.
        spread: how much rounding changes each of its elements, in float64.
        noise: the noise of the whole output; that of a channel in which too few elements show their rounding.
    """
    best, ratio = None, APART
    for axis in range(own.dim() if own.numel() else 0):
        if own.shape[axis] > 1 and own.numel() // own.shape[axis] >= ENOUGH:
            sizes = largest_of_channels(own, axis)
            small = sizes[sizes > 0].min().item() if bool((sizes > 0).any()) else 0.0
            if small and sizes.max().item() / small > ratio:
                best, ratio = axis, sizes.max().item() / small
    if best is None:
        return None
    sizes = largest_of_channels(own, best)
    showing = (spread.movedim(best, 0).flatten(1) > 0).sum(1)
    least = sizes / sizes.max() * noise  # a channel is not more precise than the whole, in proportion
    measured = torch.maximum(spread.movedim(best, 0).flatten(1).amax(1), least)
    return ChannelNoise(axis=best, noise=torch.where(showing >= ENOUGH, measured, noise))
