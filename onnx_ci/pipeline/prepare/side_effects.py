"""Whether running or exporting a model changes it, whether its outputs are reproducible, and which line is why."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.inputs.random_values import random_like
from onnx_ci.pipeline.model.call import Call, PrepareError, bound_arguments, with_inputs
from onnx_ci.pipeline.model.containers import Path, name_of, named_leaves
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.module import numbers_of
from onnx_ci.pipeline.model.operators import Intervention
from onnx_ci.pipeline.model.running import flatten_outputs, force_eager, run
from onnx_ci.pipeline.model.tensors import Outputs, blocks, has_noise, has_same_values, largest_value, same_shapes
from onnx_ci.pipeline.reference.perturbation import OtherTies
from onnx_ci.pipeline.trace.lines import first_difference, lines_of, lines_that_keep
from onnx_ci.pipeline.trace.recorder import Tracer
from onnx_ci.pipeline.trace.trace import Operator, Role, Trace
from onnx_ci.results.records import Finding, Severity, SourceLine
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.text import listed_shortly

OTHER_SEED = 1
"""The seed of the second run, so that a model that draws random numbers returns different outputs."""


def describe_changes(model: torch.nn.Module, pristine: torch.nn.Module) -> list[str]:
    """Descriptions of what differs between a used model and an unused copy of it: parameters, buffers, modes."""
    used, original = _state(model), _state(pristine)
    changed = [name for name in used.keys() & original.keys() if not _is_same(used[name], original[name])]
    changed = sorted([*changed, *(used.keys() ^ original.keys())])
    for (name, module), (_, unused) in zip(model.named_modules(), pristine.named_modules(), strict=False):
        modes = {getattr(each, "training", None) for each in (module, unused)}
        if len(modes) > 1 and None not in modes:  # a frozen script has no mode
            changed.append(f"the training mode of {name or 'the model'}")
    return changed


def _is_same(used: torch.Tensor, unused: torch.Tensor) -> bool:
    """Whether two tensors have equal values, as far as these can be read."""
    numbers, others = numbers_of(used), numbers_of(unused)
    if numbers is None or others is None:
        return (numbers is None) == (others is None)
    return numbers.shape == others.shape and has_same_values(numbers, others)


def _overwrites(given: Sequence[tuple[Path, Any]], pristine: Call) -> Iterator[Finding]:
    """A note if a run has written to its arguments. To put other tensors into a cache is not to write to its tensors."""
    overwritten = [
        repr(name_of(path))
        for (path, argument), (_, original) in zip(given, named_leaves(bound_arguments(pristine)), strict=True)
        if isinstance(argument, torch.Tensor) and not _is_same(argument, original)
    ]
    if overwritten:
        message = f"the model overwrites {listed_shortly(overwritten)}, and the file leaves its inputs as they are"
        yield finding("impure-model", message, severity=Severity.NOTE, remedy=REMEDIES["overwrites"])


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    parameters = {f"the parameter {name!r}": parameter for name, parameter in model.named_parameters()}
    return parameters | {f"the buffer {name!r}": buffer for name, buffer in model.named_buffers()}


@dataclass(frozen=True, kw_only=True)
class SideEffects:
    """What runs of a model change."""

    findings: Sequence[Finding] = ()
    changed: Sequence[str] = ()
    """The state that a run changes, so that it is not attributed to the export."""
    can_share: bool = False
    """Whether one copy can serve for all runs: none affects a later one."""
    trace: Trace | None = None
    """A run on the example, if it is like the first one."""
    is_exact: bool = False
    """Whether that run returned the same, bit for bit."""


def find_side_effects(
    copies: Copies, tracer: Tracer, inputs: Sequence[torch.Tensor], own: Outputs, *, training: bool
) -> SideEffects:
    """Run a fresh copy on other inputs, then on the example with another seed: the first run has returned ``own`` for it.

    A model that returns the same then keeps nothing that matters, not even of its first input, and draws nothing, so two runs
    suffice; the last one is recorded. If that writes to tensors that the model keeps, more runs follow. A model that overwrites
    its inputs but returns the same for the same values has no state.
    """
    others, copy = _other_inputs(copies, inputs), copies.used
    if others is not None:
        copy = copies.fresh()
        try:
            run(with_inputs(copy, others))
        except PrepareError:
            others, copy = None, copies.used
    again = with_inputs(copy)
    given = named_leaves(bound_arguments(again))
    trace, result = tracer.record(again, seed=OTHER_SEED)
    outputs = flatten_outputs(result) if trace.is_accepted else ()
    if differ(outputs, own):
        return _explained(copies, tracer, own, others, training=training, is_recorded=trace.is_accepted)
    changed = describe_changes(again.model, copies.pristine.model)
    written = _writes_to_kept(trace)
    if (written or changed) and not training and _is_another_later(copies, others, own):
        return SideEffects(findings=[_impure(changed, "a later run", copies, written)], changed=changed)
    findings = [*_overwrites(given, copies.pristine)] if not changed else [_changed(changed)]
    return SideEffects(
        findings=() if training else findings,
        changed=changed,
        can_share=others is not None and not (written or changed),
        trace=None if tracer.must_repeat else trace,
        is_exact=_are_same(outputs, own),
    )


def _explained(
    copies: Copies, tracer: Tracer, own: Outputs, others: Sequence[torch.Tensor] | None, *, training: bool, is_recorded: bool
) -> SideEffects:
    """Why a later run has returned something else: by runs that are not recorded, because recording can be the reason."""
    again = run(copies.fresh(), seed=OTHER_SEED)
    if differ(again, own):
        message = "a fresh copy of the model returns different outputs"
        drawn = next(iter(lines_that_draw(tracer.record(copies.fresh())[0])), None)
        steps, of_other = (lines_of(copies.fresh(), seed=seed) for seed in (0, OTHER_SEED))
        remedy, source = (None, drawn) if drawn else (REMEDIES["not-drawn-by-torch"], first_difference(steps, of_other))
        details = {"other_sizes": not same_shapes(again, own)}
        return SideEffects(findings=[finding("nondeterministic", message, remedy=remedy, source=source, details=details)])
    fresh = copies.fresh()
    calls = [with_inputs(fresh) for _ in range(2)]
    run(calls[0])
    changed = describe_changes(fresh.model, copies.pristine.model)
    given = named_leaves(bound_arguments(calls[1]))
    try:
        repeats = not differ(run(calls[1]), own)
    except PrepareError:
        repeats = False
    if training:
        return SideEffects(changed=changed)
    if repeats and not (others is not None and differ(_after(copies.fresh(), others), own)):
        findings = [_changed(changed)] if changed else [*_overwrites(given, copies.pristine)]
        message = _OTHERWISE_RECORDED if is_recorded else _NOT_RECORDED
        findings.append(finding("untaken-branch", message, severity=Severity.NOTE, remedy=REMEDIES["plain-reference"]))
        return SideEffects(findings=findings, changed=changed, can_share=others is not None and not changed)
    later = "a run after one on other inputs" if repeats else "the next run"
    return SideEffects(findings=[_impure(changed, later, copies)], changed=changed)


_OTHERWISE_RECORDED = (
    "the model computes something else while its calls are recorded, as torch's encoder layers do: branches and indices are "
    "looked for in what it computes then"
)
_NOT_RECORDED = "the model fails while its calls are recorded: branches and indices are not looked for"


def is_same_watched(copies: Copies, own: Outputs) -> bool:
    """Whether a model returns the same, bit for bit, under an intervention that changes nothing.

    It is also true of a model that never returns the same bits, or cannot run without torch.compile.
    """
    with force_eager(), contextlib.suppress(PrepareError):
        watched = None
        with contextlib.suppress(PrepareError), Intervention():
            watched = run(copies.running())
        if watched is not None and _are_same(watched, own):
            return True
        plain = run(copies.running())
        return (watched is not None and _are_same(watched, plain)) or not _are_same(run(copies.running()), plain)
    return True


def _are_same(outputs: Outputs, others: Outputs) -> bool:
    return same_shapes(outputs, others) and all(map(has_same_values, outputs, others))


def _after(fresh: Call, others: Sequence[torch.Tensor]) -> Outputs:
    """What a copy returns after a run on other inputs: hidden state is not found by comparing parameters and buffers."""
    example = with_inputs(fresh)
    run(with_inputs(fresh, others))
    return run(example, seed=OTHER_SEED)


def _other_inputs(copies: Copies, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
    """Random inputs of the example's shapes and types; ``None`` if they equal it, or the model rejects them on the CPU."""
    others = [random_like(tensor) for tensor in inputs]
    try:
        copies.try_on_cpu(others)
    except PrepareError:
        return None
    return None if all(map(has_same_values, others, inputs)) else others


