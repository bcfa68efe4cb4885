"""Inputs on which a model computes something else where it is told that it is being exported.

What ``if torch.onnx.is_in_onnx_export():`` leads to can differ at large sizes alone, as the number of boxes that are kept does.
So a model that calls other functions then, or with other numbers, is run both ways at ever larger sizes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from onnx_ci.opsets import OF_TORCH
from onnx_ci.pipeline.inputs.branch_search import MAX_WORK
from onnx_ci.pipeline.inputs.directions import Directions
from onnx_ci.pipeline.inputs.probes import Inputs, Probe, Prober
from onnx_ci.pipeline.model.call import Call, PrepareError, with_inputs
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.export_answers import QUESTIONS, as_in_export, noting_questions
from onnx_ci.pipeline.model.running import force_eager, run
from onnx_ci.pipeline.model.tensors import Outputs, are_near, same_shapes
from onnx_ci.pipeline.trace.received import received
from onnx_ci.pipeline.trace.recorder import Tracer
from onnx_ci.pipeline.trace.trace import FunctionCall, Trace

_FACTORS = (4, 16, 64)
"""How many times as large as the example's other sizes are. Larger values are tried of each model."""


def probes_of_ways(tracer: Tracer, copies: Copies, prober: Prober, directions: Directions, usual: Trace) -> Iterator[Probe]:
    """The first input on which the model is not as on a ``usual`` run when told of an export, for each exporter of torch."""
    with noting_questions() as asked:
        _outputs(copies.running(directions.example))
    tried = [_calls(usual)]
    for exporter in (each for each in OF_TORCH if not asked.isdisjoint(QUESTIONS[each])):
        with as_in_export(exporter):  # a copy of its own: what the model keeps of this must not be met again
            told, _ = tracer.record(with_inputs(copies.fresh(), directions.example))
        if not told.is_accepted or (calls := _calls(told)) in tried:
            continue
        tried.append(calls)
        for name, inputs in _larger(directions, usual.elements):
            own = _outputs(copies.running(inputs))
            with as_in_export(exporter):
                in_export = _outputs(with_inputs(copies.fresh(), inputs))
            is_same = same_shapes(own, in_export) and all(are_near(*each) for each in zip(own, in_export, strict=True))
            probe = prober.probe(name, inputs, quick=True) if own and in_export and not is_same else None
            if probe is not None and probe.reference.is_comparable:
                yield probe
                break


def _calls(trace: Trace) -> list[object]:
    """The functions that a run calls, and the numbers and sizes that it uses."""
    numbers = ((each.kind, each.value) for each in received(trace) if isinstance(each.value, (int, float, tuple)))
    return [*(call.name for call in trace.of_kind(FunctionCall)), *numbers]


def _larger(directions: Directions, work: int) -> Iterator[tuple[str, Inputs]]:
    """The example with a larger size of one axis, as long as the model does not compute too much."""
    for name, factor in itertools.product(directions.free_sizes, _FACTORS):
        way = directions.resizing([name])
        number = min(way.start * factor, way.limit)
        if number > way.start and work * factor**2 <= MAX_WORK and (inputs := way.inputs(number)) is not None:
            yield f"asked in an export, {name}={number:g}", inputs


def _outputs(call: Call) -> Outputs:
    """What the model returns; nothing if it rejects the inputs."""
    with contextlib.suppress(PrepareError), force_eager():
        return run(call)
    return ()
