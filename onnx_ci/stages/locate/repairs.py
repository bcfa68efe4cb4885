"""Which node of several is at fault: the one whose repair alone makes their result right."""

from __future__ import annotations

import itertools
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from onnx.helper import make_attribute

from onnx_ci.stages.locate.single_nodes import FileNode, NodeError, NodeRunner

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
class _Repair:
    """A change of one node, or of what it takes."""

    culprit: FileNode
    """The node that is at fault if the result is right then."""
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """Other values for inputs."""
    reader: FileNode | None = None
    """The only node that gets them; ``None`` for all."""
    node: FileNode | None = None
    """Another node in the place of the culprit."""


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """A node whose repair makes a result right."""

    position: int
    """Its position in the file."""
    result: torch.Tensor
    """The result then."""


def repaired_node(
    runner: NodeRunner,
    values: dict[str, torch.Tensor],
    nodes: Collection[int],
    result: str,
    is_right: Callable[[torch.Tensor], bool],
    deadline: float,
    *,
    wanted: torch.Tensor | None = None,
) -> Repaired | None:
    """The node at fault among several, or before them; ``None`` if no repair is found.

    A node is at fault if the result is right once it is left out, adds in place of multiplying and the like, has another
    constant or axis, takes another part of its input, or gives or reads another value.

    Args:
        runner: the file.
        values: what its nodes compute, by name.
        nodes: the positions of the nodes.
        result: the name of the value that they compute together.
        is_right: whether a tensor is what that value should be.
        deadline: when to stop, by :func:`time.thread_time`.
        wanted: what the result should be, if that is known.
    """
    makers = {runner.makers[name].position for each in nodes for name in runner.nodes[each].inputs if name in runner.makers}
    nodes = {*nodes, *makers}  # one may be at fault although the model computes its value, but in another place
    for repair in itertools.islice(_repairs(runner, values, sorted(nodes), result, wanted), _MOST_TRIES):
        made = _result(runner, values, nodes, result, repair, deadline)
        if made is not None and is_right(made):
            return Repaired(position=repair.culprit.position, result=made)
    return None


def _repairs(
    runner: NodeRunner, values: Mapping[str, torch.Tensor], nodes: Collection[int], result: str, wanted: torch.Tensor | None
) -> Iterator[_Repair]:
    readers = [runner.nodes[position] for position in nodes]
    if wanted is not None and result in runner.makers:
        yield from _of_constant(runner.makers[result], values, wanted)
    for node in readers:
        if node.operator == "Identity":
            yield from (_Repair(culprit=node, node=each) for each in _missing(node, runner, values))
    for node in readers:
        yield from (_Repair(culprit=node, node=each) for each in _variants(node, values))
    for reader in readers:
        for name in reader.inputs:
            if name in runner.makers:
                yield from _of_maker(runner.makers[name], name, values)
    for reader in readers:
        for name in reader.inputs:
            if name not in runner.constants:
                yield from _of_reader(reader, name, runner, values)


def _of_constant(node: FileNode, values: Mapping[str, torch.Tensor], wanted: torch.Tensor) -> Iterator[_Repair]:
    """The constant with which a node of arithmetic would give what is wanted."""
    if node.operator not in _ARITHMETIC or len(node.inputs) != 2 or any(name not in values for name in node.inputs):
        return
    for name, other in (node.inputs, node.inputs[::-1]):
        given = values[other].double()
        if values[name].numel() == 1 and given.numel() == wanted.numel() > 1 and given.is_floating_point():
            at = int(given.abs().argmax())
            one, should = given.flatten()[at], wanted.flatten()[at].double()
            solved = {"Add": should - one, "Sub": one - should, "Mul": should / one, "Div": one / should}[node.operator]
            yield _Repair(inputs={name: solved.to(values[name].dtype).reshape(values[name].shape)}, culprit=node, reader=node)


def _missing(node: FileNode, runner: NodeRunner, values: Mapping[str, torch.Tensor]) -> Iterator[FileNode]:
    """What may be missing where an Identity stands: arithmetic with another value."""
    now = values.get(node.inputs[0])
    for other in _others_like(now, node, runner, values):
        for operator in _ARITHMETIC:
            yield node.changed(operator, (), (node.inputs[0], other))


def _variants(node: FileNode, values: Mapping[str, torch.Tensor]) -> Iterator[FileNode]:
    """Nodes that are like a node but for the operator, or the axis."""
    attributes = {each.name: each for each in node.proto.attribute}
    if "axes" in attributes and node.inputs[0] in values:
        for axis in range(values[node.inputs[0]].dim()):
            yield node.changed(node.operator, {**attributes, "axes": make_attribute("axes", [axis])}.values())
    for group in _LIKE_EACH_OTHER:
        if node.operator in group:
            yield from (node.changed(each, attributes.values()) for each in group if each != node.operator)


def _of_maker(maker: FileNode, name: str, values: Mapping[str, torch.Tensor]) -> Iterator[_Repair]:
    """What the node that computes a value may do wrong: anything at all, give that output, take that part of its input."""
    now = values.get(name)
    given = [values[each] for each in maker.inputs if each in values]
    same = [each for each in given if now is not None and each.shape == now.shape]
    same += [values[each] for each in maker.outputs if each != name and _is_like(values.get(each), now)]
    # There are as many windows as the square of a size, so they are never all made.
    windows = itertools.islice(_windows(given[0]), _MOST_WINDOWS) if maker.operator in _TAKING_PARTS and given else ()
    for tensor in (*same, *windows):
        yield _Repair(inputs={name: tensor}, culprit=maker)


def _of_reader(reader: FileNode, name: str, runner: NodeRunner, values: Mapping[str, torch.Tensor]) -> Iterator[_Repair]:
    """What a node may read in the place of an input."""
    for other in _others_like(values.get(name), reader, runner, values):
        if other != name and other not in runner.constants:
            yield _Repair(inputs={name: values[other]}, reader=reader, culprit=reader)


def _others_like(
    now: torch.Tensor | None, reader: FileNode, runner: NodeRunner, values: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """The names of values with the same shape and data type that a node could read; the nearest first."""
    like = (name for name in reversed(list(values)) if _is_like(values[name], now))
    before = (name for name in like if name not in runner.makers or runner.makers[name].position < reader.position)
    return itertools.islice(before, _MOST_OTHERS)


def _is_like(tensor: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return tensor is not None and other is not None and tensor.shape == other.shape and tensor.dtype == other.dtype


def _windows(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The parts of a tensor along its axes, those along the first axis first."""
    for axis, size in enumerate(tensor.shape):
        for length in range(1, size):
            yield from (tensor.narrow(axis, start, length) for start in range(size - length + 1))


def _result(
    runner: NodeRunner,
    values: dict[str, torch.Tensor],
    nodes: Collection[int],
    result: str,
    repair: _Repair,
    deadline: float,
) -> torch.Tensor | None:
    """What the nodes compute after a repair; ``None`` if that is not possible, or the repair does not reach the result."""
    changed = {} if repair.reader is not None else dict(repair.inputs)
    for position in sorted(nodes):
        node = runner.nodes[position]
        own = repair.inputs if node is repair.reader else {}
        other = repair.node if node is repair.culprit else None
        if not own and other is None and changed.keys().isdisjoint(node.inputs):
            continue
        if time.thread_time() > deadline:
            return None
        try:
            made = runner.run(other or node, ChainMap(own, changed, values))
        except NodeError:
            return None
        changed |= dict(zip(node.outputs, made, strict=True))
    return changed.get(result)