def _changed(changed: Sequence[str]) -> Finding:
    return finding("impure-model", f"running the model changes {listed_shortly(changed)}", severity=Severity.NOTE)


def _writes_to_kept(trace: Trace) -> SourceLine | None:
    """The first line that writes to a tensor which the model has from before, be it a weight or not."""
    for event in trace.of_kind(Operator):
        memories = (trace.values[position].memory for position in event.written)
        if any(trace.values[memory].role in (Role.WEIGHT, Role.CONSTANT) for memory in memories):
            return event.place.source
    return None


_LATER_RUNS = 9
"""How many runs show whether a model keeps something that matters: a counter may decide at every eighth."""
_LARGER = 8.0


def _is_another_later(copies: Copies, others: Sequence[torch.Tensor] | None, own: Outputs) -> bool:
    """Whether any of several runs of one copy returns something else, the first being one on larger values."""
    fresh = copies.fresh()
    calls = [with_inputs(fresh) for _ in range(_LATER_RUNS)]
    if others is not None:
        with contextlib.suppress(PrepareError):
            run(with_inputs(fresh, [each * _LARGER if each.is_floating_point() else each for each in others]))
    with contextlib.suppress(PrepareError):
        return any(differ(run(call, seed=OTHER_SEED), own) for call in calls)
    return False


