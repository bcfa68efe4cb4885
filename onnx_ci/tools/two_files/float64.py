"""A file as a reference: all of it in float64, and the weights that can be perturbed. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, TypeProto

from onnx_ci.onnx_model.contents import Contents
from onnx_ci.onnx_model.precision import TYPE_ATTRIBUTES, declared_values

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, which must contain all its data, with every floating type replaced by float64. It is modified.

    Quantization and casts to integers stay, because they are part of what the file computes.
    """
    contents = Contents.of(model)
    for tensor in contents.tensors:
        if tensor.data_type in _FLOATS:
            tensor.CopyFrom(_double(onnx.numpy_helper.to_array(tensor), tensor.name))
    for value in declared_values(model, contents):
        _widen(value.type)
    for node, attribute in contents.attributes:
        if attribute.name in TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT and attribute.i in _FLOATS:
            attribute.i = TensorProto.DOUBLE
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats") and not attribute.ref_attr_name:
            value = _double(np.array(onnx.helper.get_attribute_value(attribute)), "")
            attribute.CopyFrom(onnx.helper.make_attribute("value", value))
    return model


def _double(array: np.ndarray, name: str) -> TensorProto:
    return onnx.numpy_helper.from_array(array.astype(np.float64), name)


def _widen(kind: TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(kind, which)
        if tensor.elem_type in _FLOATS:
            tensor.elem_type = TensorProto.DOUBLE
    elif which in ("sequence_type", "optional_type"):
        _widen(getattr(kind, which).elem_type)


def perturbable_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """The floating weights of a model, which must contain all its data; without scales of sizes, which determine shapes."""
    contents = Contents.of(model)
    scales = {name for node in contents.nodes if node.op_type in ("Resize", "Upsample") for name in node.input[1:]}
    for name, tensor in contents.constants:
        if name not in scales and tensor.data_type in (*_FLOATS, TensorProto.DOUBLE):
            yield tensor
