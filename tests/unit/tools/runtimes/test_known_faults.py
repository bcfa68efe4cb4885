"""Which nodes of a file releases are known to compute wrong: exactly those of a row, and no similar ones."""

from __future__ import annotations

import dataclasses
import math

import onnx
import pytest
from onnx import TensorProto, helper
from packaging.version import Version

from onnx_ci.results.rules import finding
from onnx_ci.tools.runtimes.fault_survey import as_toml, rows
from onnx_ci.tools.runtimes.known_faults import KnownFault, known_faults, matches, matches_in, with_remedies

POOL = KnownFault(
    package="onnxruntime",
    operators=("AveragePool",),
    attributes=({
        "auto_pad": "NOTSET", "ceil_mode": 1, "count_include_pad": 1, "kernel_shape": 3, "pads": 1, "strides": 2,
    },),
    opsets=(11, 18),
    types=("float32",),
    ranks=(4,),
    inputs=1,
    links=(),
    others=(),
    remainders=(0,),
    first="1.15.0",
    last="1.28.0",
    right="1.29.0",
    off="off by up to 1 of the largest value",
    evidence="9 cases",
)  # fmt: skip
CHAIN = dataclasses.replace(
    POOL,
    operators=("Transpose", "MatMul", "Add"),
    attributes=({"perm": [0, 1]}, {}, {}),
    opsets=(13, 20),
    ranks=(2,),
    links=([0, 1], [0]),
    others=([2], [1]),
    remainders=(),
    last="1.29.0",
)


WEIGHTS = {"w": [4, 4], "b": [4], "one": [1]}


def model(nodes, shape, opset=17, kind=TensorProto.FLOAT, outputs=("y",)):
    value = helper.make_tensor_value_info("x", kind, shape)
    ends = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, sizes, [0.0] * math.prod(sizes)) for name, sizes in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "net", [value], ends, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def pool(shape=(1, 3, 8, 8), opset=17, kind=TensorProto.FLOAT, operator="AveragePool", **own):
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}
    return model([helper.make_node(operator, ["x"], ["y"], name="pool", **(window | own))], shape, opset, kind)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 3, 8, 7), ("n", "c", "h", "w")])
@pytest.mark.parametrize("opset", [11, 18])
def test_a_node_with_all_that_a_row_names_matches(shape, opset):
    (match,) = matches_in(pool(shape, opset), [POOL])
    assert str(match) == (
        "onnxruntime 1.15.0 to 1.28.0 compute AveragePool 'pool' wrong at some sizes "
        "(off by up to 1 of the largest value); 1.29.0 is right"
    )


@pytest.mark.parametrize(
    "other",
    [
        pool((1, 3, 7, 7)),  # the windows end where the input does
        pool((1, 3, 8)),
        pool(opset=19),
        pool(opset=10),
        pool(kind=TensorProto.DOUBLE),
        pool(ceil_mode=0),
        pool(count_include_pad=0),
        pool(kernel_shape=[3, 2]),
        pool(strides=[2, 1]),
        pool(pads=[0, 0, 1, 1]),
        pool(None),
        model([helper.make_node("GlobalAveragePool", ["x"], ["y"])], (1, 3, 8, 8)),
    ],
)
def test_anything_else_does_not_match(other):
    assert matches_in(other, [POOL]) == []


def chain(*more, perm=(0, 1), outputs=("y",), product=("t", "w"), bias="b"):
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=perm),
        helper.make_node("MatMul", product, ["m"]),
        helper.make_node("Add", ["m", bias], ["y"]),
        *more,
    ]
    return model(nodes, (4, 4), outputs=outputs)


def test_nodes_that_follow_each_other_match_together():
    (match,) = matches_in(chain(), [CHAIN])
    assert match.nodes == ("Transpose 't'", "MatMul 'm'", "Add 'y'")
    assert len(matches_in(chain(product=("w", "t")), [CHAIN])) == 1
    assert matches_in(chain(bias="w"), [CHAIN]) == []  # is no bias
    assert matches_in(chain(bias="one"), [CHAIN]) == []  # ONNX Runtime makes no Gemm of it
    assert matches_in(chain(), [dataclasses.replace(CHAIN, links=([1], [0]))]) == []
    assert matches_in(chain(perm=(1, 0)), [CHAIN]) == []
    assert matches_in(chain(helper.make_node("Relu", ["t"], ["z"]), outputs=("y", "z")), [CHAIN]) == []  # t is used twice
    assert matches_in(chain(outputs=("y", "m")), [CHAIN]) == []


