"""How the interfaces of two ONNX files differ: inputs, outputs, opset and domains; and what the sizes of inputs follow from.

Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from onnx_ci.collection.axis_sizes import AxisSize, axes_of_file
from onnx_ci.onnx_model.signature import Signature, Value, data_type_name
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


@dataclass(frozen=True, kw_only=True)
class ComparedFile:
    """One of the two files, and how its inputs and outputs correspond to those of the reference."""

    path: Path
    signature: Signature
    input_places: Sequence[int]
    """For each of its inputs, the position of the corresponding input of the reference."""
    output_places: Sequence[int]
    """The positions of its compared outputs."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.path)


def compare_interfaces(reference: Signature, tested: Signature, names: tuple[str, str]) -> Interfaces:
    """Match the inputs and outputs of two files, by name or else by position, and find every difference.

    What a caller of the file does not notice is a note: the opset, the domains, the names of axes, and the declared sizes of
    outputs, which are compared when the files are run.
    """
    findings: list[Finding] = []
    if reference.opset != tested.opset:
        opsets = reference.opset or "unknown", tested.opset or "unknown"
        message = f"{names[0]} is written at opset {opsets[0]} and {names[1]} at opset {opsets[1]}"
        findings.append(finding("opset-mismatch", message, severity=Severity.NOTE, remedy=_NONE))
    for name, file, other in ((names[0], reference, tested), (names[1], tested, reference)):
        if more := sorted(set(file.foreign_domains) - set(other.foreign_domains)):
            message = f"only {name} uses operators of {listed(map(repr, more))}"
            findings.append(finding("foreign-domain", message, severity=Severity.NOTE, remedy=_NONE))
    inputs = _pairs(reference.inputs, tested.inputs)
    outputs = _pairs(reference.outputs, tested.outputs)
    findings += _compare_all("input", reference.inputs, tested.inputs, inputs, names)
    findings += _compare_all("output", reference.outputs, tested.outputs, outputs, names)
    is_complete = len(inputs) == len(reference.inputs) == len(tested.inputs)
    return Interfaces(inputs=inputs if is_complete else None, outputs=outputs, findings=tuple(findings))


_NONE = "No action is needed if the difference is intended."


def _pairs(reference: Sequence[Value], tested: Sequence[Value]) -> Pairs:
    """The values of the same name. Where as many values have other names, those at the same position."""
    places = {value.name: place for place, value in enumerate(tested)}
    has_same_names = {value.name for value in reference} == set(places)
    if not has_same_names and len(reference) == len(tested):
        return tuple((place, place) for place in range(len(reference)))
    return tuple((place, places[value.name]) for place, value in enumerate(reference) if value.name in places)


def _compare_all(
    role: str, reference: Sequence[Value], tested: Sequence[Value], pairs: Pairs, names: tuple[str, str]
) -> Iterator[Finding]:
    """How the inputs or the outputs differ."""
    lists = [value.name for value in reference], [value.name for value in tested]
    if len(reference) != len(tested):
        yield _count_mismatch(role, lists, names)
    elif lists[0] != lists[1]:
        message = f"the {role}s are {', '.join(lists[0])} in {names[0]} and {', '.join(lists[1])} in {names[1]}"
        # Callers give inputs by name, so their order alone makes no difference; outputs are returned in order.
        is_order = role == "input" and set(lists[0]) == set(lists[1])
        yield finding("name-mismatch", message, remedy=_SAME, severity=Severity.NOTE if is_order else None)
    for place, tested_place in pairs:
        yield from _compare_values(role, reference[place], tested[tested_place], names)


def _count_mismatch(role: str, lists: tuple[Sequence[str], Sequence[str]], names: tuple[str, str]) -> Finding:
    message = (
        f"{names[0]} has {len(lists[0])} {role}s ({', '.join(lists[0]) or 'none'}) and {names[1]} has {len(lists[1])} "
        f"({', '.join(lists[1]) or 'none'})"
    )
    rule = "output-mismatch" if role == "output" else "input-extra" if len(lists[1]) > len(lists[0]) else "input-missing"
    return finding(rule, message, remedy=_SAME)


