"""What is read from a file without torch."""

from __future__ import annotations

import onnx
import pytest

from onnx_ci.onnx_model.signature import Signature, read_model, read_signature, remedy_of_type
from onnx_ci.results.records import Finding

POWERS = """
<ir_version: 8, opset_import: ["": 17, "own": 1]>
net (float[2] x) => (float[2] y) {{ h = own.first (x) y = own.second (h) }}
<domain: "own", opset_import: ["": 17]>
first (x) => (y) {{ e = Constant <value = float {first}> () y = Pow (x, e) }}
<domain: "own", opset_import: ["": 17]>
second (x) => (y) {{ e = Constant <value = float {second}> () y = Pow (x, e) }}
"""


@pytest.mark.parametrize(("first", "second", "has_others"), [("{2}", "{2}", False), ("{3}", "{2}", True), ("{2}", "{3}", True)])
def test_a_power_is_noticed_whatever_its_exponent_is_called_elsewhere(tmp_path, first, second, has_others):
    onnx.save_model(onnx.parser.parse_model(POWERS.format(first=first, second=second)), tmp_path / "net.onnx")
    signature = read_signature(tmp_path / "net.onnx")
    assert isinstance(signature, Signature)
    assert signature.has_other_powers is has_others


RIGHT = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("place", ["initializer", "attribute"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda tensor: tensor.dims.append(2**62), "has the impossible shape"),
        (lambda tensor: tensor.dims.append(-1), "has the impossible shape"),
        (lambda tensor: tensor.dims.append(3), "cannot be read: "),
        (lambda tensor: tensor.ClearField("float_data"), "cannot be read: "),
        (lambda tensor: setattr(tensor, "raw_data", b"12345"), "cannot be read: "),
        (lambda tensor: setattr(tensor.segment, "begin", 1), "cannot be read: "),
        (lambda tensor: tensor.ClearField("data_type"), "has the unknown type 0"),
        (lambda tensor: setattr(tensor, "data_type", 99), "has the unknown type 99"),
        (lambda tensor: None, None),
    ],
)
def test_a_tensor_that_cannot_be_read_is_a_damaged_file(tmp_path, place, damage, said):
    node = onnx.helper.make_node("Constant", [], ["y"], value=RIGHT)
    graph = onnx.helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")], [RIGHT])
    damage(graph.initializer[0] if place == "initializer" else graph.node[0].attribute[0].t)
    onnx.save_model(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    read = read_model(tmp_path / "m.onnx")
    if said is None:
        assert isinstance(read, onnx.ModelProto)
    else:
        assert isinstance(read, Finding)
        assert f"tensor 'w' {said}" in read.message
        assert read_signature(tmp_path / "m.onnx") == read


TWO_NODES = """
<ir_version: 8, opset_import: ["": 17]>
net (float[2] {first}) => (float[2] {last}) {{ {middle} = Relu ({first}) {last} = Exp ({middle}) }}
"""


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"first": "relu", "middle": "relu", "last": "y"}, "the input 'relu' has the same name as what a Relu node computes"),
        ({"first": "x", "middle": "relu", "last": "relu"}, "the output 'relu' has the same name as what a Relu node computes"),
        ({"first": "x", "middle": "relu", "last": "y"}, None),
    ],
)
def test_an_input_or_output_whose_name_a_node_writes_too_is_named(tmp_path, names, said):
    onnx.save_model(onnx.parser.parse_model(TWO_NODES.format(**names)), tmp_path / "net.onnx")
    read = read_signature(tmp_path / "net.onnx")
    assert (f"{read.rule}: {read.message}" if isinstance(read, Finding) else None) == (said and f"name-mismatch: {said}")


def test_an_input_with_a_default_is_no_second_value_of_its_name(tmp_path):
    model = onnx.parser.parse_model(TWO_NODES.format(first="x", middle="relu", last="y"))
    model.graph.initializer.add(name="x", dims=[2], data_type=onnx.TensorProto.FLOAT, float_data=[1.0, 2.0])
    onnx.save_model(model, tmp_path / "net.onnx")
    assert isinstance(read_signature(tmp_path / "net.onnx"), Signature)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (
            "[ShapeInferenceError] (op_type:CumSum, node name: /CumSum): x typestr: T, has unsupported type: tensor(bool)",
            "ONNX's CumSum takes no bool: cast before it, as x.long() or x.float() does.",
        ),
        (
            "Type Error: Type 'tensor(int64)' of input parameter (/Cast_output_0) of operator (Log) in node (/Log) is invalid.",
            "ONNX's Log takes no int64: cast before it, as x.long() or x.float() does.",
        ),
        ("No Op registered for Foo with domain_version of 17", None),
    ],
)
def test_an_operator_that_does_not_take_a_type_is_named(reason, remedy):
    assert remedy_of_type(reason) == remedy
