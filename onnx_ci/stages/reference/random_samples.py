"""What is kept of the runs of a random model, and how often it is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

ROUNDS = 24
"""How many rounds of a random model are compared with as many of the file: few enough to try all 2**24 ways to swap them."""

FEW, MOST_RUNS = 64, 8
"""A round is one run, or as many as give this many elements of the smallest output, but not more than the second number."""

KEPT = 2**14
"""How many elements of an output are kept of each run."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One output of one run."""

    shape: torch.Size
    values: torch.Tensor
    """Its elements, flattened; of a larger output than :data:`KEPT`, that many, the same in each run."""


def sample_of(tensor: torch.Tensor) -> Sample:
    """What is kept of an output."""
    kept = _kept(tensor.numel())
    values = tensor.flatten()
    return Sample(shape=tensor.shape, values=values if kept is None else values[kept])


def index_of(sample: Sample, position: int) -> list[int]:
    """The index in the output of the kept element at ``position``."""
    kept = _kept(math.prod(sample.shape))
    place = position if kept is None else int(kept[position])
    return [int(each) for each in torch.unravel_index(torch.tensor(place), sample.shape)]


def _kept(count: int) -> torch.Tensor | None:
    if count <= KEPT:
        return None
    return torch.randint(0, count, (KEPT,), generator=torch.Generator().manual_seed(0))


def runs_needed(outputs: Sequence[torch.Tensor]) -> int:
    """How often a model with such outputs is run."""
    fewest = min((tensor.numel() for tensor in outputs if tensor.numel()), default=FEW)
    return ROUNDS * min(MOST_RUNS, math.ceil(FEW / fewest))
