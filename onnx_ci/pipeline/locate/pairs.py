"""A file on one input, each of its values paired with the equal value of the model.

Each node is run alone. If its output equals a tensor that the model computes, up to its shape, the two are a *pair*, and later
nodes get the model's tensor in its place, so that they inherit no error.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping

import torch

from onnx_ci.pipeline.locate.model_trace import ModelTrace
from onnx_ci.pipeline.locate.single_nodes import FileNode, NodeError, NodeRunner
from onnx_ci.pipeline.model.tensors import differences, has_noise

_AS_CLOSE = 4
"""How many times as far as the closest value another one may be and still count as just as close."""
_SAMPLED = 256


class PairedFile:
    """The values of a file on one input, and which of them are the model's.

    The file's inputs are first those of the model, in its order; then weights, if they are inputs. A node may be off by
    ``limit`` times the rounding of one operator.
    """

    def __init__(self, runner: NodeRunner, trace: ModelTrace, feeds: Mapping[str, torch.Tensor], limit: float) -> None:
        self.runner, self.trace, self._limit = runner, trace, limit
        self.values: dict[str, torch.Tensor] = {**runner.constants, **feeds}
        """The file's values by name, each replaced by the model's where the two correspond."""
        self.pairs: dict[str, int] = {}
        """For the file's values that correspond to one of the model, its position in the trace."""
        self.origins: dict[str, frozenset[int]] = {}
        """For each value of the file, the positions of the nearest values before it that are paired."""
        self._by_size: dict[int, list[int]] = {}
        for position, value in enumerate(trace.values):
            if value.tensor.numel():  # what is empty equals everything
                self._by_size.setdefault(value.tensor.numel(), []).append(position)
        self._ancestors = _ancestors(trace)
        of_inputs = sum(1 << position for position, value in enumerate(trace.values) if value.operator is None)
        self._of_sizes = {position for position, bits in enumerate(self._ancestors) if not bits & of_inputs}
        """What the model makes of sizes alone, such as positions."""
        for name, tensor in runner.constants.items():
            if (partner := self._partner(tensor, frozenset())) is not None:
                self._pair(name, partner)
        inputs = itertools.takewhile(lambda position: trace.values[position].operator is None, range(len(trace.values)))
        for name, position in zip(feeds, inputs, strict=False):
            self._pair(name, position)
        for node in runner.nodes:
            self._run(node)

    @property
    def is_wrong(self) -> bool:
        """Whether an output is wrong, or is not computed."""
        return bool(self.missing_values()) or any(name not in self.values for name in self.runner.outputs)

    def missing_values(self) -> set[int]:
        """The positions of the model's values that wrong outputs of the file depend on, and that the file does not have."""
        empty = (position for position, value in enumerate(self.trace.values) if not value.tensor.numel())
        paired = {*self.pairs.values(), *empty}  # in what is empty, nothing can be missing
        pending = [
            position
            for name, position in zip(self.runner.outputs, self.trace.outputs, strict=False)
            if position is not None and not (name in self.values and self.equals(self.values[name], position))
        ]
        missing: set[int] = set()
        while pending:
            position = pending.pop()
            operator = self.trace.values[position].operator
            if position not in missing and operator is not None and self.trace.operators[operator].inputs:
                missing.add(position)
                inputs = self.trace.operators[operator].inputs
                pending += [each for each in inputs if self.trace.values[each].same_as not in paired]
        return missing

    def equals(self, tensor: torch.Tensor, position: int) -> bool:
        """Whether a tensor has the values of one of the model's, as far as rounding allows."""
        return self._distance(tensor, position) <= self._limit

    def is_before(self, position: int, target: int) -> bool:
        """Whether the model computes the value at ``target`` from that at ``position``, or both are the same."""
        return bool(self._ancestors[target] >> position & 1)

    def partners_of(self, positions: Collection[int]) -> list[str]:
        """The file's values that correspond to those of the model at these positions."""
        same = {self.trace.values[each].same_as for each in positions}
        return [name for name, position in self.pairs.items() if position in same]

    def is_passed_on(self, name: str) -> bool:
        """Whether the node that gives a value also gets it."""
        node = self.runner.makers.get(name)
        return node is not None and name in self.pairs and any(self.pairs.get(each) == self.pairs[name] for each in node.inputs)

    def fails(self, node: FileNode) -> bool:
        """Whether a node cannot run on its inputs."""
        has_failed = any(name not in self.values for name in node.outputs)
        return has_failed and all(name in self.values for name in node.inputs)

    def anchored(self, position: int, like: torch.Tensor | None) -> torch.Tensor:
        """The model's tensor in the shape and data type that the file has there, as far as these are known."""
        tensor = self.trace.values[position].tensor
        if like is None:
            return tensor.float()
        return tensor.to(like.dtype).reshape(like.shape if tensor.numel() == like.numel() else tensor.shape)

    def correct(self, name: str, target: int, like: torch.Tensor | None) -> None:
        """Put the model's tensor in the place of a value, in the shape of ``like``, and run what depends on it again."""
        self._pair(name, target)
        self.values[name] = self.anchored(target, like)
        changed = {name}
        for node in self.runner.nodes[self.runner.makers[name].position + 1 :]:
            if not changed.isdisjoint(node.inputs):
                changed |= {*node.outputs}
                self._run(node)

    def _pair(self, name: str, position: int) -> None:
        self.pairs[name], self.origins[name] = self.trace.values[position].same_as, frozenset({position})

    def _run(self, node: FileNode) -> None:
        """Run a node, and replace each output by the model's tensor that it equals."""
        origins = frozenset().union(*(self.origins.get(name, ()) for name in node.inputs))
        try:
            tensors = self.runner.run(node, self.values)
        except NodeError:
            for name in node.outputs:
                self.values.pop(name, None)
                self.origins[name] = origins
            return
        for name, tensor in zip(node.outputs, tensors, strict=True):
            partner = self._partner(tensor, origins)
            self.pairs.pop(name, None)
            self.values[name], self.origins[name] = tensor, origins
            if partner is not None:
                self._pair(name, partner)
                self.values[name] = self.anchored(partner, tensor)

    def _partner(self, tensor: torch.Tensor, origins: frozenset[int]) -> int | None:
        """The model's tensor that a node computes from ``origins``, or passes on; preferably one that has no partner yet."""
        paired = set(self.pairs.values())
        distances = {
            position: self._distance(tensor, position)
            for position in self._by_size.get(tensor.numel(), ())
            if position in self._of_sizes or any(self.is_before(origin, position) for origin in origins)
        }
        equal = [position for position, distance in distances.items() if distance <= self._limit]
        # An operator may change little, such as a BatchNorm that was not trained.
        farthest = min((distances[each] for each in equal), default=0.0) * _AS_CLOSE + 1
        is_paired = {each: self.trace.values[each].same_as in paired for each in equal}
        of_sizes = self._of_sizes
        return min(equal, key=lambda each: (each in of_sizes, distances[each] > farthest, is_paired[each], each), default=None)

    def _distance(self, tensor: torch.Tensor, position: int) -> float:
        """How far a tensor is from one of the model's, in units of its noise."""
        value = self.trace.values[position]
        if has_noise(tensor) != has_noise(value.tensor) or tensor.numel() != value.tensor.numel():
            return math.inf
        elements, expected, noise = tensor.flatten(), value.tensor.flatten(), value.noise or math.ulp(0.0)
        sample = slice(None, None, max(1, len(elements) // _SAMPLED))  # most values differ everywhere
        distance = _largest_difference(elements[sample], expected[sample]) / noise
        return distance if distance > self._limit else _largest_difference(elements, expected) / noise


def _largest_difference(tensor: torch.Tensor, other: torch.Tensor) -> float:
    return differences(tensor, other).max().item() if tensor.numel() else 0.0


def _ancestors(trace: ModelTrace) -> list[int]:
    """For each value of a trace, the values that it may be computed from, itself included, as bits of a number."""
    bits: list[int] = []
    for position, value in enumerate(trace.values):
        inputs = () if value.operator is None else trace.operators[value.operator].inputs
        bits.append(functools.reduce(lambda union, each: union | bits[each], inputs, 1 << position))
    for position, value in enumerate(trace.values):
        steps = () if value.operator is None else trace.taken_by(value.operator)
        bits[position] = functools.reduce(lambda union, each: union | bits[each], steps, bits[position])
    return bits