def _impure(changed: Sequence[str], later: str, copies: Copies, written: SourceLine | None = None) -> Finding:
    fresh = copies.fresh()
    calls = [with_inputs(fresh) for _ in range(2)]
    first, second = (lines_of(call) for call in calls)
    # What a later run leaves in the same way has changed with the first one.
    kept = itertools.chain(lines_that_keep(first, second), filter(None, [written]), lines_that_keep(first, ()))
    source = next(kept, None) or first_difference(first, second)
    state = listed_shortly(changed) if changed else "state that it keeps"
    message = f"running the model changes {state}, and {later} returns different outputs"
    return finding("impure-model", f"{message}; the file always returns the first ones", source=source)


def find_kept_sizes(copies: Copies, resized: Iterable[Probe]) -> Iterator[Finding]:
    """A finding if the model keeps what it computes of a size, so that a run after one of another size is another."""
    for probe in itertools.islice(resized, 1):  # all axes that can differ do in the first one
        with contextlib.suppress(PrepareError):
            if differ(run(with_inputs(copies.fresh(), probe.inputs)), probe.reference.own):
                yield _impure((), "a run after one of another size", copies)


MAX_UNITS_APART = 64.0
"""How many units in the last place two runs of the same computation may differ by: the order of sums can vary."""


def differ(outputs: Outputs, others: Outputs) -> bool:
    """Whether two outputs of one model for one input differ by more than the order of summation explains."""
    return not same_shapes(outputs, others) or any(map(_differs, outputs, others))


def _differs(output: torch.Tensor, other: torch.Tensor) -> bool:
    if not has_noise(output):
        return not has_same_values(output, other)
    if torch.equal(output, other):
        return False
    allowed = largest_value(other) * torch.finfo(output.dtype).eps * MAX_UNITS_APART
    return any(
        largest_value(new.double() - old.double()) > allowed or not torch.equal(new.isnan(), old.isnan())
        for _, (new, old) in blocks((output, other))
    )


def as_of_ties(found: Finding, fresh: Callable[[], Call]) -> Finding:
    """A finding about what a call returns; it says so if that follows the order of equal values, which is undefined."""
    in_orders = []  # compared with each other, because some models compute something else under an intervention
    for is_rotated in (False, True, False):
        with contextlib.suppress(PrepareError), force_eager(), OtherTies(is_rotated=is_rotated):
            in_orders.append(run(fresh()))
    if len(in_orders) < 3 or not differ(*in_orders[:2]) or differ(in_orders[0], in_orders[2]):  # the last: it never repeats
        return found
    cause = "it follows the order of equal values, which torch.sort, argsort and topk leave undefined"
    rule = "numeric-drift" if found.rule == "baked-value" else found.rule
    return replace(found, rule=rule, message=f"{found.message}; {cause}", remedy=REMEDIES["make-distinct"])


def lines_that_draw(trace: Trace) -> list[SourceLine]:
    """The lines that draw random numbers with torch, in the order of the run."""
    drawing = (event.place.source for event in trace.of_kind(Operator) if event.call.is_random)
    return [*dict.fromkeys(source for source in drawing if source is not None)]
