"""What each runtime does with each file, from the findings and the numbers of a run."""

from __future__ import annotations

import dataclasses
import json

import onnx
import pytest
from onnx import helper
from toolbox.records import cell, drift

from onnx_ci import Status
from onnx_ci.results.records import CellResult, Severity
from onnx_ci.results.rules import finding
from onnx_ci.tools.runtimes.matrix import Verdict, matrix_of, outcome_of

CELL = cell(opset=18, exporter="dynamo")
BOTH = {"onnxruntime": "1.31.1", "openvino": "2026.4"}


def result(*findings, status=Status.FAILED, runtimes=tuple(BOTH)):
    outputs = tuple(drift(drift=0.5, runtime=name) for name in runtimes)
    return CellResult(cell=CELL, status=status, findings=findings, outputs=outputs)


def fault(rule, runtime="openvino", breaks="", **more):
    details = {"runtime": runtime, "right": ["onnxruntime"], "breaks": breaks}
    return finding(rule, f"{runtime} fails", details=details, **more)


WRONG = fault("runtime-disagreement", breaks="numeric-drift", drift=5e6)


@pytest.mark.parametrize(
    ("judged", "verdict", "word"),
    [
        (result(status=Status.PASSED), Verdict.RIGHT, "right"),
        (result(WRONG), Verdict.WRONG, "wrong 5e+06"),
        (result(fault("load-error")), Verdict.REFUSED, "refused"),
        (result(fault("runtime-disagreement", breaks="run-error")), Verdict.REFUSED, "refused"),
        (result(fault("runtime-disagreement", "other", "numeric-drift")), Verdict.RIGHT, "right"),
        (result(finding("baked-value", "the file is wrong", drift=9.0)), Verdict.NOT_JUDGED, "not judged"),
        (result(status=Status.ERROR, runtimes=()), Verdict.NOT_JUDGED, "not judged"),
        (result(status=Status.PASSED, runtimes=("onnxruntime",)), Verdict.NOT_JUDGED, "not judged"),
    ],
)
def test_what_a_runtime_does_with_a_file(judged, verdict, word):
    outcome = outcome_of(judged, "openvino")
    assert (outcome.verdict, outcome.word) == (verdict, word)


def test_a_runtime_that_nobody_deploys_can_be_wrong_too():
    note = dataclasses.replace(fault("runtime-disagreement", "reference", drift=7.0), severity=Severity.NOTE)
    assert outcome_of(result(note, runtimes=("onnxruntime", "reference")), "reference").word == "wrong 7"


def test_the_matrix_names_each_reason_once():
    other = dataclasses.replace(result(WRONG), cell=dataclasses.replace(CELL, opset=20))
    matrix = matrix_of([result(WRONG), other], BOTH)
    assert [line.split() for line in matrix.lines()] == [
        ["onnxruntime", "1.31.1", "openvino", "2026.4"],
        ["net::opset18-cpu", "right", "wrong", "5e+06"],
        ["net::opset20-cpu", "right", "wrong", "5e+06"],
        ["(a", "number", "is", "how", "many", "times", "PyTorch's", "own", "rounding", "the", "outputs", "are", "off)"],
        ["wrong", "in", "openvino:", "net", "at", "opsets", "18,20", "on", "cpu:", "it", "fails"],
    ]
    assert matrix.has(Verdict.WRONG) and not matrix.has(Verdict.REFUSED)


def test_the_matrix_as_json_and_as_a_page():
    matrix = matrix_of([result(dataclasses.replace(WRONG, message="openvino fails <b>"))], BOTH)
    data = json.loads(json.dumps(matrix.as_json()))
    assert data["runtimes"] == BOTH
    (of_cell,) = data["cells"]
    assert of_cell["id"] == CELL.id
    assert of_cell["runtimes"]["onnxruntime"]["verdict"] == "right"
    assert of_cell["runtimes"]["openvino"] | {"reason": ""} == {
        "verdict": "wrong", "drift": 5e6, "rule": "runtime-disagreement", "reason": "", "nodes": [],
    }  # fmt: skip
    page = matrix.page()
    assert "<strong>wrong 5e+06</strong>" in page and "it fails &lt;b&gt;" in page and "<b>" not in page


@pytest.mark.parametrize(
    ("ir_version", "opset", "verdict", "reason"),
    [
        (8, 13, Verdict.NOT_JUDGED, ""),
        (10, 18, Verdict.REFUSED, "IR version 10, and it loads at most 9"),
        (9, 22, Verdict.REFUSED, "opset 22, and it loads at most 20"),
    ],
)
def test_what_a_file_alone_tells_of_an_old_version(tmp_path, ir_version, opset, verdict, reason):
    graph = helper.make_graph([], "net", [], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    onnx.save(model, tmp_path / "net.onnx")
    runtimes = {"onnxruntime": "1.31.1", "onnxruntime@1.17": "", "openvino": "2026.4"}
    judged = dataclasses.replace(result(status=Status.PASSED), artifact=str(tmp_path / "net.onnx"))
    outcomes = matrix_of([judged], runtimes).with_what_is_known([judged]).outcomes[CELL]
    assert (outcomes["onnxruntime@1.17"].verdict, outcomes["onnxruntime@1.17"].reason) == (verdict, reason)
    assert outcomes["openvino"].verdict is Verdict.RIGHT
