"""The nodes of a file, each run alone, on values that the file may never have had."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx import helper

from onnx_ci.pipeline.locate.single_nodes import NodeError, NodeRunner


def runner(operator, path):
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1]) for name in "abc"]
    graph = helper.make_graph([helper.make_node(operator, ["a", "b"], ["c"])], "net", values[:2], values[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return NodeRunner(path)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize(("dividend", "divisor"), [(7, 0), (-(2**63), -1)])
def test_a_division_that_would_end_the_process_is_not_run(operator, dividend, divisor, tmp_path):
    nodes = runner(operator, tmp_path / "net.onnx")
    with pytest.raises(NodeError, match=f"{operator} 'c' is undefined on its inputs"):
        nodes.run(nodes.nodes[0], {"a": torch.tensor([dividend]), "b": torch.tensor([divisor])})


@pytest.mark.parametrize(("operator", "result"), [("Div", -(2**62)), ("Mod", 0)])
def test_any_other_division_is_run(operator, result, tmp_path):
    nodes = runner(operator, tmp_path / "net.onnx")
    (output,) = nodes.run(nodes.nodes[0], {"a": torch.tensor([-(2**63)]), "b": torch.tensor([2])})
    assert output.tolist() == [result]
