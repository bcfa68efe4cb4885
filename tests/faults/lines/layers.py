"""Functions that several models share, as in a project's own ``utils.py``; each with a mistake, and without it."""

from __future__ import annotations

import torch


def angles(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    turns = positions.float()[:, None] * torch.tensor([1.0, 0.1])
    return turns.cos(), turns.sin()


def rotate_frozen(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions of heads of four."""
    steps = torch.arange(int(x.shape[-2]), device=x.device)  # FAULT
    cos, sin = angles(steps)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def rotate(x: torch.Tensor) -> torch.Tensor:
    cos, sin = angles(torch.arange(x.shape[-2], device=x.device))
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def sequence_mask_frozen(lengths: torch.Tensor) -> torch.Tensor:
    """True for the steps of each row."""
    longest = int(lengths.max())  # FAULT
    return torch.arange(longest)[None, :] < lengths[:, None]


def sequence_mask(lengths: torch.Tensor) -> torch.Tensor:
    return torch.arange(lengths.max())[None, :] < lengths[:, None]


def pad_frozen(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Pad height and width of images to a multiple."""
    height, width = (int(size) for size in x.shape[-2:])  # FAULT
    right = (multiple - width % multiple) % multiple
    below = (multiple - height % multiple) % multiple
    return torch.nn.functional.pad(x, (0, right, 0, below))


def pad(x: torch.Tensor, multiple: int) -> torch.Tensor:
    height, width = x.shape[-2:]
    return torch.nn.functional.pad(x, (0, -width % multiple, 0, -height % multiple))


def segment_sum_frozen(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """The sum of the rows of each segment, up to the largest one."""
    count = segments.max().item() + 1  # FAULT
    total = torch.zeros(count, values.shape[-1], dtype=values.dtype)
    return total.scatter_add(0, segments[:, None].expand(-1, values.shape[-1]), values)


def segment_sum(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    count = segments.max() + 1
    total = torch.zeros(count, values.shape[-1], dtype=values.dtype)
    return total.scatter_add(0, segments[:, None].expand(-1, values.shape[-1]), values)
