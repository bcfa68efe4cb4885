"""What a run of a model decides in Python by the sizes and the values of its tensors.

The exporters freeze such decisions: the file contains the side that the example takes. They are read from traces, which are
recorded in eager mode, on any input and without an exporter. So both exporters get the same probes, static sizes and attributes
of the model need no list of exceptions, and a model without such branches costs one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    """By the memory of a boolean tensor."""
    decisions: dict[Place, list[Decision]] = {}
    for event in trace.events:
        if isinstance(event, FunctionCall) and event.comparison is not None:
            before = _together(comparisons, trace, refs_in((event.args, event.kwargs)))
            comparisons[trace.values[event.result.value].memory] = before or event.comparison
        elif isinstance(event, Decision) and event.place.frames and not event.place.is_in_torch:
            comparison = _together(comparisons, trace, event.tested) or event.comparison
            decisions.setdefault(event.place, []).append(replace(event, comparison=comparison, tested=(), place=NOWHERE))
    return Observation(decisions=decisions, is_accepted=trace.is_accepted, elements=trace.elements)


_MAX_GAPS = 8
"""How many gaps of a boolean tensor are kept, which may be computed from many others."""


def _together(comparisons: Mapping[int, Comparison], trace: Trace, values: Iterable[int]) -> Comparison | None:
    """The comparisons from which booleans among ``values`` were computed; ``None`` if there are none."""
    memories = (trace.values[each].memory for each in values)
    of_values = [comparisons[memory] for memory in memories if memory in comparisons]
    gaps = dict.fromkeys(gap for each in of_values for gap in each.gaps)
    return Comparison(tuple(gaps)[:_MAX_GAPS], sum(each.total for each in of_values)) if of_values else None