@pytest.mark.parametrize(("version", "holds"), [("1.14.1", False), ("1.15.0", True), ("1.28.0", True), ("1.29.0", False)])
def test_a_fault_is_that_of_its_releases(version, holds):
    assert POOL.holds_for(version) is holds


def test_every_row_in_the_table_is_whole():
    table = known_faults()
    assert len(table) >= 20
    assert all(Version(row.first) <= Version(row.last) < Version(row.right) for row in table)
    assert all(len(row.operators) == len(row.attributes) and row.words for row in table)


def test_the_table_knows_that_average_pooling_was_wrong(tmp_path):
    onnx.save(pool(("n", 3, "h", "w")), tmp_path / "net.onnx")
    assert {match.fault.last for match in matches(tmp_path / "net.onnx", {"onnxruntime": "1.28.0"})} == {"1.28.0"}
    assert matches(tmp_path / "net.onnx", {"onnxruntime": "1.29.0"}) == []
    of_version = {"runtime": "onnxruntime@1.28", "right": ["onnxruntime"]}
    error = finding("runtime-disagreement", "it is wrong", output="y", details=of_version)
    other = dataclasses.replace(error, details={"runtime": "openvino", "right": ["onnxruntime"]})
    (remedied, same) = with_remedies([error, other], tmp_path / "net.onnx")
    assert remedied.remedy.startswith("This fault is known: onnxruntime 1.15.0 to 1.28.0 compute AveragePool 'pool' wrong")
    assert remedied.remedy.endswith(f"1.29.0 is right. {error.remedy}")
    assert same == other


def test_a_file_that_is_none_has_no_known_faults(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"no file of ONNX")
    assert matches(tmp_path / "net.onnx") == []


# --- how rows are made of what was measured


@pytest.fixture
def cases(tmp_path):
    """Files of pools: number 0 and 1 with padding at two sizes, 2 without."""
    for number, each in enumerate([pool((1, 3, 8, 8)), pool((1, 3, 7, 7)), pool(pads=[0, 0, 0, 0])]):
        onnx.save(each, tmp_path / f"{number:06}.onnx")
    return tmp_path


RIGHT = {0: 0.0, 1: 0.0, 2: 0.0}
OFF = {0: 0.5, 1: 0.0, 2: 0.0}


def test_what_is_wrong_in_releases_that_follow_each_other_is_a_row(cases):
    (row,) = rows(cases, {"1.9.0": OFF, "1.10.0": OFF, "1.11.0": RIGHT})
    assert (row["first"], row["last"], row["right"]) == ("1.9.0", "1.10.0", "1.11.0")
    assert (row["opsets"], row["remainders"], row["ranks"]) == ([11, 18], [0], [4])
    assert row["attributes"][0]["pads"] == 1
    text = as_toml([row], [], ["1.9.0"], "1.11.0")
    assert "evidence = " in text and "releases = " not in text


@pytest.mark.parametrize(
    "outcomes",
    [
        {"1.9.0": OFF, "1.10.0": RIGHT, "1.11.0": OFF, "1.12.0": RIGHT},  # by chance
        {"1.9.0": RIGHT, "1.10.0": OFF},  # no later one is right
        {"1.9.0": RIGHT, "1.10.0": RIGHT},
        {"1.9.0": {}, "1.10.0": RIGHT},  # refused
        {"1.9.0": {**RIGHT, 0: 0.005}, "1.10.0": RIGHT},  # rounding
    ],
)
def test_anything_else_is_none(cases, outcomes):
    assert [*rows(cases, outcomes)] == []


def test_a_kind_of_which_some_cases_are_right_is_no_row(cases):
    onnx.save(pool((1, 3, 10, 10)), cases / "000003.onnx")
    outcomes = {"1.9.0": {**OFF, 3: 0.0}, "1.10.0": {**RIGHT, 3: 0.0}}
    assert [*rows(cases, outcomes)] == []
