"""The reference of a random model: how often it is run, and what is kept of its runs.

Random outputs are compared by randomization tests over runs (``pipeline.compare.random_outputs``), not by standard errors of
moments. Those assume independent elements and known distributions, and a gate needs a rate of false alarms that holds without
assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.tensors import Outputs, index_at
from onnx_ci.pipeline.reference.float64 import coarsest_eps
from onnx_ci.pipeline.reference.reference import Reference, unit_in_last_place

ROUNDS = 24
"""The number of rounds of a random model, and of the file: few enough to try all 2**24 ways to swap them."""
FEW, MOST_RUNS = 64, 8
"""A round has as many runs as are needed for this many elements of the smallest output, but no more than the second number."""
KEPT = 2**14
"""How many elements of an output are kept of each run."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One output of one run."""

    shape: torch.Size
    values: torch.Tensor
    """Its elements, flattened. Of an output with more than :data:`KEPT` elements, that many, the same ones in each run."""


def sample_of(tensor: torch.Tensor) -> Sample:
    """What is kept of an output."""
    places = _places_of(tensor.numel())
    values = tensor.flatten()
    return Sample(shape=tensor.shape, values=values if places is None else values[places])


def index_of(sample: Sample, position: int) -> list[int]:
    """The index in the output of the kept element at ``position``."""
    places = _places_of(math.prod(sample.shape))
    place = position if places is None else int(places[position])
    return [*index_at(place, sample.shape)]


def _places_of(count: int) -> torch.Tensor | None:
    """The places of the elements that are kept of so many; ``None`` for all of them."""
    if count <= KEPT:
        return None
    return torch.randint(0, count, (KEPT,), generator=torch.Generator().manual_seed(0))


def runs_needed(outputs: Sequence[torch.Tensor]) -> int:
    """How many runs a model with such outputs needs."""
    fewest = min((tensor.numel() for tensor in outputs if tensor.numel()), default=FEW)
    return ROUNDS * min(MOST_RUNS, math.ceil(FEW / fewest))


def random_reference(copies: Copies, own: Outputs) -> Reference:
    """The reference of a random model, which has no exact values; ``own`` are the outputs of one run."""
    return Reference(
        own=own,
        exact=own,
        noise=tuple(map(unit_in_last_place, own)),
        stable=tuple(torch.zeros(tensor.shape, dtype=torch.bool) for tensor in own),
        eps=max(coarsest_eps(copies.pristine), copies.eps),
        method="random",
    )
