"""How the interfaces of two ONNX files differ: inputs, outputs, opset and domains. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx

from onnx_ci.onnx_model.signature import Signature, Value
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding
from onnx_ci.text import listed

_SAME = "Make both files declare the same, or allow the rule if the difference is intended."

Pairs = tuple[tuple[int, int], ...]
"""Positions of corresponding values in two files."""


@dataclass(frozen=True, kw_only=True)
class Interfaces:
    """The interfaces of two files, side by side."""

    inputs: Pairs | None
    """``None`` if the files take different numbers of inputs, so that no input can be given to both."""
    outputs: Pairs
    findings: tuple[Finding, ...]


def compare_interfaces(one: Signature, other: Signature, names: tuple[str, str]) -> Interfaces:
    """Match the inputs and outputs of two files, by name or else by position, and find every difference.

    What a caller of the file does not notice is a note: the opset, the domains, the names of axes, and the declared sizes of
    outputs, which are compared when the files are run.

    Args:
        names: what messages call the two files.
    """
    findings: list[Finding] = []
    if one.opset != other.opset:
        message = f"{names[0]} is written at opset {one.opset or 'unknown'} and {names[1]} at opset {other.opset or 'unknown'}"
        findings.append(finding("opset-mismatch", message, severity=Severity.NOTE, remedy=_NONE))
    for name, domains, others in ((names[0], one, other), (names[1], other, one)):
        if more := sorted(set(domains.foreign_domains) - set(others.foreign_domains)):
            message = f"only {name} uses operators of {listed(map(repr, more))}"
            findings.append(finding("foreign-domain", message, severity=Severity.NOTE, remedy=_NONE))
    inputs, found = _matched("input", one.inputs, other.inputs, names)
    findings += found
    outputs, found = _matched("output", one.outputs, other.outputs, names)
    findings += found
    is_complete = len(inputs) == len(one.inputs) == len(other.inputs)
    return Interfaces(inputs=inputs if is_complete else None, outputs=outputs, findings=tuple(findings))


_NONE = "No action is needed if the difference is intended."


def _matched(role: str, one: Sequence[Value], other: Sequence[Value], names: tuple[str, str]) -> tuple[Pairs, list[Finding]]:
    places = {value.name: place for place, value in enumerate(other)}
    found: list[Finding] = []
    ours, theirs = [value.name for value in one], [value.name for value in other]
    if set(ours) == set(theirs) or len(ours) != len(theirs):
        pairs = tuple((place, places[value.name]) for place, value in enumerate(one) if value.name in places)
    else:
        pairs = tuple((place, place) for place in range(len(one)))
    if len(ours) != len(theirs):
        found.append(_count_mismatch(role, ours, theirs, names))
    elif ours != theirs:
        message = f"the {role}s are {', '.join(ours)} in {names[0]} and {', '.join(theirs)} in {names[1]}"
        # Callers give inputs by name, so their order alone makes no difference; outputs are returned in order.
        is_order = role == "input" and set(ours) == set(theirs)
        found.append(finding("name-mismatch", message, remedy=_SAME, severity=Severity.NOTE if is_order else None))
    for place, its_place in pairs:
        found += _compare_values(role, one[place], other[its_place], names)
    return pairs, found


def _count_mismatch(role: str, ours: Sequence[str], theirs: Sequence[str], names: tuple[str, str]) -> Finding:
    message = (
        f"{names[0]} has {len(ours)} {role}s ({', '.join(ours) or 'none'}) and {names[1]} has {len(theirs)} "
        f"({', '.join(theirs) or 'none'})"
    )
    rule = "output-mismatch" if role == "output" else "input-extra" if len(theirs) > len(ours) else "input-missing"
    return finding(rule, message, remedy=_SAME)


def _compare_values(role: str, one: Value, other: Value, names: tuple[str, str]) -> Iterator[Finding]:
    if one.element_type != other.element_type:
        types = [f"{type_name(value)} in {name}" for value, name in zip((one, other), names, strict=True)]
        yield finding("dtype-mismatch", f"{role} {one.name!r} is {listed(types)}", remedy=_SAME)
    if one.dims is None or other.dims is None:
        if one.dims != other.dims:
            message = f"{role} {one.name!r} has no declared rank in {names[0] if one.dims is None else names[1]}"
            yield finding("shape-mismatch", message, severity=Severity.NOTE, remedy=_NONE)
        return
    if len(one.dims) != len(other.dims):
        message = f"{role} {one.name!r} has {len(one.dims)} axes in {names[0]} and {len(other.dims)} in {names[1]}"
        yield finding("shape-mismatch", message, remedy=_SAME)
        return
    for axis, (dim, its_dim) in enumerate(zip(one.dims, other.dims, strict=True)):
        if dim == its_dim:
            continue
        ours, theirs = (repr(each) if isinstance(each, str) else each or "unnamed" for each in (dim, its_dim))
        message = f"axis {axis} of {role} {one.name!r} is {ours} in {names[0]} and {theirs} in {names[1]}"
        fixed = isinstance(dim, int), isinstance(its_dim, int)
        if all(fixed):
            yield finding("shape-mismatch", message, remedy=_SAME)
        elif any(fixed):
            is_note = role == "output"
            yield finding("static-axis", message, remedy=_SAME, severity=Severity.NOTE if is_note else None)


def type_name(value: Value) -> str:
    """The data type of a value as ONNX names it, such as ``float16``."""
    if value.element_type == onnx.TensorProto.UNDEFINED:
        return "not a tensor"
    name: str = onnx.TensorProto.DataType.Name(value.element_type)
    return name.lower()
