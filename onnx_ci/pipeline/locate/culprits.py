"""The nodes at which a file goes wrong: those that get right inputs and give a wrong output.

The first operator of the model whose result the file does not have is where the fault begins. Its result is put in the place of
one value of the file after another: where later nodes then compute what the model computes, it belongs, and the nodes before it
are the culprits. Layers that are alike have several such places, of which the one with the fewest nodes counts. So a file is
understood by what it computes, whatever made it, and nothing is claimed that was not tried.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.pipeline.locate.model_trace import ModelTrace
from onnx_ci.pipeline.locate.neighbourhood import steps_around
from onnx_ci.pipeline.locate.pairs import PairedFile
from onnx_ci.pipeline.locate.repairs import Repaired, WrongResult, repaired_node
from onnx_ci.pipeline.locate.single_nodes import FileNode, NodeError, NodeRunner
from onnx_ci.pipeline.model.places import source_line
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import Culprit, NodeStep

_LIMITS = (64.0, 16.0)
"""How many times the rounding of one operator a node may be off by. Another order of summation explains no more than the first;
if all outputs are right by it, the fault is smaller, and the second one is tried."""
_MOST_CULPRITS = 8

# What is tried for one culprit. A fault that is further from where pairs end is not found.
_MOST_STARTS = 4
"""How many of the first missing operators."""
_MOST_CANDIDATES = 24
"""In place of how many values of the file: of the first, and of the last."""
_NEXT = 4
"""How many of the model's next values in place of each of them."""
_MOST_TARGETS = 16
"""How many of its later values of the same size."""
_MOST_NODES = 8
"""How many nodes after it may run until one of them computes what the model computes."""


@dataclass(frozen=True, kw_only=True)
class SourceSites:
    """Where a file goes wrong on one input."""

    culprits: tuple[tuple[Culprit, frozenset[str]], ...] = ()
    """In the order of the file, each with the outputs that depend on it."""
    steps: tuple[NodeStep, ...] = ()

    def culprits_of(self, output: str | None) -> tuple[Culprit, ...]:
        """Those on which an output depends; all if there is none, or if the file fails as a whole."""
        of_output = tuple(culprit for culprit, outputs in self.culprits if output in outputs)
        return of_output or tuple(culprit for culprit, _ in self.culprits)


def find_culprits(
    runner: NodeRunner, trace: ModelTrace, feeds: Mapping[str, torch.Tensor], *, has_failed: bool, deadline: float
) -> SourceSites:
    """The culprits of a file on one input, and the nodes around them. There are none if the nodes are right or not paired.

    The file's inputs are first those of the model, in its order; then weights, if they are inputs. If the runtime has failed on
    the input, a node that cannot run is a culprit.
    """
    paired = (PairedFile(runner, trace, feeds, limit) for limit in _LIMITS)
    file = next((each for each in paired if each.is_wrong), None)
    if file is None:
        return SourceSites()
    search = _Search(file, deadline)
    spans = list(itertools.islice(search.culprits(), _MOST_CULPRITS))
    if not spans and has_failed and (failing := search.failing()) is not None:
        spans = [failing]
    distinct = sorted(_without_overlap(spans), key=lambda span: min(span.nodes))
    faulty = {position: trace.source_of(span.first) for span in distinct for position in span.nodes}
    return SourceSites(
        culprits=tuple((_culprit(file, span), runner.outputs_after(span.nodes)) for span in distinct),
        steps=steps_around(file, faulty, deadline),
    )


def with_recipe(culprit: Culprit, recipe: Recipe) -> Culprit:
    """The culprit, with the line of its recipe where no line of the model's code is known."""
    if culprit.source is not None:
        return culprit
    return dataclasses.replace(culprit, recipe=source_line(str(recipe.file), recipe.line))


@dataclass(frozen=True, kw_only=True)
class _Span:
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

    def with_likeliest(self, repaired: Repaired | None) -> _Span:
        """The same nodes, and which of them is likeliest at fault if a repair is known."""
        if repaired is None:
            return self
        return dataclasses.replace(self, nodes=self.nodes | {repaired.position}, likeliest=repaired.position)


