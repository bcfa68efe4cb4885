"""What differs between two ONNX graphs, as a unified diff of their printed text."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from onnx_ci.onnx_model.printer import graph_lines, operator_name, show_attribute, subgraphs


def difference(one: ModelProto, other: ModelProto, names: tuple[str, str]) -> list[str]:
    """How the text of ``other`` differs from that of ``one``, as a unified diff; empty if it does not.

    Values and nodes of ``other`` get the names of their counterparts in ``one``, because exporters number them. Both models
    must be without weights, and are modified.

    Args:
        one: the first model.
        other: the second model.
        names: their names in the diff.
    """
    _rename(one.graph, other.graph)
    known = {(function.domain, function.name): function for function in one.functions}
    for function in other.functions:
        if (function.domain, function.name) in known:
            _rename(known[function.domain, function.name], function)
    for model in (one, other):
        for tensors in (model.graph.initializer, model.graph.value_info):
            tensors.sort(key=lambda each: each.name)
    return list(difflib.unified_diff(graph_lines(one), graph_lines(other), *names, lineterm=""))


# --- corresponding values -------------------------------------------------------------------------------------------

_Graph = GraphProto | onnx.FunctionProto


def _rename(one: _Graph, other: _Graph, outer: Mapping[str, str] | None = None) -> None:
    """Give values and nodes of ``other`` the names of their counterparts in ``one``.

    The names of a model's inputs and outputs are public: they stay, and so do those of weights that both graphs have. Those
    of a subgraph's inputs and outputs are not.

    Args:
        one: the graph that has the names.
        other: the graph that gets them.
        outer: if ``other`` is a subgraph, the new names of values in the graphs around it.
    """
    names = dict(outer or {})
    public = set() if outer is not None else {*_inputs(one), *_outputs(one), *_inputs(other), *_outputs(other)}
    weights, its_weights = _weights(one), _weights(other)
    pairs = _pairs(one.node, other.node)
    for name, its in [] if outer is None else [*_zip(_inputs(one), _inputs(other)), *_zip(_outputs(one), _outputs(other))]:
        names.setdefault(its, name)
    for place, its_place in pairs:
        for name, its in _zip(one.node[place].output, other.node[its_place].output):
            if name and not {name, its} & public:
                names.setdefault(its, name)
        for name, its in _zip(one.node[place].input, other.node[its_place].input):
            if name in weights - its_weights and its in its_weights - weights:
                names.setdefault(its, name)
    taken = {name for node in one.node for name in (*node.input, *node.output)} | public | set(names.values())
    for name in (name for node in other.node for name in node.output):
        if name in taken - public and name not in names:
            names[name] = f"{name}′"  # a new value must not be mistaken for the value of this name in ``one``
    matching = {its_place: one.node[place] for place, its_place in pairs}
    for place, node in enumerate(other.node):
        match = matching.get(place, NodeProto())
        node.name = match.name or node.name
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
        graphs = {attribute.name: subgraphs(attribute) for attribute in match.attribute}
        for attribute in node.attribute:
            known = iter(graphs.get(attribute.name, ()))
            for graph in subgraphs(attribute):
                _rename(next(known, GraphProto()), graph, names)
    if isinstance(other, GraphProto):
        inner = () if outer is None else (*other.input, *other.output)
        for each in (*other.initializer, *other.value_info, *inner):
            each.name = names.get(each.name, each.name)


def _zip(one: Iterable[str], other: Iterable[str]) -> Iterator[tuple[str, str]]:
    return zip(one, other, strict=False)


def _inputs(graph: _Graph) -> list[str]:
    return [value if isinstance(value, str) else value.name for value in graph.input]


def _outputs(graph: _Graph) -> list[str]:
    return [value if isinstance(value, str) else value.name for value in graph.output]


def _weights(graph: _Graph) -> set[str]:
    return {tensor.name for tensor in graph.initializer} if isinstance(graph, GraphProto) else set()


def _pairs(one: Sequence[NodeProto], other: Sequence[NodeProto]) -> list[tuple[int, int]]:
    """The positions of nodes that do the same, in order; and, between those, of nodes with the same operator."""
    pairs: list[tuple[int, int]] = []
    for is_same, first, second in _aligned(list(map(_without_names, one)), list(map(_without_names, other))):
        if is_same:
            pairs += zip(first, second, strict=True)
            continue
        operators = [[_operator_of(nodes[place]) for place in places] for nodes, places in ((one, first), (other, second))]
        for is_alike, third, fourth in _aligned(*operators):
            if is_alike:
                pairs += zip(first[third.start : third.stop], second[fourth.start : fourth.stop], strict=True)
    return pairs


def _aligned(one: Sequence[str], other: Sequence[str]) -> Iterator[tuple[bool, range, range]]:
    """Aligned pieces of both, and whether they are equal."""
    for tag, start, stop, begin, end in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        yield tag == "equal", range(start, stop), range(begin, end)


def _operator_of(node: NodeProto) -> str:
    return operator_name(node.domain, node.op_type)


def _without_names(node: NodeProto) -> str:
    """A node without its name and the names of its values."""
    attributes = sorted(show_attribute(each) for each in node.attribute if not subgraphs(each))
    return f"{_operator_of(node)} {len(node.input)} {len(node.output)} {attributes}"
