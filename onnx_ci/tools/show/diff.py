"""What differs between two ONNX graphs, as a unified diff of their printed text."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from onnx_ci.onnx_model.contents import graphs_in
from onnx_ci.tools.show.printer import graph_lines, operator_name, show_attribute


def difference(before: ModelProto, after: ModelProto, names: tuple[str, str]) -> list[str]:
    """How the text of ``after`` differs from that of ``before``, as a unified diff; empty if it does not.

    Exporters number values and nodes, so those of ``after`` get the names of their counterparts in ``before``. Both models
    must be without weights, and are modified.
    """
    _rename(before.graph, after.graph)
    functions = {(function.domain, function.name): function for function in before.functions}
    for function in after.functions:
        if (function.domain, function.name) in functions:
            _rename(functions[function.domain, function.name], function)
    for model in (before, after):
        for tensors in (model.graph.initializer, model.graph.value_info):
            tensors.sort(key=lambda tensor: tensor.name)
    return list(difflib.unified_diff(graph_lines(before), graph_lines(after), *names, lineterm=""))


_Graph = GraphProto | onnx.FunctionProto


def _rename(before: _Graph, after: _Graph, outer: Mapping[str, str] | None = None) -> None:
    """Give values and nodes of ``after`` the names of their counterparts in ``before``.

    The names of a model's inputs and outputs are public and stay, and so do those of weights that both graphs have. The names
    of a subgraph's inputs and outputs are not public: ``outer`` has the new names of values in the graphs around it.
    """
    ends = (before.input, before.output, after.input, after.output)
    public = set() if outer is not None else {name for values in ends for name in _names(values)}
    pairs = _pairs(before.node, after.node)
    names = _names_of_counterparts(before, after, pairs, public, outer)
    counterparts = {place_after: before.node[place_before] for place_before, place_after in pairs}
    for place, node in enumerate(after.node):
        counterpart = counterparts.get(place, NodeProto())
        node.name = counterpart.name or node.name
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
        graphs = {attribute.name: [*graphs_in(attribute)] for attribute in counterpart.attribute}
        for attribute in node.attribute:
            graphs_before = iter(graphs.get(attribute.name, ()))
            for graph in graphs_in(attribute):
                _rename(next(graphs_before, GraphProto()), graph, names)
    if isinstance(after, GraphProto):
        ends_of_subgraph = () if outer is None else (*after.input, *after.output)
        for value in (*after.initializer, *after.value_info, *ends_of_subgraph):
            value.name = names.get(value.name, value.name)


def _names_of_counterparts(
    before: _Graph, after: _Graph, pairs: Sequence[tuple[int, int]], public: set[str], outer: Mapping[str, str] | None
) -> dict[str, str]:
    """The new names of values of ``after``, by their names so far. ``public`` names stay."""
    names = dict(outer or {})
    weights_before, weights_after = _weights(before), _weights(after)
    if outer is not None:
        for name_before, name_after in (
            *_zip(_names(before.input), _names(after.input)),
            *_zip(_names(before.output), _names(after.output)),
        ):
            names.setdefault(name_after, name_before)
    for place_before, place_after in pairs:
        for name_before, name_after in _zip(before.node[place_before].output, after.node[place_after].output):
            if name_before and not {name_before, name_after} & public:
                names.setdefault(name_after, name_before)
        for name_before, name_after in _zip(before.node[place_before].input, after.node[place_after].input):
            if name_before in weights_before - weights_after and name_after in weights_after - weights_before:
                names.setdefault(name_after, name_before)
    taken = {name for node in before.node for name in (*node.input, *node.output)} | set(names.values())
    for name in (name for node in after.node for name in node.output):
        if name in taken - public and name not in names:
            names[name] = f"{name}′"  # a new value must not be mistaken for the value of this name in ``before``
    return names


def _zip(before: Iterable[str], after: Iterable[str]) -> Iterator[tuple[str, str]]:
    return zip(before, after, strict=False)


def _names(values: Iterable[Any]) -> list[str]:
    """The names of inputs or outputs; those of functions are names."""
    return [value if isinstance(value, str) else value.name for value in values]


def _weights(graph: _Graph) -> set[str]:
    return {tensor.name for tensor in graph.initializer} if isinstance(graph, GraphProto) else set()


def _pairs(before: Sequence[NodeProto], after: Sequence[NodeProto]) -> list[tuple[int, int]]:
    """The positions of nodes that do the same, in order; and, between those, of nodes with the same operator."""
    pairs: list[tuple[int, int]] = []
    for is_same, places_before, places_after in _aligned(list(map(_without_names, before)), list(map(_without_names, after))):
        if is_same:
            pairs += zip(places_before, places_after, strict=True)
            continue
        operators_before = [_operator_of(before[place]) for place in places_before]
        operators_after = [_operator_of(after[place]) for place in places_after]
        for is_alike, part_before, part_after in _aligned(operators_before, operators_after):
            if is_alike:
                pairs += zip(
                    places_before[part_before.start : part_before.stop],
                    places_after[part_after.start : part_after.stop],
                    strict=True,
                )
    return pairs


def _aligned(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[bool, range, range]]:
    """Aligned pieces of both, and whether they are equal."""
    for tag, start, stop, begin, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        yield tag == "equal", range(start, stop), range(begin, end)


def _operator_of(node: NodeProto) -> str:
    return operator_name(node.domain, node.op_type)


def _without_names(node: NodeProto) -> str:
    """A node without its name and the names of its values."""
    attributes = sorted(show_attribute(each) for each in node.attribute if not [*graphs_in(each)])
    return f"{_operator_of(node)} {len(node.input)} {len(node.output)} {attributes}"
