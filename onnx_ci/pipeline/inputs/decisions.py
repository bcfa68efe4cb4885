"""What a run of a model decides in Python by the sizes and the values of its tensors.

The exporters freeze such decisions: the file contains the side that the example takes. They are read from traces, which are
recorded in eager mode, on any input and without an exporter. So both exporters get the same probes, static sizes and attributes
of the model need no list of exceptions, and a model without such branches costs one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from onnx_ci.pipeline.trace.trace import NOWHERE, Comparison, Decision, FunctionCall, Place, Trace, refs_in


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one run decides."""

    decisions: Mapping[Place, Sequence[Decision]] = field(default_factory=dict)
    """In the order of the run."""
    is_accepted: bool
    """Whether the model returned; otherwise it raised after these decisions."""
    elements: int = 0
    """How many elements all operators of the run computed."""


def observed(trace: Trace) -> Observation:
    """What a run decides in the model's own code. Torch's own decisions are left to the exporters."""
    comparisons: dict[int, Comparison] = {}
    """By the memory of what is computed from booleans alone: other booleans, or how many of them are true."""
    decisions: dict[Place, list[Decision]] = {}
    for event in trace.events:
        if isinstance(event, FunctionCall):
            values = [*refs_in((event.args, event.kwargs))]
            comparison = _with_earlier(event.comparison, comparisons, trace, values)
            is_count = bool(values) and all(trace.values[each].memory in comparisons for each in values)
            if comparison is not None and (is_count or event.comparison is not None or event.name in _SELECTING):
                comparisons |= {trace.values[each].memory: comparison for each in refs_in(event.result)}
        elif isinstance(event, Decision) and event.place.frames and not event.place.is_in_torch:
            earlier = None if event.by_sizes else _with_earlier(event.comparison, comparisons, trace, event.tested)
            decided = replace(event, comparison=earlier or event.comparison, tested=(), place=NOWHERE)
            decisions.setdefault(event.place, []).append(decided)
    return Observation(decisions=decisions, is_accepted=trace.is_accepted, elements=trace.elements)


_SELECTING = frozenset({"__getitem__", "masked_select"})
"""Functions whose results have as many elements as booleans are true."""
_MAX_GAPS = 8
"""How many gaps are kept of what is computed from booleans, which may be computed from many others."""


def _with_earlier(
    own: Comparison | None, comparisons: Mapping[int, Comparison], trace: Trace, values: Sequence[int]
) -> Comparison | None:
    """The comparisons from which something was computed: its own, unless it compares booleans, and those of ``values``."""
    memories = (trace.values[each].memory for each in values)
    earlier = [comparisons[memory] for memory in memories if memory in comparisons]
    if not earlier:
        return own
    if own is not None and own.gaps and not all(trace.values[each].dtype is torch.bool for each in values):
        earlier.insert(0, own)
    gaps = dict.fromkeys(gap for each in earlier for gap in each.gaps)
    return Comparison(tuple(gaps)[:_MAX_GAPS], sum(each.total for each in earlier), max(each.period for each in earlier))
