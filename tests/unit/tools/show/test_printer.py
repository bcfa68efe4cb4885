"""A graph as people read it, and what differs between two."""

from __future__ import annotations

import re

import onnx
from onnx import TensorProto, helper

from onnx_ci.tools.show.diff import difference
from onnx_ci.tools.show.printer import graph_lines, without_weights

FLOATS = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])


def model_of(nodes, *, initializers=(), inputs=(FLOATS,), outputs=("y",), functions=(), **more):
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in outputs]
    graph = helper.make_graph(nodes, "g", list(inputs), made, list(initializers))
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(each.domain, 1) for each in functions)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), producer_name="me", ir_version=8, **more)


def text_of(model):
    return graph_lines(without_weights(model))


def diff_of(one, other, tmp_path):
    """The lines of the diff that say something."""
    light = [without_weights(model, tmp_path) for model in (one, other)]
    lines = difference(*light, ("one", "other"))
    return [line for line in lines if line[:1] in "+-" and not line.startswith(("---", "+++"))]


def weights(name, size, value=0.5):
    return helper.make_tensor(name, TensorProto.FLOAT, [size, size], [value] * (size * size))


def test_a_graph_is_read_line_by_line_without_its_weights():
    model = model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
            helper.make_node("Clip", ["h", "", "most"], ["c"]),
            helper.make_node("Gelu", ["c"], ["y"], domain="com.microsoft", approximate="tanh", bits=[1, 2], alpha=0.25),
        ],
        initializers=[weights("w", 3), helper.make_tensor("most", TensorProto.FLOAT, [], [6.0])],
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert text_of(model) == [
        "opset ai.onnx 17, com.microsoft 1; IR version 8; produced by me",
        "inputs",
        "  x: float32[n, 3]",
        "outputs",
        "  y: float32[n, 3]",
        "initializers (10 elements)",
        "  w: float32[3, 3]",
        "  most: float32[] = 6",
        "nodes",
        "  h: float32[n, 3] = MatMul(x, w)  # first",
        "  c: float32[n, 3] = Clip(h, _, most)",
        "  y: float32[n, 3] = com.microsoft.Gelu(c) {alpha=0.25, approximate='tanh', bits=[1, 2]}",
    ]


def test_graphs_within_nodes_and_functions_are_shown():
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], [f"{op}_out"])], op, [], [helper.make_tensor_value_info(f"{op}_out", 1, None)]
        )
        for op in ("Neg", "Abs")
    ]
    double = helper.make_function(
        "own", "Double", ["a"], ["b"], [helper.make_node("Mul", ["a", "two"], ["b"])], [helper.make_opsetid("", 17)]
    )
    nodes = [
        helper.make_node("If", ["yes"], ["h"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Double", ["h"], ["y"], domain="own"),
    ]
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    lines = text_of(model_of(nodes, initializers=[yes], functions=[double]))
    assert lines[lines.index("nodes") :] == [
        "nodes",
        "  h: float32[n, 3] = If(yes)",
        "    else_branch:",
        "      inputs",
        "      outputs",
        "        Abs_out: float32[n, 3]",
        "      nodes",
        "        Abs_out: float32[n, 3] = Abs(x)",
        "    then_branch:",
        "      inputs",
        "      outputs",
        "        Neg_out: float32[n, 3]",
        "      nodes",
        "        Neg_out: float32[n, 3] = Neg(x)",
        "  y: float32[n, 3] = own.Double(h)",
        "function own.Double(a) -> (b), opset ai.onnx 17",
        "  b = Mul(a, two)",
    ]


def test_tensors_in_attributes_are_short_or_without_numbers():
    short = helper.make_node("Constant", [], ["a"], value=helper.make_tensor("", TensorProto.INT64, [2], [3, -1]))
    long = helper.make_node("Constant", [], ["b"], value=helper.make_tensor("", TensorProto.INT64, [9], list(range(9))))
    many = helper.make_node("Own", ["x"], ["y"], domain="own", sizes=list(range(20)), texts=["p", "q"])
    model = model_of([short, long, many])
    model.opset_import.append(helper.make_opsetid("own", 1))
    lines = text_of(model)
    assert "  a: int64[2] = Constant() {value=int64[2] [3, -1]}" in lines
    assert "  b: int64[9] = Constant() {value=int64[9]}" in lines
    assert re.search(r"\{sizes=\[0, 1, 2, 3, 4, 5, 6, 7, … #[0-9a-f]{8}\], texts=\['p', 'q'\]\}$", lines[-1])


def test_values_of_every_kind_have_a_type():
    kinds = [
        helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.DOUBLE, None))),
        helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.BOOL, [None]))),
        helper.make_value_info(
            "m", helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.STRING, [1]))
        ),
    ]
    lines = text_of(model_of([helper.make_node("Neg", ["x"], ["y"])], inputs=[FLOATS, *kinds]))
    assert lines[3:6] == [
        "  s: sequence of float64[…]", "  o: optional of bool[?]", "  m: map from int64 to string[1]",
    ]  # fmt: skip


