"""Faults on inputs of which one is broadcast along an axis that the exporter has taken to be as long as another input's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from onnx_ci.collection.axis_sizes import unnamed_axes
from onnx_ci.onnx_model.signature import Signature
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.recipe_model import CallSignature
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.text import listed

EQUAL_AXES = "equal_axes"
"""The detail of a finding that names the axes. Its cause is known, so no line is searched for."""

_Axis = tuple[str, int]
"""The name of an input, and the position of an axis."""


def with_equal_axes(
    findings: Iterable[Finding], signature: Signature, call_signature: CallSignature, probes: Iterable[Probe]
) -> tuple[Finding, ...]:
    """The findings; if there are errors on such inputs only, the remedy of each names the axes.

    If the recipe leaves it to the exporter how the axes relate, a note takes the place of what is said about these inputs: an
    example in which both are 1 does not tell whether they are equal.
    """
    findings = tuple(findings)
    errors = [each for each in findings if each.severity is Severity.ERROR and each.probe is not None]
    if not errors:
        return findings
    axes_of: dict[str | None, tuple[_Axis, ...]] = {
        probe.name: _broadcast(signature, call_signature.input_names, probe.inputs) for probe in probes
    }
    if not all(axes_of.get(each.probe) for each in errors):
        return findings
    unnamed = unnamed_axes(call_signature.axes)
    if all(call_signature.axes.get(name, {}).get(axis) in unnamed for each in errors for name, axis in axes_of[each.probe]):
        notes = {}
        for each in reversed(errors):
            equal = _describe_axes(axes_of[each.probe])
            message = f"the exporter has taken {equal} to be equal, and the model also takes {each.probe!r}"
            notes[axes_of[each.probe]] = finding("size-relation", message, remedy=REMEDIES["equal-axes"].format(equal))
        return (*(each for each in findings if not axes_of.get(each.probe)), *reversed(notes.values()))
    return tuple(_with_remedy(each, axes_of[each.probe]) if each in errors else each for each in findings)


def _broadcast(signature: Signature, names: Sequence[str | None], inputs: Sequence[torch.Tensor]) -> tuple[_Axis, ...]:
    """The axes that have one name in the file, and in ``inputs`` one size and 1; those of the first such name."""
    axes: dict[str, dict[_Axis, int]] = {}
    for value, name, tensor in zip(signature.inputs, names, inputs, strict=False):
        for axis, dim in enumerate(value.dims or ()):
            if isinstance(dim, str):
                axes.setdefault(dim, {})[name or value.name, axis] = tensor.shape[axis]
    sizes = ((tuple(alike), {*alike.values()}) for alike in axes.values())
    return next((alike for alike, each in sizes if 1 in each and len(each) == 2), ())


def _describe_axes(axes: Iterable[_Axis]) -> str:
    return listed(f"axis {axis} of {name!r}" for name, axis in axes)


def _with_remedy(error: Finding, axes: Sequence[_Axis]) -> Finding:
    remedy = REMEDIES["equal-axes"].format(_describe_axes(axes))
    return dataclasses.replace(error, remedy=remedy, details={**error.details, EQUAL_AXES: [*map(list, axes)]})
