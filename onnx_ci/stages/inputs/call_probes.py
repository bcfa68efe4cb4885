"""The probes of a single call of a model: other values, other sizes and special values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from onnx_ci.stages.inputs.domains import InputDomains
from onnx_ci.stages.inputs.probes import ModelProber, Probe, fresh_probes, special_probes
from onnx_ci.stages.inputs.sizes import Following, InputAxes, ResizedProbes, resized_probes
from onnx_ci.stages.inputs.special_rows import SpecialRows
from onnx_ci.stages.inputs.special_values import Variation


@dataclass(frozen=True, kw_only=True)
class CallProbes:
    """The probes of a single call, but for the example."""

    probes: tuple[Probe, ...]
    separated: Callable[[], tuple[Probe, ...]] | None
    """Makes probes of which each has a single kind of special values; ``None`` if all of them already are such."""
    resized: ResizedProbes
    """Those of other sizes, and what is known about the sizes."""


def call_probes(
    prober: ModelProber,
    axes: InputAxes,
    following: Following,
    domains: InputDomains,
    special: Sequence[Variation],
    *,
    skip_stages: Collection[str],
    can_use_rows: bool,
) -> CallProbes:
    """Make the probes of a single call.

    Args:
        prober: makes a probe of inputs.
        axes: the dynamic axes of the inputs.
        following: the inputs that belong to the sizes of others.
        domains: what is known about the inputs.
        special: the example with special values.
        skip_stages: ``fresh-inputs`` and ``sizes`` leave those probes out.
        can_use_rows: whether several kinds of special values may be rows of one probe; otherwise each is a probe.
    """
    rows = SpecialRows(prober, axes, special) if can_use_rows else None
    resized = ResizedProbes()
    if "sizes" not in skip_stages:
        resized = resized_probes(prober, axes, following, domains, rows)

    def fresh() -> list[Probe]:
        return [] if "fresh-inputs" in skip_stages else fresh_probes(prober, domains)

    @functools.cache
    def separated() -> tuple[Probe, ...]:
        return (*fresh(), *resized.separated(), *special_probes(prober, special))

    if rows is None or not rows.are_used:
        return CallProbes(probes=separated(), separated=None, resized=resized)
    # The rows show that the model does not look at the batch, so other random values need not have the example's sizes.
    others = [] if resized.has_random_values or rows.have_random_values else fresh()
    together = (*others, *resized.probes, *special_probes(prober, rows.waiting))
    return CallProbes(probes=together, separated=separated, resized=resized)
