"""Faults on inputs of which one is broadcast along an axis that the exporter has taken to be as long as another input's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from onnx_ci.onnx_model.signature import Signature
from onnx_ci.results.records import Finding, Severity
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.text import listed

EQUAL_AXES = "equal_axes"
"""The detail of a finding that names the axes. Its cause is known, so no line is searched for."""


def with_equal_axes(findings: Iterable[Finding], signature: Signature, prepared: Prepared) -> tuple[Finding, ...]:
    """The findings; if there are errors on such inputs only, each names the axes in its remedy.

    It is a note if the recipe leaves it to the exporter how the axes relate: an example in which both are 1 does not tell
    whether they are equal.
    """
    findings = tuple(findings)
    inputs = {probe.name: probe.inputs for probe in prepared.probes}
    errors = [each for each in findings if each.severity is Severity.ERROR and each.probe is not None]
    broadcast = {each.probe: _broadcast(signature, inputs.get(each.probe or "", ())) for each in errors}
    if not all(broadcast.values()):
        return findings
    return tuple(_explained(each, broadcast[each.probe], prepared) if each in errors else each for each in findings)


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """An axis of an input that has the name of another one in the file."""

    input: str
    axis: int
    size: int


def _broadcast(signature: Signature, inputs: Sequence[torch.Tensor]) -> list[_Axis]:
    """The axes that have one name in the file, and in ``inputs`` one size and 1; those of the first such name."""
    axes: dict[str, list[_Axis]] = {}
    for value, tensor in zip(signature.inputs, inputs, strict=False):
        for axis, dim in enumerate(value.dims or ()):
            if isinstance(dim, str):
                axes.setdefault(dim, []).append(_Axis(input=value.name, axis=axis, size=tensor.shape[axis]))
    sizes = ((alike, {each.size for each in alike}) for alike in axes.values())
    return next((alike for alike, each in sizes if 1 in each and len(each) == 2), [])


def _explained(error: Finding, axes: Sequence[_Axis], prepared: Prepared) -> Finding:
    named = [f"axis {each.axis} of {each.input!r}" for each in axes]
    remedy = (
        f"The exporter has taken {listed(named)} to be equal. If they always are, give them one name in dynamic_shapes or "
        "dynamic_axes. If one of them is always 1, do not declare it dynamic."
    )
    are_unnamed = all(prepared.axes.get(each.input, {}).get(each.axis) in prepared.unnamed_axes for each in axes)
    severity = Severity.NOTE if are_unnamed else error.severity
    return dataclasses.replace(error, severity=severity, remedy=remedy, details={**error.details, EQUAL_AXES: named})
