"""The recipe library itself: the main job, trained weights, and torchvision beside a torch it was not built for."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch

import onnx_ci
from onnx_ci import Cell, Status
from onnx_ci.config.settings import load_settings
from onnx_ci.matrix.plan import task_of
from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.recipes.models.alexnet import alexnet
from onnx_ci.recipes.models.lstm import lstm
from onnx_ci.recipes.models.resnet import resnet18, resnet50
from onnx_ci.recipes.models.torchvision_models import build, import_torchvision

ROOT = Path(__file__).parents[3]
MAIN_JOB = ["recipes/models/alexnet.py", "recipes/models/lstm.py", "recipes/models/resnet.py"]


def prepared(recipe, weights=None):
    cell = Cell(source="onnx_recipes.py", recipe=recipe.name, exporter="torchscript", opset=13, device="cpu")
    return prepare(dataclasses.replace(task_of(cell, recipe, load_settings(ROOT)), weights=weights))


@pytest.mark.slow
def test_the_main_job_passes_all_36_cells_with_small_drift(tmp_path):
    report = tmp_path / "r.json"
    done = subprocess.run(
        # The script, not "python -m pytest": that would put the checkout's onnx_ci before the installed one.
        [str(Path(sys.executable).with_name("pytest")), "-p", "no:cacheprovider", "--onnx-export",
         *MAIN_JOB, "--onnx-opsets=9-17", "--onnx-baseline=check", f"--onnx-report={report}"],
        cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert f"pytest --onnx-export {' '.join(MAIN_JOB)} " in (ROOT / "tox.ini").read_text(encoding="utf-8")
    cells = json.loads(report.read_text())["cells"]
    assert len(cells) == 36
    assert {cell["status"] for cell in cells} == {"passed"}
    assert [each for cell in cells for each in cell["findings"] if each["rule"].startswith("baseline-")] == []
    assert {cell["recipe"] for cell in cells} == {"alexnet", "lstm", "resnet18", "resnet50"}
    outputs = [output for cell in cells for output in cell["outputs"]]
    # One output of AlexNet, which is large, on three inputs, of the ResNets on four; three outputs of the LSTM on twelve.
    assert len(outputs) == 9 * (3 + 4 + 4 + 3 * 12)
    drifts = [output["drift"] for output in outputs if output["is_decisive"]]
    assert max(drifts) < 8
    assert min(drifts) > 0


def test_the_lstm_has_the_faqs_signature_at_every_opset(tmp_path):
    report = onnx_ci.run([lstm], opsets="9-17", artifacts=tmp_path)
    assert [each.status for each in report.cells] == [Status.PASSED] * 9
    for result in report.cells:
        graph = onnx.load(result.artifact).graph
        dims = {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.input, *graph.output)
        }
        assert dims == {
            "input": ["sequence", 3, 10], "h0": [8, 3, 20], "c0": [8, 3, 20],
            "output": ["sequence", 3, 40], "hn": [8, 3, 20], "cn": [8, 3, 20],
        }  # fmt: skip


@pytest.mark.slow
def test_an_lstm_with_a_perturbed_weight_fails(tmp_path):
    artifact = onnx_ci.export(lstm, opset=13, path=tmp_path / "lstm.onnx")
    model = onnx.load(artifact.path)
    weight = next(each for each in model.graph.initializer if len(each.dims) == 3)
    values = onnx.numpy_helper.to_array(weight).copy()
    values.flat[abs(values).argmax()] *= 1.01
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    result = onnx_ci.verify(model.SerializeToString(), lstm, opset=13)
    assert (result.status, {each.rule for each in result.findings}) == (Status.FAILED, {"numeric-drift", "weight-mismatch"})


@pytest.mark.slow
def test_recipes_come_seeded_and_offline():
    for recipe in (lstm, resnet18):
        one, other = (prepared(recipe).model.fresh().model.state_dict() for _ in range(2))
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [lstm, resnet18])
def test_weights_from_a_file_are_the_weights_that_are_exported(recipe, tmp_path):
    torch.manual_seed(99)
    trained = (
        build("resnet18", None) if recipe is resnet18 else torch.nn.LSTM(10, 20, num_layers=4, bidirectional=True)
    ).state_dict()
    torch.save(trained, tmp_path / "w.pt")
    built = prepared(recipe, weights=str(tmp_path / "w.pt")).model.fresh().model.state_dict()
    assert all(torch.equal(built[name], trained[name]) for name in trained)
    report = onnx_ci.run([recipe], opsets="13", weights=f"{recipe.name}={tmp_path / 'w.pt'}")
    assert report.cells[0].status is Status.PASSED


@pytest.mark.parametrize("recipe", [alexnet, resnet18, resnet50])
def test_pretrained_weights_are_the_ones_that_torchvision_publishes(recipe, monkeypatch):
    asked = []

    def no_download(url, *args, **kwargs):
        asked.append(url)
        raise OSError("no network in tests")

    api = sys.modules[import_torchvision().models._api.__name__]
    monkeypatch.setattr(api, "load_state_dict_from_url", no_download)
    with pytest.raises(PrepareError, match="OSError: no network in tests"):
        prepared(recipe, weights="DEFAULT")
    assert len(asked) == 1
    assert f"/{recipe.name}-" in asked[0]


@pytest.mark.parametrize("weights", ["nowhere.pt", "IMAGENET"])
def test_weights_that_do_not_exist_are_the_recipes_error(weights):
    for recipe in (lstm, resnet18):
        with pytest.raises(PrepareError) as caught:
            prepared(recipe, weights=weights)
        assert caught.value.finding.rule == "recipe-error"


def test_a_missing_torchvision_is_told(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(PrepareError) as caught:
        prepared(resnet18)
    assert "needs torchvision, which is not installed" in caught.value.finding.message
