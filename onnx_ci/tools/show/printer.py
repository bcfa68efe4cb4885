"""An ONNX graph as readable text, without its weights.

``onnx.printer`` writes every weight in full, 400 kB for a small LSTM, and all types in one line before the first node. This
text has a line for each value, with its type where it is computed, and truncates lists. It cannot be parsed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnx_ci.onnx_model.contents import Contents, graphs_in
from onnx_ci.onnx_model.signature import data_type_name

LONGEST = 8
"""How many elements of a constant are shown; one with more is a weight."""

_TYPE_NAMES = {"float": "float32", "double": "float64"}
_DIGEST = "checksum"
"""The key of external data, defined by ONNX, under which a tensor without its data keeps a digest of it."""


def without_weights(model: ModelProto, folder: Path | None = None) -> ModelProto:
    """``model`` without the data of its weights, and with the types of all values that onnx can infer. It is modified.

    Args:
        folder: the folder of the model's file. If given, a digest of each weight is kept, so that the text differs between
            models with different weights.

    Raises:
        Exception: the weights are missing; onnx raises many classes for that.
    """
    for tensor in Contents.of(model).tensors:
        if math.prod(tensor.dims) > LONGEST or tensor.data_location == TensorProto.EXTERNAL:
            empty = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            empty.data_location = TensorProto.EXTERNAL
            if folder is not None:
                array = onnx.numpy_helper.to_array(tensor, base_dir=str(folder))
                data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
                empty.external_data.add(key=_DIGEST, value=_short_digest(data))
            tensor.CopyFrom(empty)
    with contextlib.suppress(Exception):  # types are optional, and invalid graphs are reported elsewhere
        inferred = onnx.shape_inference.infer_shapes(model)
        del inferred.graph.output[:]
        inferred.graph.output.extend(model.graph.output)  # keep the declared types of outputs
        return inferred
    return model


def _short_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def graph_lines(model: ModelProto) -> list[str]:
    """The text of ``model``, whose weights have been removed, line by line."""
    producer = " ".join(filter(None, [model.producer_name, model.producer_version]))
    lines = [f"opset {_opsets(model)}; IR version {model.ir_version}{f'; produced by {producer}' if producer else ''}"]
    lines += _graph(model.graph)
    for function in sorted(model.functions, key=lambda each: (each.domain, each.name)):
        attributes = _in_braces([*function.attribute, *map(show_attribute, function.attribute_proto)])
        signature = f"{operator_name(function.domain, function.name)}({', '.join(function.input)}){attributes}"
        lines.append(f"function {signature} -> ({', '.join(function.output)}), opset {_opsets(function)}")
        lines += _indented(_nodes(function.node, {}))
    return lines


def _opsets(imported: ModelProto | onnx.FunctionProto) -> str:
    return ", ".join(f"{opset.domain or 'ai.onnx'} {opset.version}" for opset in imported.opset_import)


def _graph(graph: GraphProto) -> Iterator[str]:
    initializers = {tensor.name for tensor in graph.initializer}
    types = {value.name: _type(value.type) for value in (*graph.value_info, *graph.output)}
    yield "inputs"
    # Before IR version 4 initializers are inputs, too.
    yield from _indented(f"{each.name}: {_type(each.type)}" for each in graph.input if each.name not in initializers)
    yield "outputs"
    yield from _indented(f"{each.name}: {_type(each.type)}" for each in graph.output)
    if graph.initializer or graph.sparse_initializer:
        yield f"initializers ({sum(math.prod(tensor.dims) for tensor in graph.initializer):,} elements)"
        yield from _indented(f"{each.name}: {_tensor(each, ' = ')}" for each in graph.initializer)
        yield from _indented(f"{each.values.name}: sparse {_tensor(each.values, ' = ')}" for each in graph.sparse_initializer)
    yield "nodes"
    yield from _indented(_nodes(graph.node, types))


def _nodes(nodes: Iterable[NodeProto], types: Mapping[str, str]) -> Iterator[str]:
    for node in nodes:
        outputs = ", ".join(f"{name}: {types[name]}" if name in types else name or "_" for name in node.output)
        inputs = ", ".join(name or "_" for name in node.input)
        attributes = _in_braces([show_attribute(each) for each in node.attribute if not [*graphs_in(each)]])
        name = f"  # {node.name}" if node.name else ""
        yield f"{outputs} = {operator_name(node.domain, node.op_type)}({inputs}){attributes}{name}"
        for attribute in node.attribute:
            for graph in graphs_in(attribute):
                yield f"  {attribute.name}:"
                yield from _indented(_indented(_graph(graph)))


def _in_braces(attributes: Sequence[str]) -> str:
    return f" {{{', '.join(attributes)}}}" if attributes else ""


def show_attribute(attribute: AttributeProto) -> str:
    """``name=value``."""
    return f"{attribute.name}={_attribute(attribute)}"


def _attribute(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError:
        return f"a value of the unknown type {attribute.type}"
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
        return f"{value:.9g}"  # all digits of a float32
    return repr(value)


def _tensor(tensor: TensorProto, before_numbers: str = " ") -> str:
    kind = f"{_element(tensor.data_type)}[{', '.join(map(str, tensor.dims))}]"
    if tensor.data_location == TensorProto.EXTERNAL or not tensor.data_type:  # an attribute without its tensor has no type
        return kind + next((f" #{entry.value}" for entry in tensor.external_data if entry.key == _DIGEST), "")
    numbers = [_word(each) for each in onnx.numpy_helper.to_array(tensor).ravel().tolist()]
    return f"{kind}{before_numbers}{_listed(numbers) if tensor.dims else numbers[0]}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def operator_name(domain: str, name: str) -> str:
    """The operator's name in the printed graph."""
    return name if domain in ("", "ai.onnx") else f"{domain}.{name}"


def _listed(words: Sequence[str]) -> str:
    """``[1, 2, 3]``; a long list is truncated and ends with a digest of the whole, so that it differs from others."""
    rest = [f"… #{_short_digest(repr(words).encode())}"] if len(words) > LONGEST else []
    return f"[{', '.join([*words[:LONGEST], *rest])}]"


def _element(kind: int) -> str:
    name = data_type_name(kind)
    return _TYPE_NAMES.get(name, name)


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
    """The name of an axis, unless shape inference has generated it."""
    return "?" if not name or name.startswith("unk__") else name
