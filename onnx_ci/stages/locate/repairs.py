"""Which node of several is at fault: the one whose repair alone makes their result right."""

from __future__ import annotations

import itertools
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch

from onnx_ci.stages.locate.single_nodes import FileNode, NodeError, NodeRunner

_MOST_TRIES = 200
_MOST_OTHERS = 24
"""How many values of the file are tried in the place of an input."""
_MOST_WINDOWS = 64
"""How many parts of a tensor are tried in the place of the part that a node takes."""
_TAKING_PARTS = frozenset({"Slice", "Split", "Gather"})


@dataclass(frozen=True, kw_only=True)
class _Repair:
    """Another value for an input of a node."""

    name: str
    """The input."""
    tensor: torch.Tensor
    reader: FileNode | None
    """The only node that gets it; ``None`` for all that read the input."""
    culprit: FileNode
    """The node that is at fault if the result is right then."""


def repaired_node(
    runner: NodeRunner,
    values: Mapping[str, torch.Tensor],
    nodes: Collection[int],
    result: str,
    is_right: Callable[[torch.Tensor], bool],
    deadline: float,
) -> int | None:
    """The position of the node at fault among several, or of one before them; ``None`` if no repair is found.

    A node that may be left out, that should take another part of its input, or that should give or read another value, is at
    fault if the result is right then.

    Args:
        runner: the file.
        values: what its nodes compute, by name.
        nodes: the positions of the nodes.
        result: the name of the value that they compute together.
        is_right: whether a tensor is what that value should be.
        deadline: when to stop, by :func:`time.thread_time`.
    """
    for repair in itertools.islice(_repairs(runner, values, sorted(nodes)), _MOST_TRIES):
        if time.thread_time() > deadline:
            return None
        made = _result(runner, values, nodes, result, repair)
        if made is not None and is_right(made):
            return repair.culprit.position
    return None


def _repairs(runner: NodeRunner, values: Mapping[str, torch.Tensor], nodes: Collection[int]) -> Iterator[_Repair]:
    readers = [runner.nodes[position] for position in nodes]
    for reader in readers:
        for name in reader.inputs:
            if name in runner.makers:
                yield from _of_maker(runner.makers[name], name, values)
    for reader in readers:
        for name in reader.inputs:
            if name not in runner.constants:
                yield from _of_reader(reader, name, runner, values)


def _of_maker(maker: FileNode, name: str, values: Mapping[str, torch.Tensor]) -> Iterator[_Repair]:
    """What the node that computes a value may do wrong: anything at all, give that output, take that part of its input."""
    now = values.get(name)
    given = [values[each] for each in maker.inputs if each in values]
    same = [each for each in given if now is not None and each.shape == now.shape]
    same += [values[each] for each in maker.outputs if each != name and now is not None and _is_like(values.get(each), now)]
    windows = list(_windows(given[0]))[:_MOST_WINDOWS] if maker.operator in _TAKING_PARTS and given else []
    for tensor in (*same, *windows):
        yield _Repair(name=name, tensor=tensor, reader=None, culprit=maker)


def _of_reader(reader: FileNode, name: str, runner: NodeRunner, values: Mapping[str, torch.Tensor]) -> Iterator[_Repair]:
    """What a node may read in the place of an input."""
    now = values.get(name)
    others = (
        tensor
        for other, tensor in values.items()
        if other != name and other not in runner.constants and now is not None and _is_like(tensor, now)
        if other not in runner.makers or runner.makers[other].position < reader.position
    )
    for tensor in itertools.islice(others, _MOST_OTHERS):
        yield _Repair(name=name, tensor=tensor, reader=reader, culprit=reader)


def _is_like(tensor: torch.Tensor | None, other: torch.Tensor) -> bool:
    return tensor is not None and tensor.shape == other.shape and tensor.dtype == other.dtype


def _windows(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The parts of a tensor along its axes, those along the first axis first."""
    for axis, size in enumerate(tensor.shape):
        for length in range(1, size):
            yield from (tensor.narrow(axis, start, length) for start in range(size - length + 1))


def _result(
    runner: NodeRunner, values: Mapping[str, torch.Tensor], nodes: Collection[int], result: str, repair: _Repair
) -> torch.Tensor | None:
    """What the nodes compute after a repair; ``None`` if that is not possible, or the repair does not reach the result."""
    changed = {} if repair.reader is not None else {repair.name: repair.tensor}
    for position in sorted(nodes):
        node = runner.nodes[position]
        own = {repair.name: repair.tensor} if node is repair.reader else {}
        if not own and changed.keys().isdisjoint(node.inputs):
            continue
        try:
            made = runner.run(node, ChainMap(own, changed, dict(values)))
        except NodeError:
            return None
        changed |= dict(zip(node.outputs, made, strict=True))
    return changed.get(result)