def _without_overlap(spans: Iterable[_Span]) -> list[_Span]:
    """The spans; of those that overlap, what they share if one fault there may explain them all."""
    distinct: list[_Span] = []
    for span in spans:
        for number, earlier in enumerate(distinct):
            shared = earlier.nodes & span.nodes
            likeliest = {each.likeliest for each in (earlier, span)} - {None}
            if shared and len(likeliest) <= 1 and likeliest <= shared:
                distinct[number] = dataclasses.replace(earlier, nodes=shared, likeliest=next(iter(likeliest), None))
                break
        else:
            distinct.append(span)
    return distinct


def _culprit(file: PairedFile, span: _Span) -> Culprit:
    trace = file.trace
    nodes = [file.runner.nodes[position] for position in sorted(span.nodes)]
    first = None if span.first is None else trace.operators[span.first]

    def rank(node: FileNode) -> tuple[bool, ...]:
        # Exporters write an Identity where something is missing.
        return node.position != span.likeliest, node.operator != "Identity", node.position != span.failed, node.only_moves

    return Culprit(
        nodes=tuple(node.title for node in sorted(nodes, key=rank)),
        operators=tuple(dict.fromkeys(trace.operators[position].name for position in span.operators)),
        module="" if first is None else first.place.module,
        source=trace.source_of(span.first),
    )


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a value of the model belongs in the file."""

    name: str
    """The file's value."""
    target: int
    """The position of the model's."""
    span: _Span
    end: tuple[str, int]
    """The last value that the span's nodes compute, and the position of the model's value that it should be."""


@dataclass(frozen=True, kw_only=True)
class _Way:
    """The nodes from a value of the file to one that the model computes."""

    nodes: tuple[FileNode, ...]
    end: tuple[str, int]
    """That value, and its position in the trace."""


