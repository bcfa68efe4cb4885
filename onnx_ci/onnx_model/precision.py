"""The precision in which an ONNX file computes, if it is lower than float32."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx
from onnx import TensorProto, ValueInfoProto

from onnx_ci.onnx_model.contents import Contents


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A precision that is lower than float32."""

    name: str
    eps: float
    """The distance between neighbouring numbers, relative to a number or, if the steps are uniform, to the largest number of
    the tensor."""
    is_uniform: bool = False
    """Whether the steps are the same throughout a tensor, as in quantized ones."""


PRECISIONS = MappingProxyType(
    {
        each.name: each
        for each in (
            Precision(name="float16", eps=2.0**-10),
            Precision(name="bfloat16", eps=2.0**-7),
            Precision(name="int8", eps=2 / 255, is_uniform=True),
            Precision(name="int4", eps=2 / 15, is_uniform=True),
        )
    }
)
"""The known precisions by name, the finest first."""

_BY_TYPE: Mapping[int, str] = {
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.UINT4: "int4",
    TensorProto.INT4: "int4",
}
_QUANTIZED = re.compile(r"Quantize(?:Linear|MatMul|LSTM)|^QLinear|^Q(?:Gemm|Attention)$|^(?:MatMul|Conv)Integer")
"""Operators of 8-bit integers, those of ONNX Runtime's own domain included."""
_IN_4_BITS = frozenset({"MatMulNBits", "GatherBlockQuantized", "MatMulBnb4"})

TYPE_ATTRIBUTES = ("to", "dtype")
"""Attributes of standard operators that name a data type."""


def lowest_precision(model: onnx.ModelProto, *, as_a_whole: bool = False) -> Precision | None:
    """The lowest precision in which a file computes; ``None`` if that is float32 or float64.

    A file is in a precision as a whole by its operators, weights, inputs or outputs. A cast is not enough.
    """
    contents = Contents.of(model)
    declared = (*model.graph.input, *model.graph.output) if as_a_whole else declared_values(model, contents)
    kinds = {tensor.data_type for tensor in contents.tensors} | {value.type.tensor_type.elem_type for value in declared}
    if not as_a_whole:
        kinds |= {attribute.i for _, attribute in contents.attributes if attribute.name in TYPE_ATTRIBUTES}
    names = {_BY_TYPE[kind] for kind in kinds if kind in _BY_TYPE}
    for node in contents.nodes:
        if node.op_type in _IN_4_BITS:
            names.add("int4")
        elif _QUANTIZED.search(node.op_type):
            names.add("int8")
    return next((PRECISIONS[name] for name in reversed(PRECISIONS) if name in names), None)


def has_int8_tensors(model: onnx.ModelProto) -> bool:
    """Whether tensors in a file, such as quantized weights, are signed integers of 8 bits."""
    return any(tensor.data_type == TensorProto.INT8 for tensor in Contents.of(model).tensors)


def declared_values(model: onnx.ModelProto, contents: Contents) -> Iterator[ValueInfoProto]:
    """The inputs and outputs of all graphs, and the other values whose type the file declares."""
    for graph in contents.graphs:
        yield from (*graph.input, *graph.output, *graph.value_info)
    for function in model.functions:
        yield from function.value_info
