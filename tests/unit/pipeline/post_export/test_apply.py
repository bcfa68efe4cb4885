"""A pass makes a file, or its failure is a finding in its own words; the file before it is never changed."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_ci.collection.post_export import graph_pass
from onnx_ci.pipeline.export.export import Artifact
from onnx_ci.pipeline.post_export.apply import apply_pass


def model():
    """``y = Identity(relu(x) @ w)``."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Identity", ["b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    weight = numpy_helper.from_array(numpy.arange(16, dtype=numpy.float32).reshape(4, 4) / 16, "w")
    graph = helper.make_graph(nodes, "net", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def before(tmp_path):
    onnx.save_model(model(), tmp_path / "net.onnx")
    return Artifact(path=tmp_path / "net.onnx")


def applied(what, before, feeds=list, **options):
    declared = graph_pass(what, **options)
    original = before.read_bytes()
    result = apply_pass(declared, before, before.path.parent / "1", feeds)
    assert before.read_bytes() == original
    assert (result.artifact is None) == bool(result.findings)
    return result


def problem(result):
    (found,) = result.findings
    assert found.rule == "pass-error"
    return found


def operators(artifact):
    return [node.op_type for node in onnx.load(artifact.path).graph.node]


def without_relu(given):
    del given.graph.node[0]
    given.graph.node[0].input[0] = "x"
    return given


def test_a_function_gets_the_model_and_returns_it(before):
    assert operators(applied(without_relu, before).artifact) == ["MatMul", "Identity"]


@pytest.mark.parametrize(("bound", "expected"), [({}, "None None"), ({"keep_io_types": False, "feeds": 3}, "False 3")])
def test_what_a_functions_author_has_bound_or_given_a_default_stays(before, bound, expected):
    def notes(given, *, keep_io_types=None, feeds=None):
        helper.set_model_props(given, {"seen": f"{keep_io_types} {feeds}"})
        return given

    result = applied(functools.partial(notes, **bound), before, name="notes")
    assert [prop.value for prop in onnx.load(result.artifact.path).metadata_props] == [expected]


def test_a_function_can_change_a_copy_of_the_file(before):
    def in_place(path: Path):
        onnx.save_model(without_relu(onnx.load(path)), path)
        return path

    assert operators(applied(in_place, before).artifact) == ["MatMul", "Identity"]


def test_a_function_can_return_the_path_of_another_file(before, tmp_path):
    def elsewhere(path: str):
        other = tmp_path / "other.onnx"
        onnx.save_model(onnx.load(path), other, save_as_external_data=True, location="other.data", size_threshold=0)
        return str(other)

    artifact = applied(elsewhere, before).artifact
    assert artifact.path.parent != tmp_path
    assert operators(artifact) == ["Relu", "MatMul", "Identity"]  # with the data beside it


def fails(given):
    raise RuntimeError(f"cannot fuse {len(given.graph.node)} nodes")


def leaves(given):
    sys.exit("bye")


def returning(value):
    def returns(given):
        return value

    return returns


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (fails, "fails raised RuntimeError: cannot fuse 3 nodes"),
        (leaves, "leaves raised SystemExit: bye"),
        (returning(None), "returned None instead of a model"),
        (returning(3), "returned a int instead of a model"),
        (returning("gone.onnx"), "returned the path 'gone.onnx', where there is no file"),
    ],
)
def test_a_failure_is_reported_in_its_own_words(before, function, words):
    found = problem(applied(function, before))
    assert words in found.message
    assert found.introduced_by == function.__name__


def test_what_a_pass_prints_is_in_the_log(before):
    def chatty(given):
        print("fusing")
        return given

    assert "fusing" in applied(chatty, before).log


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("onnxsim", "onnxsim", "onnxsim"),
        ("onnxslim", "onnxslim", "onnxslim"),
        ("float16", "onnxconverter_common", "float16"),
        ("int8-dynamic", "onnxruntime.quantization", "cpu"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(before, monkeypatch, name, module, extra):
    for loaded in [each for each in sys.modules if each.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    found = problem(applied(name, before))
    assert "is not installed" in found.message
    assert found.remedy == f"pip install onnx-ci[{extra}]"


@pytest.mark.parametrize(
    ("name", "package"), [("onnxsim", "onnxsim"), ("onnxslim", "onnxslim"), ("ort-optimized", "onnxruntime")]
)
def test_simplifiers_remove_what_does_nothing(before, name, package):
    if package != "onnxruntime":  # which every installation has
        pytest.importorskip(package)
    assert "Identity" not in operators(applied(name, before).artifact)


def test_options_reach_the_package(before):
    found = problem(applied("ort-optimized", before, level="extreme"))
    assert "takes level='basic', 'extended' or 'all'" in found.message


def test_a_known_option_is_used(before):
    assert operators(applied("ort-optimized", before, level="basic").artifact) == ["Relu", "MatMul"]


def test_float16_converts_the_interface_unless_told_otherwise(before, tmp_path):
    pytest.importorskip("onnxconverter_common")
    types = []
    for keep in (False, True):
        result = apply_pass(graph_pass("float16", keep_io_types=keep), before, tmp_path / str(keep), list)
        types.append(onnx.load(result.artifact.path).graph.input[0].type.tensor_type.elem_type)
    assert types == [TensorProto.FLOAT16, TensorProto.FLOAT]


def test_dynamic_quantization_needs_no_inputs(before):
    assert "MatMulInteger" in operators(applied("int8-dynamic", before, weight_type="QUInt8").artifact)


def test_static_quantization_is_calibrated_on_the_inputs(before):
    feeds = [{"x": numpy.ones((1, 4), numpy.float32)}, {"x": numpy.full((2, 4), 3, numpy.float32)}]
    artifact = applied("int8-static", before, lambda: feeds).artifact
    scales = [numpy_helper.to_array(each) for each in onnx.load(artifact.path).graph.initializer if "scale" in each.name]
    assert any(scale == pytest.approx(3 / 255) for scale in scales)


def test_static_quantization_without_inputs_says_what_to_give(before):
    found = problem(applied("int8-static", before))
    assert "int8-static cannot be calibrated" in found.message
    assert "Give the recipe an example" in found.remedy
