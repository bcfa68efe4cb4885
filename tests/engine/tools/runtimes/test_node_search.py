"""The nodes at which a runtime goes wrong, in runtimes with planted faults and in right ones."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnx_ci.pipeline.run.runtime import ArraySession
from onnx_ci.tools.runtimes.node_search import NodeSearch, zeros_for


class Planted:
    """ONNX Runtime, with files changed before they are loaded."""

    name, is_deployed = "planted", True

    def __init__(self, change=lambda model: None):
        self.change = change

    def load(self, path, device):
        model = onnx.load(path)
        self.change(model)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return ArraySession(lambda feeds: session.run(None, feeds))


def scaled(operator, factor):
    """A fault: the outputs of one operator are too large."""

    def change(model):
        for node in [each for each in model.graph.node if each.op_type == operator]:
            (name,) = node.output
            node.output[0] = f"{name}/right"
            model.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), f"{name}/factor"))
            model.graph.node.append(helper.make_node("Mul", [node.output[0], f"{name}/factor"], [name]))

    return change


def refuses(operator):
    """A lack: files with one operator are not loaded."""

    def change(model):
        if any(node.op_type == operator for node in model.graph.node):
            raise RuntimeError(f"{operator} is not implemented")

    return change


def refuses_all(model):
    raise RuntimeError("Unsupported model IR version")


def negates_pairs(model):
    """A fault of an optimizer: right for each node alone, wrong for MatMul with Add."""
    if {"MatMul", "Add"} <= {node.op_type for node in model.graph.node}:
        scaled("MatMul", -1.0)(model)


@pytest.fixture
def search(tmp_path):
    """The search in a file of x → Transpose → MatMul → Add → Relu → Softmax, in a runtime."""
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape, "f"), name) for name, shape in (("w", (4, 6)), ("b", 6))
    ]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["t", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [4, "rows"]), ("y", ["rows", 6]))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    feeds = {"x": torch.from_numpy(generator.standard_normal((4, 3), "f"))}
    announced = []

    def make(change, feeds=feeds):
        return NodeSearch(path, feeds, Planted(change), tmp_path, 60.0, announced.append)

    make.announced, make.path = announced, path
    return make


def test_a_right_runtime_has_no_faults(search):
    assert search(lambda model: None).faults() == []
    assert search.announced[:2] == ["Transpose 't'", "MatMul 'm'"]


@pytest.mark.parametrize("operator", ["MatMul", "Relu", "Softmax"])
@pytest.mark.parametrize("factor", [2.0, 1.0001])
def test_the_operator_that_computes_something_else_is_named_and_no_later_one(search, operator, factor):
    faults = search(scaled(operator, factor)).faults()
    assert [each.titles[0].split()[0] for each in faults] == [operator]
    assert faults[0].roundings > 64 and f"{faults[0]}".startswith(f"{operator} '")


def test_rounding_is_no_fault(search):
    assert search(scaled("MatMul", 1.0000002)).faults() == []


def test_nodes_that_are_wrong_together_are_named_together(search):
    (fault,) = search(negates_pairs).faults()
    assert fault.titles == ("MatMul 'm'", "Add 'a'")
    assert str(fault).endswith("together, and each is right by itself")


def test_a_node_that_is_refused_is_named(search):
    (fault,) = search(refuses("Relu")).refused()
    assert str(fault) == "Relu 'r': Relu is not implemented"


def test_where_any_file_is_refused_no_node_is_named(search):
    assert search(refuses_all).refused() == []


def test_another_type_is_a_fault(search):
    def to_double(model):
        if model.graph.node[0].op_type == "Relu":
            model.graph.node[0].output[0] = "float"
            model.graph.node.append(helper.make_node("Cast", ["float"], ["r"], to=TensorProto.DOUBLE))
            model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE

    (fault,) = search(to_double).faults()
    assert str(fault) == "Relu 'r': another shape, another type or other finite values"


def test_zeros_stand_for_inputs_that_are_not_given(search):
    zeros = zeros_for(onnx.load(search.path))
    assert {name: tuple(tensor.shape) for name, tensor in zeros.items()} == {"x": (4, 2)}
    (fault,) = search(refuses("Add"), zeros).refused()
    assert fault.titles == ("Add 'a'",)