def _compare_values(role: str, reference: Value, tested: Value, names: tuple[str, str]) -> Iterator[Finding]:
    value = f"{role} {reference.name!r}"
    if reference.element_type != tested.element_type:
        types = [f"{type_name(each)} in {name}" for each, name in zip((reference, tested), names, strict=True)]
        yield finding("dtype-mismatch", f"{value} is {listed(types)}", remedy=_SAME)
    if reference.dims is None or tested.dims is None:
        if reference.dims != tested.dims:
            message = f"{value} has no declared rank in {names[0] if reference.dims is None else names[1]}"
            yield finding("shape-mismatch", message, severity=Severity.NOTE, remedy=_NONE)
        return
    if len(reference.dims) != len(tested.dims):
        message = f"{value} has {len(reference.dims)} axes in {names[0]} and {len(tested.dims)} in {names[1]}"
        yield finding("shape-mismatch", message, remedy=_SAME)
        return
    for axis, dims in enumerate(zip(reference.dims, tested.dims, strict=True)):
        if dims[0] == dims[1]:
            continue
        words = [repr(dim) if isinstance(dim, str) else dim or "unnamed" for dim in dims]
        message = f"axis {axis} of {value} is {words[0]} in {names[0]} and {words[1]} in {names[1]}"
        fixed = [isinstance(dim, int) for dim in dims]
        if all(fixed):
            yield finding("shape-mismatch", message, remedy=_SAME)
        elif any(fixed):
            is_note = role == "output"
            yield finding("static-axis", message, remedy=_SAME, severity=Severity.NOTE if is_note else None)


def type_name(value: Value) -> str:
    """The data type of a value as ONNX names it, such as ``float16``."""
    if value.element_type == onnx.TensorProto.UNDEFINED:
        return "not a tensor"
    return data_type_name(value.element_type)


Sizes = Mapping[str, tuple[int, ...]]
"""Sizes of dynamic axes by name: the first is that of the example, the others are tried, too."""


def axis_label(value: Value, axis: int) -> str:
    """The name of a dynamic axis; for an unnamed one, ``input[axis]``."""
    dim = (value.dims or ())[axis]
    return dim if isinstance(dim, str) else f"{value.name}[{axis}]"


@dataclass(frozen=True, kw_only=True)
class AxisVariables:
    """What the sizes of the dynamic axes of a file's inputs follow from."""

    sizes: Mapping[str, AxisSize]
    """The size of each dynamic axis, by :func:`axis_label`."""
    positions: Mapping[str, int]
    """The variables, each with the first axis at which it occurs."""

    def shapes(self, values: Iterable[Value], chosen: Mapping[str, int]) -> list[list[int]] | None:
        """The inputs' shapes for sizes of the variables; ``None`` if an axis would have a size below 1."""
        shapes = []
        for value in values:
            shape: list[int] = []
            for axis, dim in enumerate(value.dims or ()):
                size = dim if isinstance(dim, int) else self.sizes[axis_label(value, axis)].at(chosen)
                if size is None or (size < 1 and not isinstance(dim, int)):
                    return None
                shape.append(size)
            shapes.append(shape)
        return shapes


def axis_variables(values: Sequence[Value]) -> AxisVariables:
    """What the sizes of the dynamic axes of inputs follow from."""
    places = [
        (axis_label(value, axis), axis)
        for value in values
        for axis, dim in enumerate(value.dims or ())
        if not isinstance(dim, int)
    ]
    sizes = axes_of_file(label for label, _ in places)
    positions: dict[str, int] = {}
    for label, axis in places:
        for name in sizes[label].names:
            positions[name] = min(axis, positions.get(name, axis))
    return AxisVariables(sizes=sizes, positions=positions)
