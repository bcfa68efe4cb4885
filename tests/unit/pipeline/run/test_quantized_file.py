"""Quantized activations of a file: which they are, their ranges, and what jitter makes of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_ci.pipeline.run.quantized_file import quantized_activations, quantized_tensors, with_jitter


def model(*, scale=0.5, zero_point=-28, kind=np.int8, opset=17):
    """x, quantized and dequantized again."""
    constants = {"scale": np.float32(scale), "zero": kind(zero_point), "weight": np.float32([1, 2])}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
        helper.make_node("QuantizeLinear", ["weight", "scale", "zero"], ["w"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(made, x):
    return onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize(("kind", "zero_point", "limits"), [(np.int8, -28, (-50, 77.5)), (np.uint8, 0, (0, 127.5))])
def test_an_activation_has_the_range_that_is_not_clipped(kind, zero_point, limits):
    (activation,) = quantized_activations(model(kind=kind, zero_point=zero_point))
    assert (activation.name, activation.source, activation.range) == ("q", "x", limits)
    made = model(kind=kind, zero_point=zero_point)
    np.testing.assert_array_equal(run(made, np.float32([-1e3, *limits, 1e3])), np.repeat(np.float32(limits), 2))


@pytest.mark.parametrize("opset", [10, 13, 17])
def test_jitter_moves_half_of_the_numbers_by_one_step(opset):
    right = model(opset=opset)
    x = np.zeros(4000, np.float32)
    moved = [run(with_jitter(right, seed), x) - run(right, x) for seed in (0, 1)]
    for each in moved:
        values, counts = np.unique(each, return_counts=True)
        assert values.tolist() == [-0.5, 0, 0.5]
        np.testing.assert_allclose(counts / x.size, [0.25, 0.5, 0.25], atol=0.05)
    assert (moved[0] != moved[1]).any()
    onnx.checker.check_model(with_jitter(right, 0))


def test_jitter_stays_within_the_range_of_the_integers():
    limits = np.float32([-50, 77.5])
    moved = run(with_jitter(model(), 0), np.repeat(limits, 200))
    assert (moved.min(), moved.max()) == tuple(limits)


def test_scales_that_are_computed_are_jittered_too():
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    dynamic = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert (list(quantized_activations(dynamic)), set(quantized_tensors(dynamic))) == ([], {"q"})
    x = np.linspace(0, 255, 256, dtype=np.float32)
    assert set(np.unique(run(with_jitter(dynamic, 0), x) - run(dynamic, x))) == {-1, 0, 1}
