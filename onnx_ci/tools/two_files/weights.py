"""The weights of two files with the same graph, value by value.

Inputs need not show a weight: it may belong to a row of an embedding that no input names, or to a unit that is off on all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto

from onnx_ci.onnx_model.contents import Contents, graphs_in
from onnx_ci.pipeline.model.tensors import index_at
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding
from onnx_ci.text import listed_shortly

_EPS: Mapping[int, float] = {
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}
"""How far floating types round a number, relative to it: half a step."""
_MOST_SIZES = 8
"""The longest vector of integers that counts as sizes or axes, which can be written in several ways."""
_REMEDY = "If they are meant to have different weights, allow that: --rules=weight-mismatch=note."


def compare_weights(reference: Path, tested: Path, limit: float) -> list[Finding]:
    """A finding about the weights that differ, if two files have the same graph up to names.

    The limit is in units of the rounding of the largest element.
    """
    try:
        (graph, weights), (other_graph, others) = (_graph_and_weights(onnx.load(path)) for path in (reference, tested))
    except Exception:  # onnx raises its own classes where it refuses data that the runtime can load
        return []
    differing: dict[str, tuple[float, str]] = {}
    for (name, weight), (_, other) in zip(weights, others, strict=True) if graph == other_graph else ():
        is_integer = weight.data_type in (TensorProto.INT32, TensorProto.INT64)
        may_be_sizes = is_integer and len(weight.dims) <= 1 and sum(weight.dims) <= _MOST_SIZES
        if weight.data_type == TensorProto.STRING or 0 in weight.dims or may_be_sizes:
            continue
        one, two = (torch.from_numpy(np.array(onnx.numpy_helper.to_array(each), np.float64)) for each in (weight, other))
        largest = one[one.isfinite()].abs().max() if one.isfinite().any() else one.new_ones(())
        is_same = (one == two) | (one.isnan() & two.isnan())
        apart = torch.where(is_same, 0.0, ((one - two).abs() / largest).nan_to_num(torch.inf))
        place = index_at(int(apart.argmax()), apart.shape)
        if apart[place] > limit * _EPS.get(weight.data_type, 0.0):
            where = f" at {[*place]}" if place else ""
            message = f"the weight {name!r}{where} is {one[place]:.9g} in {reference} and {two[place]:.9g} in {tested}"
            number = f"; {int((apart > 0).sum())} of {apart.numel()} values differ" if place else ""
            differing[name] = float(apart[place]), message + number
    if not differing:
        return []
    first, *more = sorted(differing, key=lambda name: differing[name][0], reverse=True)
    message = differing[first][1] + (f"; so do {listed_shortly(more)}" if more else "")
    return [finding("weight-mismatch", message, remedy=_REMEDY, details={"weights": [first, *more]})]


def _graph_and_weights(model: onnx.ModelProto) -> tuple[list[object], list[tuple[str, TensorProto]]]:
    """What a model computes, with values numbered in the order of their use, and its tensors with their names in that order."""
    contents = Contents.of(model)
    constants = dict(contents.constants)
    numbers: dict[str, int] = {}
    graph: list[object] = []
    weights: list[tuple[str, TensorProto]] = []
    for node in contents.nodes:
        if node.op_type == "Constant" and node.output[0] in constants:
            continue
        for name in (*node.input, *node.output):
            if name not in numbers and name in constants:
                weights.append((name, constants[name]))
            numbers.setdefault(name, len(numbers))
        weights += [(node.output[0], each.t) for each in node.attribute if each.HasField("t")]
        settings = {
            each.name: repr(onnx.helper.get_attribute_value(each))
            for each in node.attribute
            if not each.HasField("t") and not [*graphs_in(each)]
        }
        values = [[numbers[name] for name in names] for names in (node.input, node.output)]
        graph.append((node.domain, node.op_type, settings, values))
    return [*graph, *((each.data_type, [*each.dims]) for _, each in weights)], weights
