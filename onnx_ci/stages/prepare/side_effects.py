"""Whether running or exporting a model changes it or its arguments, and whether its outputs are reproducible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils import _pytree as pytree

from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding
from onnx_ci.stages.prepare.copies import Copies
from onnx_ci.stages.prepare.live_model import Call, Outputs, PrepareError, has_noise, has_same_values, run, with_inputs
from onnx_ci.stages.prepare.probes import random_like

OTHER_SEED = 1
"""The seed of the second run, so that a model that draws random numbers returns different outputs."""


def differences(call: Call, pristine: Call) -> list[str]:
    """Descriptions of what differs between a used call and an unused copy of it: parameters, buffers, modes, arguments."""
    states = dict(_state(call.model)), dict(_state(pristine.model))
    found = list(states[0].keys() ^ states[1].keys())
    for name in states[0].keys() & states[1].keys():
        one, other = states[0][name], states[1][name]
        if one.shape != other.shape or not has_same_values(one, other):
            found.append(name)
    found.sort()
    for (name, module), (_, unused) in zip(call.model.named_modules(), pristine.model.named_modules(), strict=False):
        if module.training != unused.training:
            found.append(f"the training mode of {name or 'the model'}")
    one_leaves, other_leaves = (pytree.tree_leaves((each.args, each.kwargs)) for each in (call, pristine))
    for position, (leaf, unused) in enumerate(zip(one_leaves, other_leaves, strict=False)):
        if isinstance(leaf, torch.Tensor) and (leaf.shape != unused.shape or not has_same_values(leaf, unused)):
            found.append(f"argument {position}")
    return found


def _state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"the parameter {name!r}", parameter
    for name, buffer in model.named_buffers():
        yield f"the buffer {name!r}", buffer


def find_side_effects(copies: Copies, own: Outputs, *, training: bool) -> tuple[list[Finding], list[str]]:
    """Run the model again: a fresh copy with another seed, and the copy that has already run.

    Args:
        copies: the model, after its first run.
        own: the outputs of that run.

    Returns:
        The findings, and what a run of the model changes, so that it is not attributed to the export.
    """
    if _differs(run(copies.fresh(), seed=OTHER_SEED), own):
        return [finding("nondeterministic", "a fresh copy of the model returns different outputs")], []
    changed = differences(copies.used, copies.pristine)
    try:
        different = _differs(run(copies.used), own)
    except PrepareError:
        different = True
    if training or not (changed or different):
        return [], changed
    what = f"{', '.join(changed[:3])}{' and more' if len(changed) > 3 else ''}" if changed else "state that it keeps"
    message = f"running the model changes {what}"
    if different:
        message += ", and the next run returns different outputs; the file always returns the first ones"
        return [finding("impure-model", message)], changed
    return [finding("impure-model", message, severity=Severity.NOTE)], changed


def may_depend_on_history(copies: Copies, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a copy that has run may return different outputs for other inputs than a fresh copy.

    A model can keep hidden state that a comparison of its parameters and buffers does not find.

    Args:
        copies: shared already, so that the copy that has run is used.
        inputs: the inputs of its first run.
    """
    others = [random_like(tensor) for tensor in inputs]
    if all(map(has_same_values, others, inputs)):
        return True
    fresh = with_inputs(copies.fresh(), [tensor.clone() for tensor in others])
    try:
        copies.try_on_cpu(others)
        return _differs(run(copies.running(others)), run(fresh))
    except PrepareError:
        return True


MAX_UNITS_APART = 64.0
"""How many units in the last place two runs of the same computation may differ by: the order of sums can vary."""


def _differs(one: Outputs, other: Outputs) -> bool:
    """Whether two outputs of one model for one input differ by more than the order of summation explains."""
    if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
        return True
    for a, b in zip(one, other, strict=True):
        if not has_noise(a):
            if not has_same_values(a, b):
                return True
            continue
        difference, size = (a.double() - b.double()).abs(), b.double().abs()
        allowed = float(size[torch.isfinite(size)].max()) if bool(torch.isfinite(size).any()) else 0.0
        if bool((difference[torch.isfinite(difference)] > allowed * torch.finfo(a.dtype).eps * MAX_UNITS_APART).any()):
            return True
        if not torch.equal(a.isnan(), b.isnan()):
            return True
    return False
