"""The probes of a single call, but for the example: random values, other sizes and special values, in as few runs as needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx_ci.pipeline.domains.axes import InputAxes
from onnx_ci.pipeline.domains.input_domains import InputDomains
from onnx_ci.pipeline.inputs.probes import Following, Probe, Prober, is_same
from onnx_ci.pipeline.inputs.random_values import fresh_probes
from onnx_ci.pipeline.inputs.sizes import ResizedProbes, resized_probes
from onnx_ci.pipeline.inputs.special_rows import SpecialRows
from onnx_ci.pipeline.inputs.special_values import Variation, special_probes


@dataclass(frozen=True, kw_only=True)
class CallProbes:
    """The probes of a single call but for the example."""

    probes: tuple[Probe, ...]
    resized: ResizedProbes
    """Those of other sizes, and what is known about the sizes."""
    separated: Callable[[], tuple[Probe, ...]] | None
    """Makes probes with a single kind of special values each; ``None`` if these are such probes."""
    left_out: tuple[str, ...] = ()
    """The names of the special values that are not tried."""


def call_probes(
    prober: Prober,
    axes: InputAxes,
    following: Following,
    domains: InputDomains,
    special: Sequence[Variation],
    *,
    is_quick: bool = False,
    is_large: bool = False,
    can_use_rows: bool = False,
) -> CallProbes:
    """Make the probes of a single call; if ``is_quick``, no other sizes and values.

    On a large example, a run takes as long as an export, or longer. Then, of the special values, only those are tried of which
    many meet in one run, and the axes get smaller sizes where that shows as much. Special values may be rows of the probes of
    other batch sizes if no run of the model affects another one, and the model does not decide by values.
    """
    others = [each for each in special if is_large and not each.is_mixed]
    left_out = tuple(each.name for each in others if not all(map(is_same, each.inputs, prober.example.inputs)))
    special = [each for each in special if not is_large or each.is_mixed]
    rows = SpecialRows(prober, axes, special if can_use_rows else ())
    resized = ResizedProbes() if is_quick else resized_probes(prober, axes, following, domains, rows, is_large=is_large)

    fresh = functools.cache(lambda: () if is_quick else tuple(fresh_probes(prober, domains, quick=is_large)))
    separated = functools.cache(lambda: (*fresh(), *rows.separated(resized.probes), *special_probes(prober, special)))
    if not rows.are_used:
        return CallProbes(probes=separated(), resized=resized, separated=None, left_out=left_out)
    # Rows show that the model does not look at the batch, so random values need not have the example's sizes.
    together = (*(() if rows.has_random_rows else fresh()), *resized.probes, *special_probes(prober, rows.waiting))
    return CallProbes(probes=together, resized=resized, separated=separated, left_out=left_out)
