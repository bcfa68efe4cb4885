"""The nodes at which a file goes wrong: those that get right inputs and give a wrong output.

Each node is run alone. If its output equals a tensor that the model computes, up to its shape, the two are a *pair*, and later
nodes get the model's tensor in its place, so that no error is inherited. Where pairs end, the first operator of the model whose
result the file does not have is where the fault begins. Its result is put in the place of one node's output after another:
where later nodes then compute what the model computes, it belongs, and the nodes before it are the culprits. So a file is
understood by what it computes alone, whatever made it, and nothing is claimed that was not tried.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.results.records import Culprit, NodeStep
from onnx_ci.stages.export.places import source_line
from onnx_ci.stages.locate.frozen import what_was_frozen
from onnx_ci.stages.locate.model_trace import ModelTrace
from onnx_ci.stages.locate.neighbourhood import Understood, steps_around
from onnx_ci.stages.locate.repairs import Repaired, repaired_node
from onnx_ci.stages.locate.single_nodes import FileNode, NodeError, NodeRunner
from onnx_ci.stages.model.live_model import differences, has_noise

LIMITS = (64.0, 16.0)
"""How many times the rounding of one operator a node may be off by. Another order of summation explains no more than the first;
a fault by which all outputs would be right is smaller."""

_AS_CLOSE = 4
"""How much further than the closest one a value may be and still count as as close."""
_SAMPLED = 256
_MOST_CULPRITS = 8

# What is tried for one culprit. A fault that is further from where pairs end is not found.
_MOST_STARTS = 4
"""How many of the first missing operators."""
_MOST_CANDIDATES = 24
"""In place of how many values of the file."""
_NEXT = 4
"""How many of the model's next values in place of each of them."""
_MOST_TARGETS = 16
"""How many of its later values of the same size."""
_MOST_NODES = 8
"""How many nodes after it may run until one of them computes what the model computes."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Nodes that together give a wrong output for right inputs."""

    nodes: frozenset[int]
    """Their positions in the file."""
    operators: tuple[int, ...]
    """The positions of the operators that they should compute."""
    first: int | None
    """The first of these; ``None`` if the model computes nothing that the file does not have."""
    failed: int | None
    """The position of the node that cannot run, if one cannot."""
    likeliest: int | None = None
    """The position of the node whose repair makes the output right, if one is known."""

    def with_likeliest(self, repaired: Repaired | None) -> Span:
        """The same nodes, and which of them is likeliest at fault if a repair is known."""
        if repaired is None:
            return self
        return dataclasses.replace(self, nodes=self.nodes | {repaired.position}, likeliest=repaired.position)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a file goes wrong on one input."""

    culprits: tuple[tuple[Culprit, frozenset[str]], ...] = ()
    """In the order of the file, each with the outputs that depend on it."""
    steps: tuple[NodeStep, ...] = ()
    """The nodes around them."""

    def culprits_of(self, output: str | None) -> tuple[Culprit, ...]:
        """Those on which an output depends; all if there is none, or if the file fails as a whole."""
        found = tuple(culprit for culprit, outputs in self.culprits if output in outputs)
        return found or tuple(culprit for culprit, _ in self.culprits)


def find_culprits(
    runner: NodeRunner,
    trace: ModelTrace,
    feeds: Mapping[str, torch.Tensor],
    *,
    on_example: ModelTrace | None,
    has_failed: bool,
    seconds: float,
) -> Places:
    """The culprits of a file on one input, and the nodes around them. There are none if the nodes are right or not paired.

    Args:
        runner: the file.
        trace: what the model computes on the same input.
        feeds: the file's inputs by name: first those of the model, in its order; then weights, if they are inputs.
        on_example: what the model computes on the example; ``None`` if that is this input.
        has_failed: whether the runtime fails on the input, so that a node that cannot run is a culprit.
        seconds: how long this thread may compute.
    """
    deadline = time.thread_time() + seconds
    searches = (_Search(runner, trace, feeds, limit, deadline) for limit in LIMITS)
    search = next((each for each in searches if each.is_wrong), None)
    spans: list[Span] = []
    while search is not None and len(spans) < _MOST_CULPRITS and (found := search.next_culprit()) is not None:
        spans.append(found)
    if search is not None and not spans and has_failed and (failing := search.failing()) is not None:
        spans.append(failing)
    distinct = sorted(_without_overlap(spans), key=lambda each: min(each.nodes))
    if search is None:
        return Places()
    faulty = {position: trace.source_of(each.first) for each in distinct for position in each.nodes}
    understood = Understood(runner=runner, trace=trace, values=search.values, pairs=search.pairs, faulty=faulty)
    return Places(
        culprits=tuple((_culprit(runner, trace, on_example, each), runner.outputs_after(each.nodes)) for each in distinct),
        steps=steps_around(understood, deadline),
    )


def with_recipe(culprit: Culprit, recipe: Recipe) -> Culprit:
    """The culprit, with the line of its recipe where no line of the model's code is known."""
    if culprit.source is not None:
        return culprit
    return dataclasses.replace(culprit, recipe=source_line(str(recipe.file), recipe.line))