class _Search:
    """The search for the faults of a file. Each fault that is found is corrected in it, so that the next one shows."""

    def __init__(self, file: PairedFile, deadline: float) -> None:
        self._file, self._runner, self._trace, self._deadline = file, file.runner, file.trace, deadline
        self._consumers: dict[str, list[FileNode]] = {}
        for node in self._runner.nodes:
            for name in node.inputs:
                self._consumers.setdefault(name, []).append(node)
        self._corrected: set[str] = set()

    def culprits(self) -> Iterator[_Span]:
        """The nodes that are wrong; the output of each span is the model's from then on."""
        file = self._file
        while (place := self._next_place()) is not None:
            was_right = place.name in file.values and file.equals(file.values[place.name], place.target)
            repaired = None if was_right or len(place.span.nodes) == 1 else self._repaired(place)
            like = repaired.result if repaired and place.end[0] == place.name else file.values.get(place.name)
            self._corrected.add(place.name)
            file.correct(place.name, place.target, like)
            if not was_right:  # otherwise, the two were only not known to be a pair
                yield place.span.with_likeliest(repaired)

    def failing(self) -> _Span | None:
        """The first node that cannot run, with those before it that are not paired.

        No value shows the fault where a ``Slice`` gives too few states to an ``LSTM``, which then does not run.
        """
        node = next(filter(self._file.fails, self._runner.nodes), None)
        if node is None:
            return None
        result = node.outputs[0]
        missing = self._file.missing_values()
        first = min(self._first_of(missing), default=None)
        if first is None:  # the model computes nothing that the file does not have: take an operator with the node's inputs
            origins = self._file.origins.get(result, frozenset())
            uses = (number for number, operator in enumerate(self._trace.operators) if origins.intersection(operator.inputs))
            first = next((each for each in uses if self._trace.operators[each].place.source is not None), None)
        nodes = frozenset(each.position for each in self._nodes_before(result))

        def is_right(tensor: torch.Tensor) -> bool:
            is_missing = _varies(tensor) and any(self._file.equals(tensor, each) for each in missing)
            return is_missing or self._until_right({result: tensor}, node.position, missing) is not None

        wrong = WrongResult(runner=self._runner, values=self._file.values, nodes=nodes, name=result)
        span = _Span(nodes=nodes, operators=() if first is None else (first,), first=first, failed=node.position)
        return span.with_likeliest(repaired_node(wrong, is_right, self._deadline))

    def _repaired(self, place: _Place) -> Repaired | None:
        """Of the nodes of a place, the one whose repair alone makes their result right."""
        name, target = place.end

        def is_right(tensor: torch.Tensor) -> bool:
            return self._file.equals(tensor, target) and _varies(tensor)

        wanted, nodes = self._trace.values[target].tensor, place.span.nodes
        wrong = WrongResult(runner=self._runner, values=self._file.values, nodes=nodes, name=name, wanted=wanted)
        return repaired_node(wrong, is_right, self._deadline)

    def _next_place(self) -> _Place | None:
        """The place of the next fault: of those found from the first missing operators, the one with the fewest nodes."""
        missing = self._file.missing_values()
        places: list[_Place] = []
        for first in self._first_of(missing)[:_MOST_STARTS]:
            outputs = self._trace.operators[first].outputs
            later = [each for each in sorted(missing) if any(self._file.is_before(output, each) for output in outputs)]
            place = self._place(first, later)
            if place is not None:
                places.append(place)
                if len(place.span.nodes) == 1:
                    break
        return min(places, key=_size, default=None)

    def _first_of(self, missing: set[int]) -> list[int]:
        """The operators that compute missing values from others, in the order of the model."""
        operators = {self._trace.values[each].operator for each in missing} - {None}
        return sorted(each for each in operators if each is not None and missing.isdisjoint(self._trace.operators[each].inputs))

    def _place(self, first: int, later: Sequence[int]) -> _Place | None:
        """Where a value that the model computes from the missing operator ``first`` on, one of ``later``, belongs."""
        candidates = self._candidates(first)
        # A translation into many nodes ends with what the operator computes.
        names = [*candidates[:_MOST_CANDIDATES], *candidates[_MOST_CANDIDATES:][-_MOST_CANDIDATES:]]
        before = {name: self._nodes_before(name) for name in names}
        for tries in self._tries(names, later):
            smallest: _Place | None = None
            for target, name in tries:
                if CLOCK.thread_time() > self._deadline:
                    return smallest
                if smallest is None or len(before[name]) < _size(smallest):
                    place = self._place_of(target, name, first, later, before[name])
                    smallest = min(filter(None, (smallest, place)), key=_size, default=None)
            if smallest is not None:
                return smallest
        return None

    def _place_of(self, target: int, name: str, first: int, later: Sequence[int], before: Sequence[FileNode]) -> _Place | None:
        """The place of a value of the model, if it belongs in the place of ``name``, which the nodes ``before`` compute."""
        way = self._belongs(target, name, later)
        if way is None:
            return None
        computed_by = {self._trace.values[each].operator for each in later if self._file.is_before(each, target)}
        operators = tuple(sorted(each for each in computed_by if each is not None))
        # The steps of an operator can be written in other ways, so that the fault may lie in what follows.
        is_part = self._trace.operators[operators[-1]].is_part
        nodes = frozenset(node.position for node in (*before, *(way.nodes if is_part else ())))
        failed = next((each for each in sorted(nodes) if self._file.fails(self._runner.nodes[each])), None)
        span = _Span(nodes=nodes, operators=operators, first=first, failed=failed)
        return _Place(name=name, target=target, span=span, end=way.end if is_part else (name, target))

    def _tries(self, names: Sequence[str], later: Sequence[int]) -> Iterator[Iterable[tuple[int, str]]]:
        """What may belong where: the model's next values in places of their size, then in others; then its later values."""
        values = self._file.values
        sizes = {name: values[name].numel() if name in values else None for name in names}
        following = list(itertools.product(later[:_NEXT], names))
        has_size = [self._trace.values[target].tensor.numel() == sizes[name] for target, name in following]
        yield itertools.compress(following, has_size)
        yield itertools.compress(following, [not each for each in has_size])  # the shape may be the fault
        by_size: dict[int | None, list[int]] = {}
        for target in later[_NEXT:]:
            by_size.setdefault(self._trace.values[target].tensor.numel(), []).append(target)
        for name in names:
            same = by_size.get(sizes[name], [])
            shape = _without_ones(values[name].shape) if same else []
            ordered = sorted(same, key=lambda each: _without_ones(self._trace.values[each].tensor.shape) != shape)
            yield from ([(target, name)] for target in ordered[:_MOST_TARGETS])

    def _candidates(self, first: int) -> list[str]:
        """The values of the file that may stand for what the operator ``first`` computes, in the order of the file."""
        file, makers = self._file, self._runner.makers
        starts = file.partners_of(self._trace.operators[first].inputs)
        candidates = [*self._after(starts, file.partners_of(self._trace.taken_by(first)))]
        # A node that reads something else is not after them.
        begin = max((makers[name].position for name in starts if name in makers), default=-1)
        counts = Counter(pair for name, pair in file.pairs.items() if not file.is_passed_on(name))
        for name, node in makers.items():
            is_output = name in self._runner.outputs
            is_unclear = not file.is_passed_on(name) and counts[file.pairs.get(name, -1)] != 1
            if (is_output or (node.position > begin and is_unclear)) and file.origins.get(name):
                candidates.append(name)
        distinct = dict.fromkeys(name for name in candidates if name not in self._corrected)
        return sorted(distinct, key=lambda name: makers[name].position)

    def _after(self, starts: Sequence[str], others: Iterable[str]) -> Iterator[str]:
        """The values computed from ``starts`` or ``others`` that are not paired, or with a start, in the order of the file."""
        allowed = {self._file.pairs[name] for name in starts}
        reached = {*starts, *others}
        for node in self._runner.nodes:
            if reached.isdisjoint(node.inputs):
                continue
            for name in node.outputs:
                if name not in self._file.pairs or self._file.pairs[name] in allowed:
                    reached.add(name)
                    yield name

    def _belongs(self, target: int, name: str, missing: Iterable[int]) -> _Way | None:
        """The way to a node that computes what the model computes if ``target`` takes the place of the value ``name``.

        ``None`` if no node does: ``target`` does not belong there.
        """
        same = self._trace.values[target].same_as
        if name in self._runner.outputs:
            output = self._trace.outputs[self._runner.outputs.index(name)]
            if output is not None and self._trace.values[output].same_as == same:
                return _Way(nodes=(), end=(name, target))
        changed = {name: self._file.anchored(target, self._file.values.get(name))}
        later = [each for each in missing if self._trace.values[each].same_as != same and self._file.is_before(target, each)]
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
                tensors = self._runner.run(node, ChainMap(changed, self._file.values))
            except NodeError:
                return None
            for result, tensor in zip(node.outputs, tensors, strict=True):
                right = next((each for each in later if self._file.equals(tensor, each)), None)
                # A transpose makes a transposed tensor of any: only a node that computes tells where a tensor belongs.
                has_computed = result in self._runner.outputs or not all(each.only_moves for each in ran)
                if right is not None and has_computed and _varies(tensor):
                    return _Way(nodes=tuple(ran), end=(result, right))
                changed[result] = tensor
        return None

    def _nodes_before(self, name: str) -> list[FileNode]:
        """The nodes that compute a value from paired ones and constants, in the order of the file."""
        makers = self._runner.makers
        nodes: dict[int, FileNode] = {}
        pending = [name]
        while pending:
            node = makers.get(pending.pop())
            if node is not None and node.position not in nodes:
                nodes[node.position] = node
                pending += [each for each in node.inputs if each not in self._file.pairs and self._file.origins.get(each)]
        # A node that changes nothing may stand where an operator is missing.
        before = filter(None, map(makers.get, makers[name].inputs))
        idle = (node for node in before if node.operator == "Identity" or self._is_idle(node))
        after = (node for node in self._consumers.get(name, ()) if node.operator == "Identity")
        nodes |= {node.position: node for node in (*idle, *after)}
        return [nodes[position] for position in sorted(nodes)]

    def _is_idle(self, node: FileNode) -> bool:
        """Whether a node with one input computes nothing else than that."""
        pairs = self._file.pairs
        inputs = {pairs[name] for name in node.inputs if name in pairs}
        is_same = any(pairs.get(name) in inputs for name in node.outputs)
        return is_same and len(node.inputs) == 1 and not node.only_moves


def _size(place: _Place) -> int:
    return len(place.span.nodes)


def _without_ones(shape: torch.Size) -> list[int]:
    return [size for size in shape if size != 1]


def _varies(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor differ, so that it equals others by more than chance."""
    return tensor.numel() > 1 and bool((tensor != tensor.flatten()[0]).any())
