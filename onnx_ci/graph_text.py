"""An ONNX graph as people read it, without its weights, and what differs between two.

``onnx.printer`` writes every weight in full, 400 kB for a small LSTM, and all types in one line before the first node. Its
text can be parsed back; this one cannot: a line for each value, with its type where it is made, and long things cut short.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnx_ci.onnx_file import tensors_of

LONGEST = 8
"""How many numbers of a constant are shown; one with more is a weight."""

_TYPE_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
_DIGEST = "checksum"
"""Under this key, one that ONNX knows, the digest of its numbers stands in a tensor that has lost them."""


def without_weights(model: ModelProto, folder: Path | None = None) -> ModelProto:
    """``model`` without the numbers of its weights, and with the types of all values that onnx can infer. It is changed.

    Args:
        folder: that of the model's file. Where it is given, a digest of their numbers is left of the weights, so that other
            weights are another text.

    Raises:
        Exception: the weights are not there; onnx has many classes for that.
    """
    for tensor in tensors_of(model):
        if math.prod(tensor.dims) > LONGEST or tensor.data_location == TensorProto.EXTERNAL:
            kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            kept.data_location = TensorProto.EXTERNAL
            if folder is not None:
                kept.external_data.add(key=_DIGEST, value=_digest(tensor, folder))
            tensor.CopyFrom(kept)
    with contextlib.suppress(Exception):  # types are nice to have; what onnx raises about a wrong graph is not for here
        inferred = onnx.shape_inference.infer_shapes(model)
        del inferred.graph.output[:]
        inferred.graph.output.extend(model.graph.output)  # what is declared, not what could be
        return inferred
    return model


def _digest(tensor: TensorProto, folder: Path) -> str:
    array = onnx.numpy_helper.to_array(tensor, base_dir=str(folder))
    numbers = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return _short(numbers)


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def graph_lines(model: ModelProto) -> list[str]:
    """Everything that ``model``, which has lost its weights, says, line by line."""
    maker = " ".join(filter(None, [model.producer_name, model.producer_version]))
    lines = [f"opset {_opsets(model)}; IR version {model.ir_version}{f'; made by {maker}' if maker else ''}"]
    lines += _graph(model.graph)
    for function in sorted(model.functions, key=lambda each: (each.domain, each.name)):
        attributes = _in_braces([*function.attribute, *map(_named, function.attribute_proto)])
        signature = f"{_operator(function.domain, function.name)}({', '.join(function.input)}){attributes}"
        lines.append(f"function {signature} -> ({', '.join(function.output)}), opset {_opsets(function)}")
        lines += _indented(_nodes(function.node, {}))
    return lines


def _opsets(imported: ModelProto | onnx.FunctionProto) -> str:
    return ", ".join(f"{opset.domain or 'ai.onnx'} {opset.version}" for opset in imported.opset_import)


def difference(one: ModelProto, other: ModelProto, names: tuple[str, str]) -> list[str]:
    """How the text of ``other`` differs from that of ``one``, as a unified diff; nothing where it does not.

    Values and nodes of ``other`` that correspond to some of ``one`` get the names that they have there, for exporters number
    them through. Both have lost their weights, and are used up.

    Args:
        one: the first.
        other: the second.
        names: what the diff calls them.
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


# --- text -----------------------------------------------------------------------------------------------------------


def _graph(graph: GraphProto) -> Iterator[str]:
    initializers = {tensor.name for tensor in graph.initializer}
    types = {value.name: _type(value.type) for value in (*graph.value_info, *graph.output)}
    yield "inputs"
    # Before IR version 4 initializers are inputs, too.
    yield from _indented(f"{each.name}: {_type(each.type)}" for each in graph.input if each.name not in initializers)
    yield "outputs"
    yield from _indented(f"{each.name}: {_type(each.type)}" for each in graph.output)
    if graph.initializer or graph.sparse_initializer:
        yield f"initializers ({sum(math.prod(tensor.dims) for tensor in graph.initializer):,} numbers)"
        yield from _indented(f"{each.name}: {_tensor(each, ' = ')}" for each in graph.initializer)
        yield from _indented(f"{each.values.name}: sparse {_tensor(each.values, ' = ')}" for each in graph.sparse_initializer)
    yield "nodes"
    yield from _indented(_nodes(graph.node, types))


def _nodes(nodes: Iterable[NodeProto], types: Mapping[str, str]) -> Iterator[str]:
    for node in nodes:
        made = ", ".join(f"{name}: {types[name]}" if name in types else name or "_" for name in node.output)
        given = ", ".join(name or "_" for name in node.input)
        attributes = _in_braces([_named(each) for each in node.attribute if not _graphs(each)])
        name = f"  # {node.name}" if node.name else ""
        yield f"{made} = {_operator_of(node)}({given}){attributes}{name}"
        for attribute in node.attribute:
            for graph in _graphs(attribute):
                yield f"  {attribute.name}:"
                yield from _indented(_indented(_graph(graph)))


def _in_braces(attributes: Sequence[str]) -> str:
    return f" {{{', '.join(attributes)}}}" if attributes else ""


def _named(attribute: AttributeProto) -> str:
    return f"{attribute.name}={_attribute(attribute)}"


