"""Each engine that is installed computes what the model computes, and is named where it does not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import onnx_ci
from onnx_ci.plugins import RUNTIMES

ENGINES = ["chromium", "onnxruntime-web", "opencv", "openvino", "tract"]
AXES = {"x": {0: "batch"}, "y": {0: "batch"}}


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes=AXES)
def net():
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    return torch.nn.Sequential(*layers), (torch.randn(2, 3, 8, 8),)


@pytest.fixture(params=ENGINES)
def engine(request):
    if reason := RUNTIMES.load(request.param).missing_device("cpu"):
        pytest.skip(reason)
    return request.param


@pytest.mark.parametrize("opset", [13, 17, 18])  # dynamo writes the weights of the last one into another file
def test_an_engine_computes_what_the_model_computes(engine, opset):
    report = onnx_ci.run([net], opsets=opset, runtimes=f"onnxruntime,{engine}", isolation="none")
    [cell] = report.cells
    assert (cell.status, [each.message for each in cell.findings if each.severity != "note"]) == (onnx_ci.Status.PASSED, [])
    inputs = {name: {each.probe for each in cell.outputs if each.runtime == name} for name in ("onnxruntime", engine)}
    assert inputs["onnxruntime"] == inputs[engine]
    assert RUNTIMES.load(engine).versions.items() <= report.environment.items()


def test_an_operator_that_an_engine_lacks_is_its_error(engine, tmp_path):
    exported = onnx_ci.export(net, opset=13, path=tmp_path / "net.onnx")
    model = onnx.load(exported.path)
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "NoSuchOperator"
    result = onnx_ci.verify(model.SerializeToString(), net, opset=13, runtimes=engine, isolation="none")
    assert {each.rule for each in result.findings if each.severity == "error"} & {"load-error", "run-error"}
    assert any(each.message.startswith(f"{engine} ") for each in result.findings)


def test_the_packages_of_node_are_looked_for_here_above_and_where_a_variable_says(tmp_path, monkeypatch):
    runtime = RUNTIMES.load("onnxruntime-web")
    here, elsewhere = tmp_path / "a/b", tmp_path / "c"
    for folder, version in ((tmp_path / "a/node_modules", "1.2.3"), (elsewhere, "4.5.6")):
        (folder / "onnxruntime-web").mkdir(parents=True)
        (folder / "onnxruntime-web/package.json").write_text(f'{{"version": "{version}"}}')
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("NODE_PATH", os.pathsep.join(["", str(elsewhere)]))
    assert runtime.versions == {"onnxruntime-web": "1.2.3"}
    monkeypatch.chdir(elsewhere)
    assert runtime.versions == {"onnxruntime-web": "4.5.6"}
    monkeypatch.delenv("NODE_PATH")
    assert runtime.versions == {}


def test_a_file_of_two_runs_does_not_depend_on_the_first(engine, tmp_path):
    path = Path(onnx_ci.export(net, opset=13, path=tmp_path / "net.onnx").path)
    session = RUNTIMES.load(engine).load(path, "cpu")
    first, second = (torch.from_numpy(np.full((rows, 3, 8, 8), 0.5, np.float32)) for rows in (3, 1))
    (y,) = session.run({"x": first})
    (z,) = session.run({"x": second})
    assert torch.allclose(y[:1], z, atol=1e-5)


def test_an_input_keeps_its_name_beside_that_of_a_node_without_effect(engine, tmp_path):
    """OpenVINO gives the input the name of what the Cast makes, too."""
    path = tmp_path / "cast.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { a = Cast <to = 1> (x) y = Add (a, a) }'
    onnx.save(onnx.parser.parse_model(text), path)
    (y,) = RUNTIMES.load(engine).load(path, "cpu").run({"x": torch.tensor([1.0, 2.0])})
    assert y.tolist() == [2, 4]


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "sequence"}, "y": {0: "sequence"}})
def unrolled():
    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 3)

        def forward(self, x):
            return self.lstm(x)[0]

    return Last(), (torch.randn(5, 3, 3),)


def test_what_openvino_cannot_run_costs_it_no_later_run():
    """Of an LSTM that dynamo unrolls, another length is an error; a compiled model that has raised one raises it always."""
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    [cell] = onnx_ci.run([unrolled], opsets=20, runtimes="onnxruntime,openvino", isolation="none", locate=False).cells
    assert {each.rule for each in cell.findings if each.severity == "error"} == {"static-axis", "baked-shape"}
    inputs = {name: {each.probe for each in cell.outputs if each.runtime == name} for name in ("onnxruntime", "openvino")}
    assert inputs["onnxruntime"] == inputs["openvino"]
