"""Which node of several is at fault: the one whose repair alone makes their result right.

A repair leaves a node out, lets it add in place of multiplying and the like, gives it another constant, axis or input, another
part of its input, or another of its outputs. Only this tells which of several ``Slice`` takes the wrong states of an ``LSTM``.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from onnx.helper import make_attribute

from onnx_ci.pipeline.locate.single_nodes import FileNode, NodeError, NodeRunner
from onnx_ci.processes.clock import CLOCK

_MOST_TRIES = 2000
_MOST_OTHERS = 24
"""How many values of the file are tried in the place of an input."""
_MOST_WINDOWS = 64
"""How many parts of a tensor are tried in the place of the part that a node takes."""
_TAKING_PARTS = frozenset({"Slice", "Split", "Gather"})
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_LIKE_EACH_OTHER = (
    _ARITHMETIC,
    ("Abs", "Cos", "Erf", "Exp", "Identity", "Log", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sin", "Sqrt", "Tanh"),
    ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"),
)
"""Operators with the same number of inputs, of which one may stand for another."""


@dataclass(frozen=True, kw_only=True)
class WrongResult:
    """A value of a file that is wrong, and the nodes that compute it from right ones."""

    runner: NodeRunner
    values: dict[str, torch.Tensor]
    """What the nodes of the file compute, by name."""
    nodes: Collection[int]
    name: str
    wanted: torch.Tensor | None = None
    """What it should be, if that is known."""


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """A node whose repair makes a result right."""

    position: int
    result: torch.Tensor


def repaired_node(wrong: WrongResult, is_right: Callable[[torch.Tensor], bool], deadline: float) -> Repaired | None:
    """The node at fault among those of a wrong result, or directly before them; ``None`` if no repair is found."""
    makers = wrong.runner.makers
    before = {makers[name].position for each in wrong.nodes for name in wrong.runner.nodes[each].inputs if name in makers}
    # A node before them may be at fault although the model computes its value, but in another place.
    nodes = [wrong.runner.nodes[position] for position in sorted({*wrong.nodes, *before})]
    for repair in itertools.islice(_repairs(wrong, nodes), _MOST_TRIES):
        result = _result(wrong, nodes, repair, deadline)
        if result is not None and is_right(result):
            return Repaired(position=repair.culprit.position, result=result)
    return None


@dataclass(frozen=True, kw_only=True)
class _Repair:
    """A change of one node, or of what it takes."""

    culprit: FileNode
    """The node that is at fault if the result is right then."""
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Other values for inputs."""
    reader: FileNode | None = None
    """The only node that gets them; ``None`` for all."""
    node: FileNode | None = None
    """Another node in the place of the culprit."""


def _repairs(wrong: WrongResult, nodes: Collection[FileNode]) -> Iterator[_Repair]:
    makers = wrong.runner.makers
    if wrong.wanted is not None and wrong.name in makers:
        yield from _other_constants(makers[wrong.name], wrong.values, wrong.wanted)
    for node in nodes:
        if node.operator == "Identity":
            # Arithmetic with another value may be missing there.
            for other, operator in itertools.product(_names_like(node.inputs[0], node, wrong), _ARITHMETIC):
                yield _Repair(culprit=node, node=node.changed(operator, (), (node.inputs[0], other)))
    for node in nodes:
        yield from (_Repair(culprit=node, node=each) for each in _variants(node, wrong.values))
    for node in nodes:
        for name in node.inputs:
            if name in makers:
                yield from _other_results(makers[name], name, wrong.values)
    for node in nodes:
        for name in node.inputs:
            others = _names_like(name, node, wrong) if name not in wrong.runner.constants else ()
            for other in others:
                if other != name and other not in wrong.runner.constants:
                    yield _Repair(inputs={name: wrong.values[other]}, reader=node, culprit=node)