# --- differences


def chain(names, *, extra=False, alpha=0.1):
    """``y = Neg(LeakyRelu(MatMul(x, w)))`` with values and weights called as ``names`` say; with ``extra`` one node more."""
    w, a, b, c = names
    nodes = [helper.make_node("MatMul", ["x", w], [a], name=f"first{a}"), helper.make_node("LeakyRelu", [a], [b], alpha=alpha)]
    if extra:
        nodes.append(helper.make_node("Abs", [b], [c]))
    nodes.append(helper.make_node("Neg", [c if extra else b], ["y"]))
    return model_of(nodes, initializers=[weights(w, 3)])


def test_names_alone_make_no_difference(tmp_path):
    assert diff_of(chain("wabc"), chain("vbca"), tmp_path) == []


def test_a_new_node_is_the_difference_and_where_its_value_goes(tmp_path):
    assert diff_of(chain("1234"), chain("5674", extra=True), tmp_path) == [
        "-  y: float32[n, 3] = Neg(3)",
        "+  4: float32[n, 3] = Abs(3)",
        "+  y: float32[n, 3] = Neg(4)",
    ]


def test_a_new_value_is_not_taken_for_the_one_that_had_its_name(tmp_path):
    assert diff_of(chain("wabc"), chain("wbca", extra=True), tmp_path) == [
        "-  y: float32[n, 3] = Neg(b)",
        "+  a′: float32[n, 3] = Abs(b)",
        "+  y: float32[n, 3] = Neg(a′)",
    ]


def test_another_attribute_is_one_line_though_all_values_are_renamed(tmp_path):
    assert diff_of(chain("wabc"), chain("1234", alpha=0.2), tmp_path) == [
        "-  b: float32[n, 3] = LeakyRelu(a) {alpha=0.100000001}",
        "+  b: float32[n, 3] = LeakyRelu(a) {alpha=0.200000003}",
    ]


def test_what_is_cut_short_is_compared_whole(tmp_path):
    def model(last):
        node = helper.make_node("Own", ["x"], ["y"], domain="own", sizes=[*range(20), last])
        return model_of([node])

    assert diff_of(model(1), model(1), tmp_path) == []
    assert len(diff_of(model(1), model(2), tmp_path)) == 2


def test_doubles_are_compared_to_their_last_digit(tmp_path):
    def model(value):
        return model_of([helper.make_node("Neg", ["x"], ["y"])], initializers=[helper.make_tensor("w", 11, [1], [value])])

    assert diff_of(model(0.1), model(0.1 + 1e-15), tmp_path) == [
        "-  w: float64[1] = [0.1]", "+  w: float64[1] = [0.100000000000001]",
    ]  # fmt: skip