def _without_overlap(spans: Iterable[Span]) -> list[Span]:
    """The spans; of those that overlap, what they share if one fault there may explain them all."""
    distinct: list[Span] = []
    for span in spans:
        for number, known in enumerate(distinct):
            shared = known.nodes & span.nodes
            likeliest = {each.likeliest for each in (known, span)} - {None}
            if shared and len(likeliest) <= 1 and likeliest <= shared:
                distinct[number] = dataclasses.replace(known, nodes=shared, likeliest=next(iter(likeliest), None))
                break
        else:
            distinct.append(span)
    return distinct


def _culprit(runner: NodeRunner, trace: ModelTrace, on_example: ModelTrace | None, span: Span) -> Culprit:
    nodes = [runner.nodes[position] for position in sorted(span.nodes)]
    first = None if span.first is None else trace.operators[span.first]
    way = None if first is None or on_example is None else what_was_frozen(first, trace, on_example)

    def rank(node: FileNode) -> tuple[bool, ...]:
        # Exporters write an Identity where something is missing.
        return node.position != span.likeliest, node.operator != "Identity", node.position != span.failed, node.only_moves

    return Culprit(
        nodes=tuple(node.title for node in sorted(nodes, key=rank)),
        operators=tuple(dict.fromkeys(trace.operators[each].name for each in span.operators)),
        module="" if first is None else first.module,
        source=trace.source_of(span.first) if way is None else way[0],
        frozen=None if way is None else way[1],
    )


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a value of the model belongs in the file."""

    name: str
    target: int
    span: Span
    end: tuple[str, int]
    """The last value that the span's nodes compute, and which one of the model it should be."""


@dataclass(frozen=True, kw_only=True)
class _Way:
    """The nodes from a value of the file to one that the model computes."""

    nodes: tuple[FileNode, ...]
    end: tuple[str, int]
    """That value, and its position in the trace."""