def _other_constants(node: FileNode, values: Mapping[str, torch.Tensor], wanted: torch.Tensor) -> Iterator[_Repair]:
    """The constant with which a node of arithmetic would give what is wanted."""
    if node.operator not in _ARITHMETIC or len(node.inputs) != 2 or any(name not in values for name in node.inputs):
        return
    for name, other in (node.inputs, node.inputs[::-1]):
        operand = values[other].double()
        if values[name].numel() == 1 and operand.numel() == wanted.numel() > 1 and operand.is_floating_point():
            largest = int(operand.abs().argmax())
            element, result = operand.flatten()[largest], wanted.flatten()[largest].double()
            solved = {"Add": result - element, "Sub": element - result, "Mul": result / element, "Div": element / result}
            constant = solved[node.operator].to(values[name].dtype).reshape(values[name].shape)
            yield _Repair(inputs={name: constant}, culprit=node, reader=node)


def _variants(node: FileNode, values: Mapping[str, torch.Tensor]) -> Iterator[FileNode]:
    """Nodes that differ from a node in the operator or the axis only."""
    attributes = {each.name: each for each in node.proto.attribute}
    if "axes" in attributes and node.inputs[0] in values:
        for axis in range(values[node.inputs[0]].dim()):
            yield node.changed(node.operator, {**attributes, "axes": make_attribute("axes", [axis])}.values())
    for group in _LIKE_EACH_OTHER:
        if node.operator in group:
            yield from (node.changed(each, attributes.values()) for each in group if each != node.operator)


def _other_results(maker: FileNode, name: str, values: Mapping[str, torch.Tensor]) -> Iterator[_Repair]:
    """What the node that computes a value may have to give: its input, another of its outputs, another part of its input."""
    value = values.get(name)
    inputs = [values[each] for each in maker.inputs if each in values]
    same = [each for each in inputs if value is not None and each.shape == value.shape]
    same += [values[each] for each in maker.outputs if each != name and _is_like(values.get(each), value)]
    # There are as many windows as the square of a size, so they are never all made.
    windows = itertools.islice(_windows(inputs[0]), _MOST_WINDOWS) if maker.operator in _TAKING_PARTS and inputs else ()
    for tensor in (*same, *windows):
        yield _Repair(inputs={name: tensor}, culprit=maker)


def _names_like(name: str, reader: FileNode, wrong: WrongResult) -> Iterator[str]:
    """The values that a node could read in the place of another of that shape and data type, by name; the nearest first."""
    value, makers = wrong.values.get(name), wrong.runner.makers
    like = (each for each in reversed(list(wrong.values)) if _is_like(wrong.values[each], value))
    before = (each for each in like if each not in makers or makers[each].position < reader.position)
    return itertools.islice(before, _MOST_OTHERS)


def _is_like(tensor: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return tensor is not None and other is not None and tensor.shape == other.shape and tensor.dtype == other.dtype


def _windows(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The parts of a tensor along its axes, those along the first axis first."""
    for axis, size in enumerate(tensor.shape):
        for length in range(1, size):
            yield from (tensor.narrow(axis, start, length) for start in range(size - length + 1))


def _result(wrong: WrongResult, nodes: Collection[FileNode], repair: _Repair, deadline: float) -> torch.Tensor | None:
    """What the nodes compute after a repair; ``None`` if that is not possible, or the repair does not reach the result."""
    changed = {} if repair.reader is not None else dict(repair.inputs)
    for node in nodes:
        inputs = dict(repair.inputs) if node is repair.reader else {}
        repaired = repair.node if node is repair.culprit else None
        if not inputs and repaired is None and changed.keys().isdisjoint(node.inputs):
            continue
        if CLOCK.thread_time() > deadline:
            return None
        try:
            outputs = wrong.runner.run(repaired or node, ChainMap(inputs, changed, wrong.values))
        except NodeError:
            return None
        changed |= zip(node.outputs, outputs, strict=True)
    return changed.get(wrong.name)
