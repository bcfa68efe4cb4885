"""The noise of each channel of an output whose channels differ in size, such as boxes in pixels beside scores from 0 to 1.

One number for the whole tensor would be that of the boxes, and hide errors of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from onnx_ci.pipeline.model.tensors import is_all_finite

APART = 16.0
"""From this ratio between the largest channel and the smallest on, one number does not fit both."""
ENOUGH = 16
"""The noise of a channel is measured if rounding shows in so many elements: fewer could all be right by chance."""


@dataclass(frozen=True, kw_only=True)
class ChannelNoise:
    """How much rounding changes each slice of an output along one axis."""

    axis: int
    noise: torch.Tensor
    """A float64 number for each index of ``axis``."""

    def spread_over(self, tensor: torch.Tensor) -> torch.Tensor:
        """The noise of each element of ``tensor``, which has the same channels."""
        shape = [len(self.noise) if axis == self.axis else 1 for axis in range(tensor.dim())]
        return self.noise.reshape(shape).expand(tensor.shape)

    def at_least(self, noise: torch.Tensor) -> Self:
        """The same, except that no channel has less than ``noise``: a number, or one for each of them."""
        return type(self)(axis=self.axis, noise=torch.maximum(self.noise, noise))

    def in_proportion(self, measured: torch.Tensor, output: torch.Tensor, noise: float) -> Self | None:
        """Twice the noise that ``output`` has if the noise of each channel, ``measured`` on another input, grows with its size.

        ``None`` if it has other channels. A channel that vanishes in one of them has the ``noise`` of the whole of ``output``.
        """
        if self.axis >= output.dim() or output.shape[self.axis] != len(self.noise):
            return None
        sizes, new_sizes = largest_of_channels(measured, self.axis), largest_of_channels(output, self.axis)
        proportion = torch.maximum(self.noise / sizes * new_sizes, new_sizes * torch.finfo(output.dtype).eps)
        return type(self)(axis=self.axis, noise=torch.where((sizes > 0) & (new_sizes > 0), 2 * proportion, noise))


def largest_of_channels(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The largest finite absolute value of each slice along ``axis``, in float64; 0 of one that is empty."""
    others = [each for each in range(tensor.dim()) if each != axis]
    if others and tensor.numel() and is_all_finite(tensor):
        return torch.maximum(tensor.amax(others), -tensor.amin(others)).double()
    values = tensor.double().abs().movedim(axis, 0).flatten(1)
    finite = torch.where(torch.isfinite(values), values, 0.0)
    return finite.amax(1) if finite.shape[1] else finite.sum(1)


def channels_apart(own: torch.Tensor) -> int | None:
    """The axis whose channels differ in size, of an output of a floating type; ``None`` if those of no axis do."""
    best, best_ratio = None, APART
    for axis in range(own.dim() if own.numel() else 0):
        if own.shape[axis] > 1 and own.numel() // own.shape[axis] >= ENOUGH:
            sizes = largest_of_channels(own, axis)
            ratio = (sizes.max() / sizes[sizes > 0].min()).item() if bool((sizes > 0).any()) else 0.0
            if ratio > best_ratio:
                best, best_ratio = axis, ratio
    return best


def channel_noise(own: torch.Tensor, spread: torch.Tensor, noise: float) -> ChannelNoise | None:
    """The noise of each channel; ``None`` if the channels of the output, of a floating type, do not differ in size.

    ``spread`` is how much rounding changes each element, and ``noise`` that of the whole output, also for a channel in which
    too few elements show rounding.
    """
    axis = channels_apart(own)
    if axis is None:
        return None
    of_channels, sizes_of_channels = spread.movedim(axis, 0).flatten(1), largest_of_channels(own, axis)
    least = sizes_of_channels / sizes_of_channels.max() * noise  # in proportion, no channel is more precise than the whole
    measured = torch.maximum(of_channels.amax(1), least)
    return ChannelNoise(axis=axis, noise=torch.where((of_channels > 0).sum(1) >= ENOUGH, measured, noise))
