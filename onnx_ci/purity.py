"""Whether running or exporting a model leaves it, and its arguments, as they were; and whether it answers twice alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils import _pytree as pytree

from onnx_ci.calls import Call, Outputs, PrepareError, run, with_inputs
from onnx_ci.copies import Copies
from onnx_ci.probes import drawn_alike
from onnx_ci.records import Finding, Severity
from onnx_ci.rules import finding

OTHER_SEED = 1
"""The seed of the second run: whatever still draws random numbers then answers otherwise."""


def changes(call: Call, pristine: Call) -> list[str]:
    """What differs between a used call and an unused copy of it, in words: parameters, buffers, modes, arguments."""
    states = dict(_state(call.model)), dict(_state(pristine.model))
    found = list(states[0].keys() ^ states[1].keys())
    for name in states[0].keys() & states[1].keys():
        one, other = states[0][name], states[1][name]
        if one.shape != other.shape or not _equal(one, other):
            found.append(name)
    found.sort()
    for (name, module), (_, unused) in zip(call.model.named_modules(), pristine.model.named_modules(), strict=False):
        if module.training != unused.training:
            found.append(f"the training mode of {name or 'the model'}")
    one_leaves, other_leaves = (pytree.tree_leaves((each.args, each.kwargs)) for each in (call, pristine))
    for position, (leaf, unused) in enumerate(zip(one_leaves, other_leaves, strict=False)):
        if isinstance(leaf, torch.Tensor) and (leaf.shape != unused.shape or not _equal(leaf, unused)):
            found.append(f"argument {position}")
    return found


def _state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"the parameter {name!r}", parameter
    for name, buffer in model.named_buffers():
        yield f"the buffer {name!r}", buffer


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and bool(((one == other) | (one.isnan() & other.isnan())).all())


def examine(copies: Copies, own: Outputs, *, training: bool) -> tuple[list[Finding], list[str]]:
    """Run the model again: afresh with other random numbers, and once more on the copy that has run.

    Args:
        copies: the model, which has had its first run.
        own: what it answered then.

    Returns:
        The findings, and what a run of the model changes, so that the export is not blamed for it.
    """
    if _differs(run(copies.fresh(), seed=OTHER_SEED), own):
        return [finding("nondeterministic", "the model answers otherwise when it is run once more, afresh")], []
    changed = changes(copies.used, copies.pristine)
    try:
        different = _differs(run(copies.used), own)
    except PrepareError:
        different = True
    if training or not (changed or different):
        return [], changed
    what = f"{', '.join(changed[:3])}{' and more' if len(changed) > 3 else ''}" if changed else "what it remembers"
    said = f"running the model changes {what}"
    if different:
        return [
            finding("impure-model", f"{said}, and its next answer is another; the file always answers as at first")
        ], changed
    return [finding("impure-model", said, severity=Severity.NOTE)], changed


def remembers(copies: Copies, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a copy that has run answers other inputs otherwise than a fresh one, or may: nobody can tell.

    A model may keep what it has seen where no comparison of its state would find it.

    Args:
        copies: shared already, so that the copy to run is one that has run.
        inputs: those that it ran on.
    """
    others = [drawn_alike(tensor) for tensor in inputs]
    if all(map(torch.equal, others, inputs)):
        return True
    fresh = with_inputs(copies.fresh(), [tensor.clone() for tensor in others])
    try:
        copies.rehearse(others)
        return _differs(run(copies.running(others)), run(fresh))
    except PrepareError:
        return True


SAME_UNITS = 64.0
"""How many units in the last place two runs of the same computation may lie apart: sums may be taken in another order."""


def _differs(one: Outputs, other: Outputs) -> bool:
    """Whether two answers of one model to one input differ by more than the order of its sums can explain."""
    if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
        return True
    for a, b in zip(one, other, strict=True):
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return True
            continue
        difference, size = (a.double() - b.double()).abs(), b.double().abs()
        allowed = float(size[torch.isfinite(size)].max()) if bool(torch.isfinite(size).any()) else 0.0
        if bool((difference[torch.isfinite(difference)] > allowed * torch.finfo(a.dtype).eps * SAME_UNITS).any()):
            return True
        if not torch.equal(a.isnan(), b.isnan()):
            return True
    return False