def _attribute(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    if not isinstance(value, (list, tuple)) and attribute.type not in _LISTS:
        return _word(value)
    return _listed([_word(each) for each in value])


_LISTS = frozenset(
    {AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS, AttributeProto.TENSORS, AttributeProto.TYPE_PROTOS}
)


def _word(value: object) -> str:
    if isinstance(value, TensorProto):
        return _tensor(value)
    if isinstance(value, TypeProto):
        return _type(value)
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace"))
    if isinstance(value, float) and ctypes.c_float(value).value == value:
        return f"{value:.9g}"  # all the digits that a float32 has
    return repr(value)


def _tensor(tensor: TensorProto, before_numbers: str = " ") -> str:
    kind = f"{_element(tensor.data_type)}[{', '.join(map(str, tensor.dims))}]"
    if tensor.data_location == TensorProto.EXTERNAL:
        return kind + next((f" #{entry.value}" for entry in tensor.external_data if entry.key == _DIGEST), "")
    numbers = [_word(each) for each in onnx.numpy_helper.to_array(tensor).ravel().tolist()]
    return f"{kind}{before_numbers}{_listed(numbers) if tensor.dims else numbers[0]}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _operator(domain: str, name: str) -> str:
    return name if domain in ("", "ai.onnx") else f"{domain}.{name}"


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _listed(words: Sequence[str]) -> str:
    """``[1, 2, 3]``; a long one is cut short and has the digest of all of it, so that it differs from others."""
    rest = [f"… #{_short(repr(words).encode())}"] if len(words) > LONGEST else []
    return f"[{', '.join([*words[:LONGEST], *rest])}]"


def _element(kind: int) -> str:
    name = TensorProto.DataType.Name(kind) if kind in TensorProto.DataType.values() else f"type {kind}"
    return _TYPE_NAMES.get(name, name.lower())


def _type(kind: TypeProto) -> str:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(kind, which)
        if not tensor.HasField("shape"):
            return f"{_element(tensor.elem_type)}[…]"
        dims = (str(dim.dim_value) if dim.HasField("dim_value") else _symbol(dim.dim_param) for dim in tensor.shape.dim)
        return f"{'sparse ' if which.startswith('sparse') else ''}{_element(tensor.elem_type)}[{', '.join(dims)}]"
    if which in ("sequence_type", "optional_type"):
        return f"{which.removesuffix('_type')} of {_type(getattr(kind, which).elem_type)}"
    if which == "map_type":
        return f"map from {_element(kind.map_type.key_type)} to {_type(kind.map_type.value_type)}"
    return "any type"


def _symbol(name: str) -> str:
    """The name of an axis, unless shape inference has made it up."""
    return "?" if not name or name.startswith("unk__") else name


# --- which value is which -------------------------------------------------------------------------------------------

_Graph = GraphProto | onnx.FunctionProto


def _rename(one: _Graph, other: _Graph, around: Mapping[str, str] | None = None) -> None:
    """Give values and nodes of ``other`` the names that they have in ``one``, as far as they correspond.

    Names of inputs and outputs are what others know a graph by: they stay, and so do those of weights that both have. Within
    a node, nobody knows them.

    Args:
        one: the graph that has the names.
        other: the graph that gets them.
        around: where ``other`` is within a node, the new names of the values around it.
    """
    names = dict(around or {})
    public = set() if around is not None else {*_inputs(one), *_outputs(one), *_inputs(other), *_outputs(other)}
    weights, its_weights = _weights(one), _weights(other)
    pairs = _pairs(one.node, other.node)
    for name, its in [] if around is None else [*_zip(_inputs(one), _inputs(other)), *_zip(_outputs(one), _outputs(other))]:
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
            names[name] = f"{name}′"  # what is new must not be taken for what has this name in the other graph
    matching = {its_place: one.node[place] for place, its_place in pairs}
    for place, node in enumerate(other.node):
        match = matching.get(place, NodeProto())
        node.name = match.name or node.name
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
        graphs = {attribute.name: _graphs(attribute) for attribute in match.attribute}
        for attribute in node.attribute:
            known = iter(graphs.get(attribute.name, ()))
            for graph in _graphs(attribute):
                _rename(next(known, GraphProto()), graph, names)
    if isinstance(other, GraphProto):
        inner = () if around is None else (*other.input, *other.output)
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
    """The places of nodes that do the same, in order; and, between those, of nodes with the same operator."""
    pairs: list[tuple[int, int]] = []
    for is_same, first, second in _aligned(list(map(_doing, one)), list(map(_doing, other))):
        if is_same:
            pairs += zip(first, second, strict=True)
            continue
        operators = [[_operator_of(nodes[place]) for place in places] for nodes, places in ((one, first), (other, second))]
        for is_alike, third, fourth in _aligned(*operators):
            if is_alike:
                pairs += zip(first[third.start : third.stop], second[fourth.start : fourth.stop], strict=True)
    return pairs


def _aligned(one: Sequence[str], other: Sequence[str]) -> Iterator[tuple[bool, range, range]]:
    """Both in pieces that go together, and whether they are the same."""
    for tag, start, stop, begin, end in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        yield tag == "equal", range(start, stop), range(begin, end)


def _operator_of(node: NodeProto) -> str:
    return _operator(node.domain, node.op_type)


def _doing(node: NodeProto) -> str:
    """What a node does, whatever its values are called."""
    attributes = sorted(_named(each) for each in node.attribute if not _graphs(each))
    return f"{_operator_of(node)} {len(node.input)} {len(node.output)} {attributes}"
