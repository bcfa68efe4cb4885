"""Quantized activations in an ONNX file: the range of those with a fixed scale, and the file with all of them jittered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

_ZERO_POINT_OF_OUTPUT = {
    "QuantizeLinear": 2,
    "QLinearConv": 7,
    "QLinearMatMul": 7,
    "QLinearAdd": 7,
    "QLinearMul": 7,
    "QGemm": 8,
    "QLinearGlobalAveragePool": 4,
    "QLinearAveragePool": 4,
    "QLinearReduceMean": 4,
    "QLinearSigmoid": 4,
    "QLinearSoftmax": 4,
    "QLinearLeakyRelu": 4,
}
"""The position of the output's zero point among the inputs of each operator that quantizes an activation: those of the standard
(https://onnx.ai/onnx/operators) and of ONNX Runtime's own domain."""


@dataclass(frozen=True, kw_only=True)
class QuantizedActivation:
    """An activation that a file quantizes with a fixed scale."""

    name: str
    """The tensor of integers."""
    source: str | None
    """The tensor of floating-point numbers that is quantized; ``None`` if an operator computes the integers directly."""
    scale: float
    zero_point: int
    integers: np.iinfo
    """The range of the integers' type."""

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and highest number that is not clipped."""
        low, high = ((limit - self.zero_point) * self.scale for limit in (int(self.integers.min), int(self.integers.max)))
        return low, high


def quantized_activations(model: onnx.ModelProto) -> Iterator[QuantizedActivation]:
    """The activations of the main graph that have one fixed scale. ``model`` must contain all its data."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        place = _ZERO_POINT_OF_OUTPUT.get(node.op_type)
        if place is None or node.input[0] in constants:  # a weight
            continue
        if place >= len(node.input) or not {node.input[place - 1], node.input[place]} <= set(constants):
            continue
        scale, zero_point = (onnx.numpy_helper.to_array(constants[node.input[each]]) for each in (place - 1, place))
        if zero_point.size == 1 and zero_point.dtype.kind in "iu":
            yield QuantizedActivation(
                name=node.output[0],
                source=node.input[0] if node.op_type == "QuantizeLinear" else None,
                scale=float(scale.item()),
                zero_point=int(zero_point.item()),
                integers=np.iinfo(zero_point.dtype),
            )


# --- jitter -----------------------------------------------------------------------------------------------------------


def quantized_tensors(model: onnx.ModelProto) -> Mapping[str, np.iinfo]:
    """The quantized activations of the main graph, whether their scales are fixed or not, and the range of their integers."""
    fixed = {each.name: each.integers for each in quantized_activations(model)}
    dynamic = (node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear")
    return fixed | {node.output[0]: np.iinfo(np.uint8) for node in dynamic}


def with_jitter(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """A copy of ``model``, which must contain all its data, with noise on its quantized activations.

    Of every activation, a quarter of the elements is one step lower and a quarter one step higher. This is a standard deviation
    of 0.7 steps; that of rounding is 0.3.
    """
    jittered = onnx.ModelProto()
    jittered.CopyFrom(model)
    tensors = quantized_tensors(model)
    del jittered.graph.node[:]
    for number, node in enumerate(model.graph.node):
        copy = jittered.graph.node.add()
        copy.CopyFrom(node)
        for place, name in enumerate(node.output):
            if name in tensors:
                copy.output[place] = f"{name}.exact"
                jittered.graph.node.extend(_jitter(name, tensors[name], float(seed * 100_003 + number)))
    return jittered


def _jitter(name: str, integers: np.iinfo, seed: float) -> Iterator[onnx.NodeProto]:
    """Nodes that compute the tensor ``name`` from ``name.exact``, in operators that opset 10 has."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(integers.dtype)
    limits = {"lowest": float(integers.min), "highest": float(integers.max)}
    tensors = {word: f"{name}.{word}" for word in ("exact", "float", "noise", "sum", "floor", "above", "within", *limits)}

    def node(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        names = [tensors[word] for word in inputs.split()]
        return onnx.helper.make_node(operator, names, [tensors.get(output, output)], **attributes)

    for word, value in limits.items():
        yield node("Constant", "", word, value=onnx.numpy_helper.from_array(np.array(value, np.float32)))
    yield node("Cast", "exact", "float", to=onnx.TensorProto.FLOAT)
    yield node("RandomUniformLike", "float", "noise", low=-0.5, high=1.5, seed=seed)
    yield node("Add", "float noise", "sum")
    yield node("Floor", "sum", "floor")
    yield node("Max", "floor lowest", "above")
    yield node("Min", "above highest", "within")
    yield node("Cast", "within", name, to=kind)