class _Search:
    def __init__(
        self, runner: NodeRunner, trace: ModelTrace, feeds: Mapping[str, torch.Tensor], limit: float, deadline: float
    ) -> None:
        self._runner, self._trace, self._limit, self._deadline = runner, trace, limit, deadline
        self.values: dict[str, torch.Tensor] = {**runner.constants, **feeds}
        """What the file computes, with the model's tensor in the place of each that it equals or should equal."""
        self.pairs: dict[str, int] = {}
        """The positions of these tensors in the trace."""
        self._origins: dict[str, frozenset[int]] = {}
        """For each value of the file, the nearest values before it that are paired."""
        self._consumers: dict[str, list[FileNode]] = {}
        for node in runner.nodes:
            for name in node.inputs:
                self._consumers.setdefault(name, []).append(node)
        self._by_size: dict[int, list[int]] = {}
        for position, value in enumerate(trace.values):
            if value.tensor.numel():  # what is empty equals everything
                self._by_size.setdefault(value.tensor.numel(), []).append(position)
        self._ancestors = _ancestors(trace)
        self._corrected: set[str] = set()
        given = itertools.takewhile(lambda position: trace.values[position].operator is None, range(len(trace.values)))
        for name, position in zip(feeds, given, strict=False):
            self._pair(name, position)
        for node in runner.nodes:
            self._run(node, self.values)

    # --- pairs

    def _pair(self, name: str, position: int) -> None:
        self.pairs[name], self._origins[name] = self._trace.values[position].same_as, frozenset({position})

    def _run(self, node: FileNode, values: dict[str, torch.Tensor]) -> None:
        """Run a node, and replace each output by the model's tensor that it equals."""
        origins = frozenset().union(*(self._origins.get(name, ()) for name in node.inputs))
        try:
            made = self._runner.run(node, values)
        except NodeError:
            for name in node.outputs:
                values.pop(name, None)
                self._origins[name] = origins
            return
        for name, tensor in zip(node.outputs, made, strict=True):
            partner = self._partner(tensor, origins)
            self.pairs.pop(name, None)
            values[name], self._origins[name] = tensor, origins
            if partner is not None:
                self._pair(name, partner)
                values[name] = self._anchored(partner, tensor)

    def _partner(self, tensor: torch.Tensor, origins: frozenset[int]) -> int | None:
        """The model's tensor that a node computes from ``origins``, or passes on; preferably one that no other value is."""
        taken = set(self.pairs.values())
        distances = {
            position: self._distance(tensor, position)
            for position in self._by_size.get(tensor.numel(), ())
            if any(self._is_before(origin, position) for origin in origins)
        }
        found = [position for position, distance in distances.items() if distance <= self._limit]
        # An operator may change little, such as a BatchNorm that was not trained.
        best = min((distances[each] for each in found), default=0.0) * _AS_CLOSE + 1
        return min(
            found, key=lambda each: (distances[each] > best, self._trace.values[each].same_as in taken, each), default=None
        )

    def _equals(self, tensor: torch.Tensor, position: int) -> bool:
        """Whether a tensor has the values of one of the model's, as far as rounding allows."""
        return self._distance(tensor, position) <= self._limit

    def _distance(self, tensor: torch.Tensor, position: int) -> float:
        """How far a tensor is from one of the model's, in units of its noise."""
        value = self._trace.values[position]
        if has_noise(tensor) != has_noise(value.tensor) or tensor.numel() != value.tensor.numel():
            return math.inf
        one, other = tensor.flatten(), value.tensor.flatten()
        few = slice(None, None, max(1, len(one) // _SAMPLED))  # most values differ everywhere
        distance = _largest_difference(one[few], other[few]) / (value.noise or math.ulp(0.0))
        return distance if distance > self._limit else _largest_difference(one, other) / (value.noise or math.ulp(0.0))

    def _anchored(self, position: int, like: torch.Tensor) -> torch.Tensor:
        tensor = self._trace.values[position].tensor
        return tensor.to(like.dtype).reshape(like.shape if tensor.numel() == like.numel() else tensor.shape)

    # --- culprits

    @property
    def is_wrong(self) -> bool:
        """Whether an output is wrong, or is not computed."""
        return bool(self._broken_values()) or any(name not in self.values for name in self._runner.outputs)

    def next_culprit(self) -> Span | None:
        """The next nodes that are wrong; from now on, their output is the model's."""
        while (found := self._next_place()) is not None:
            was_right = found.name in self.values and self._equals(self.values[found.name], found.target)
            repaired = None if was_right or len(found.span.nodes) == 1 else self._repaired(found)
            like = repaired.result if repaired and found.end[0] == found.name else self.values.get(found.name)
            self._correct(found.name, found.target, like)
            if not was_right:  # otherwise, the two were only not known to be a pair
                return found.span.with_likeliest(repaired)
        return None

    def _repaired(self, place: _Place) -> Repaired | None:
        """Of the nodes of a place, the one whose repair alone makes their result right."""
        result, target = place.end

        def is_right(tensor: torch.Tensor) -> bool:
            return self._equals(tensor, target) and _varies(tensor)

        wanted = self._trace.values[target].tensor
        return repaired_node(self._runner, self.values, place.span.nodes, result, is_right, self._deadline, wanted=wanted)

    def failing(self) -> Span | None:
        """The first node that cannot run, with those before it that are not paired."""
        first = min(self._first_of(self._broken_values()), default=None)
        node = next(filter(self._fails, self._runner.nodes), None)
        if node is None:
            return None
        if first is None:  # the model computes nothing else than the file has, and the node has what some operator needs
            origins = self._origins.get(node.outputs[0], frozenset())
            uses = (number for number, operator in enumerate(self._trace.operators) if origins.intersection(operator.inputs))
            first = next((each for each in uses if self._trace.operators[each].source is not None), None)
        nodes = frozenset(each.position for each in self._nodes_before(node.outputs[0]))
        broken = self._broken_values()

        def is_right(tensor: torch.Tensor) -> bool:
            is_made = any(self._equals(tensor, each) and _varies(tensor) for each in broken)
            return is_made or self._until_right({node.outputs[0]: tensor}, node.position, broken) is not None

        repaired = repaired_node(self._runner, self.values, nodes, node.outputs[0], is_right, self._deadline)
        span = Span(nodes=nodes, operators=() if first is None else (first,), first=first, failed=node.position)
        return span.with_likeliest(repaired)

    def _fails(self, node: FileNode) -> bool:
        """Whether a node cannot run on its inputs."""
        has_failed = any(name not in self.values for name in node.outputs)
        return has_failed and all(name in self.values for name in node.inputs)

    def _next_place(self) -> _Place | None:
        """The place of the next fault: of those found from the first missing operators, the one with the fewest nodes."""
        broken = self._broken_values()
        found: list[_Place] = []
        for first in itertools.islice(self._first_of(broken), _MOST_STARTS):
            made = self._trace.operators[first].outputs
            later = [each for each in sorted(broken) if any(self._is_before(one, each) for one in made)]
            place = self._place(first, later)
            found += [] if place is None else [place]
            if place is not None and len(place.span.nodes) == 1:
                break
        return min(found, key=lambda place: len(place.span.nodes), default=None)

    def _place(self, first: int, later: Sequence[int]) -> _Place | None:
        """Where a value that the model computes from the operator ``first`` on belongs in the file.

        Layers that are alike have places that are, too: of those of one value, it is the one with the fewest nodes.
        """
        names = self._candidates(first)[:_MOST_CANDIDATES]
        before = {name: self._nodes_before(name) for name in names}
        for tries in self._tries(names, later):
            found: _Place | None = None
            for target, name in tries:
                if time.thread_time() > self._deadline:
                    return found
                if found is None or len(before[name]) < len(found.span.nodes):
                    places = filter(None, (found, self._place_of(target, name, first, later, before[name])))
                    found = min(places, key=lambda place: len(place.span.nodes), default=None)
            if found is not None:
                return found
        return None

    def _place_of(self, target: int, name: str, first: int, later: Sequence[int], before: Sequence[FileNode]) -> _Place | None:
        """The place of a value of the model, if it belongs in the place of ``name``, which the nodes ``before`` compute."""
        way = self._belongs(target, name, later)
        if way is None:
            return None
        made = {self._trace.values[each].operator for each in later if self._is_before(each, target)}
        operators = tuple(sorted(each for each in made if each is not None))
        # The steps of an operator can be written in other ways, so that the fault may lie in what follows.
        is_part = self._trace.operators[operators[-1]].is_part
        nodes = frozenset(node.position for node in (*before, *(way.nodes if is_part else ())))
        failed = next((each for each in sorted(nodes) if self._fails(self._runner.nodes[each])), None)
        span = Span(nodes=nodes, operators=operators, first=first, failed=failed)
        return _Place(name=name, target=target, span=span, end=way.end if is_part else (name, target))

    def _tries(self, names: Sequence[str], later: Sequence[int]) -> Iterator[Iterable[tuple[int, str]]]:
        """What may belong where: the model's next values in places of their size, then in others; then its later values."""
        sizes = {name: self.values[name].numel() if name in self.values else None for name in names}
        following = list(itertools.product(later[:_NEXT], names))
        has_size = [self._trace.values[target].tensor.numel() == sizes[name] for target, name in following]
        yield itertools.compress(following, has_size)
        yield itertools.compress(following, [not each for each in has_size])  # the shape may be the fault
        by_size: dict[int | None, list[int]] = {}
        for target in later[_NEXT:]:
            by_size.setdefault(self._trace.values[target].tensor.numel(), []).append(target)
        for name in names:
            same = by_size.get(sizes[name], [])
            shape = _without_ones(self.values[name].shape) if same else []
            ordered = sorted(same, key=lambda each: _without_ones(self._trace.values[each].tensor.shape) != shape)
            yield from ([(target, name)] for target in ordered[:_MOST_TARGETS])

    def _first_of(self, broken: Collection[int]) -> list[int]:
        """The operators that compute broken values from others, in the order of the model."""
        made = {self._trace.values[each].operator for each in broken} - {None}
        operators = {each: self._trace.operators[each] for each in made if each is not None}
        return sorted(each for each, operator in operators.items() if not set(operator.inputs) & set(broken))

    def _candidates(self, first: int) -> list[str]:
        """The values of the file that may stand for what the operator ``first`` computes, in the order of the file."""
        starts = self._partners_of(self._trace.operators[first].inputs)
        found = list(self._after(starts, self._partners_of(self._trace.taken_by(first))))
        # A node that reads something else is not after them.
        begin = max((self._runner.makers[name].position for name in starts if name in self._runner.makers), default=-1)
        made = Counter(pair for name, pair in self.pairs.items() if not self._is_passed_on(name))
        for name, node in self._runner.makers.items():
            is_output = name in self._runner.outputs
            is_twice = not self._is_passed_on(name) and made[self.pairs.get(name, -1)] != 1
            if (is_output or (node.position > begin and is_twice)) and self._origins.get(name):
                found.append(name)
        names = sorted(dict.fromkeys(found), key=lambda name: self._runner.makers[name].position)
        return [name for name in names if name not in self._corrected]

    def _is_passed_on(self, name: str) -> bool:
        """Whether a node gets a value that it gives."""
        node = self._runner.makers.get(name)
        return node is not None and name in self.pairs and any(self.pairs.get(each) == self.pairs[name] for each in node.inputs)

    def _broken_values(self) -> set[int]:
        """What the model computes, the wrong outputs of the file depend on, and the file does not have."""
        paired = set(self.pairs.values())
        wrong = [
            position
            for name, position in zip(self._runner.outputs, self._trace.outputs, strict=False)
            if position is not None and not (name in self.values and self._equals(self.values[name], position))
        ]
        found: set[int] = set()
        while wrong:
            position = wrong.pop()
            operator = self._trace.values[position].operator
            if position not in found and operator is not None:
                found.add(position)
                inputs = self._trace.operators[operator].inputs
                wrong += [each for each in inputs if self._trace.values[each].same_as not in paired]
        return found

    def _is_before(self, position: int, target: int) -> bool:
        return bool(self._ancestors[target] >> position & 1)

    def _partners_of(self, positions: Collection[int]) -> list[str]:
        same = {self._trace.values[each].same_as for each in positions}
        return [name for name, position in self.pairs.items() if position in same]

    def _after(self, starts: Sequence[str], taken: Iterable[str]) -> Iterator[str]:
        """The values computed from ``starts`` or ``taken`` that are not paired, or with a start, in the order of the file."""
        allowed = {self.pairs[name] for name in starts}
        reached = {*starts, *taken}
        for node in self._runner.nodes:
            if reached.isdisjoint(node.inputs):
                continue
            for name in node.outputs:
                if name not in self.pairs or self.pairs[name] in allowed:
                    reached.add(name)
                    yield name

    def _belongs(self, target: int, name: str, broken: Iterable[int]) -> _Way | None:
        """The way to a node that computes what the model computes if ``target`` takes the place of the value ``name``.

        ``None`` if none does: ``target`` does not belong there.
        """
        same = self._trace.values[target].same_as
        if name in self._runner.outputs:
            output = self._trace.outputs[self._runner.outputs.index(name)]
            if output is not None and self._trace.values[output].same_as == same:
                return _Way(nodes=(), end=(name, target))
        changed = {name: self._anchored(target, self.values.get(name, self._trace.values[target].tensor.float()))}
        later = [each for each in broken if self._trace.values[each].same_as != same and self._is_before(target, each)]
        return self._until_right(changed, self._runner.makers[name].position, later)

    def _until_right(self, changed: dict[str, torch.Tensor], start: int, later: Collection[int]) -> _Way | None:
        """The nodes behind the one at ``start`` that run with changed values until one computes one of ``later``."""
        ran: list[FileNode] = []
        for node in self._runner.nodes[start + 1 :]:
            if changed.keys().isdisjoint(node.inputs):
                continue
            ran.append(node)
            if len(ran) > _MOST_NODES:
                return None
            try:
                made = self._runner.run(node, ChainMap(changed, self.values))
            except NodeError:
                return None
            for result, tensor in zip(node.outputs, made, strict=True):
                right = next((each for each in later if self._equals(tensor, each)), None)
                if right is not None and _varies(tensor):
                    return _Way(nodes=tuple(ran), end=(result, right))
                changed[result] = tensor
        return None

    def _nodes_before(self, name: str) -> list[FileNode]:
        """The nodes that compute a value from paired ones and constants, in the order of the file."""
        found: dict[int, FileNode] = {}
        left = [name]
        while left:
            node = self._runner.makers.get(left.pop())
            if node is not None and node.position not in found:
                found[node.position] = node
                left += [each for each in node.inputs if each not in self.pairs and self._origins.get(each)]
        # A node that changes nothing may stand where an operator is missing.
        makers = filter(None, map(self._runner.makers.get, self._runner.makers[name].inputs))
        idle = (node for node in makers if node.operator == "Identity" or self._is_idle(node))
        after = (node for node in self._consumers.get(name, ()) if node.operator == "Identity")
        found |= {node.position: node for node in (*idle, *after)}
        return [found[position] for position in sorted(found)]

    def _is_idle(self, node: FileNode) -> bool:
        """Whether a node with one input computes nothing else than that."""
        given = {self.pairs[name] for name in node.inputs if name in self.pairs}
        is_same = any(self.pairs.get(name) in given for name in node.outputs)
        return is_same and len(node.inputs) == 1 and not node.only_moves

    def _correct(self, name: str, target: int, like: torch.Tensor | None) -> None:
        """Put the model's tensor in the place of a value, in the shape of ``like``, and run what depends on it again."""
        self._corrected.add(name)
        self._pair(name, target)
        self.values[name] = self._anchored(target, self._trace.values[target].tensor.float() if like is None else like)
        changed = {name}
        for node in self._runner.nodes[self._runner.makers[name].position + 1 :]:
            if not changed.isdisjoint(node.inputs):
                changed |= {*node.outputs}
                self._run(node, self.values)


def _largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return differences(one, other).max().item() if one.numel() else 0.0


def _without_ones(shape: torch.Size) -> list[int]:
    return [size for size in shape if size != 1]


def _varies(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor differ, so that it equals others by more than chance."""
    return tensor.numel() > 1 and bool((tensor != tensor.flatten()[0]).any())


def _ancestors(trace: ModelTrace) -> list[int]:
    """For each value of a trace, the values that it may be computed from, itself included, as bits of a number."""
    bits: list[int] = []
    for position, value in enumerate(trace.values):
        inputs = () if value.operator is None else trace.operators[value.operator].inputs
        bits.append(functools.reduce(lambda found, each: found | bits[each], inputs, 1 << position))
    for position, value in enumerate(trace.values):
        taken = () if value.operator is None else trace.taken_by(value.operator)
        bits[position] = functools.reduce(lambda found, each: found | bits[each], taken, bits[position])
    return bits