def test_functions_differ_in_their_attributes_and_their_opsets(tmp_path):
    def model(alpha, opset=17):
        node = helper.make_node("LeakyRelu", ["a"], ["b"])
        node.attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
        own = helper.make_function(
            "own", "Leaky", ["a"], ["b"], [node], [helper.make_opsetid("", opset)], ["kind"],
            [helper.make_attribute("alpha", alpha)],
        )  # fmt: skip
        return model_of([helper.make_node("Leaky", ["x"], ["y"], domain="own")], functions=[own])

    assert diff_of(model(0.5), model(0.5), tmp_path) == []
    assert diff_of(model(0.5), model(0.25, 16), tmp_path) == [
        "-function own.Leaky(a) {kind, alpha=0.5} -> (b), opset ai.onnx 17",
        "+function own.Leaky(a) {kind, alpha=0.25} -> (b), opset ai.onnx 16",
    ]


def test_other_weights_are_other_digests(tmp_path):
    one, other, same = (
        model_of([helper.make_node("MatMul", ["x", name], ["y"])], initializers=[weights(name, 3, value)])
        for name, value in (("w", 0.5), ("v", 0.25), ("v", 0.5))
    )
    again = onnx.ModelProto.FromString(one.SerializeToString())
    removed, added = diff_of(one, other, tmp_path)
    assert removed.startswith("-  w: float32[3, 3] #")
    assert added.startswith("+  w: float32[3, 3] #")
    assert diff_of(again, same, tmp_path) == []


def test_weights_in_files_of_their_own_are_compared_too(tmp_path):
    def saved(name, value):
        model = model_of(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], initializers=[onnx.numpy_helper.from_array(ones * value, "w")]
        )
        onnx.save(model, tmp_path / name, save_as_external_data=True, location=f"{name}.data", size_threshold=0)
        return onnx.load(tmp_path / name, load_external_data=False)

    import numpy as np

    ones = np.ones((3, 3), np.float32)
    assert diff_of(saved("a", 1), saved("b", 1), tmp_path) == []
    assert len(diff_of(saved("a", 1), saved("b", 2), tmp_path)) == 2


def test_names_of_inputs_and_outputs_are_differences(tmp_path):
    one, other = (model_of([helper.make_node("Neg", ["x"], [name])], outputs=[name]) for name in "yz")
    assert diff_of(one, other, tmp_path) == [
        "-  y: float32[n, 3]", "+  z: float32[n, 3]", "-  y: float32[n, 3] = Neg(x)", "+  z: float32[n, 3] = Neg(x)",
    ]  # fmt: skip


def test_names_within_nodes_and_functions_make_no_difference(tmp_path):
    def looping(count, condition, carried, made):
        body = helper.make_graph(
            [helper.make_node("Add", [carried, "x"], [made]), helper.make_node("Identity", [condition], [f"{condition}_out"])],
            f"body{made}",
            [
                helper.make_tensor_value_info(count, TensorProto.INT64, []),
                helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
                helper.make_tensor_value_info(carried, TensorProto.FLOAT, ["n", 3]),
            ],
            [
                helper.make_tensor_value_info(f"{condition}_out", TensorProto.BOOL, []),
                helper.make_tensor_value_info(made, TensorProto.FLOAT, ["n", 3]),
            ],
        )
        function = helper.make_function(
            "own", "Twice", ["a"], ["b"],
            [helper.make_node("Add", ["a", "a"], [made]), helper.make_node("Identity", [made], ["b"])],
            [helper.make_opsetid("", 17)],
        )  # fmt: skip
        trips = helper.make_tensor("trips", TensorProto.INT64, [], [3])
        nodes = [
            helper.make_node("Loop", ["trips", "", "x"], [f"{made}_last"], body=body),
            helper.make_node("Twice", [f"{made}_last"], ["y"], domain="own"),
        ]
        return model_of(nodes, initializers=[trips], functions=[function])

    assert diff_of(looping("i", "c", "s", "t"), looping("1", "2", "3", "4"), tmp_path) == []
