from __future__ import annotations

import json
import math

import pytest

from onnx_ci import Cell, CellResult, OutputDrift, Problem, RunReport, Status
from onnx_ci.rules import RULES, finding


def cell(**changes):
    return Cell(**{"source": "a/b.py", "recipe": "net", "exporter": "torchscript", "opset": 9, "device": "cpu", **changes})


def drift(**changes):
    values = {
        "name": "y", "probe": "example", "dtype": "float32", "shape": (2, 3), "drift": 1.5, "limit": 32.0, "error": 1.5e-7,
        "noise": 1e-7, "max_abs": 1.0, "max_rel": 1e-6, "index": (1, 2), "reference": "float64",
    }  # fmt: skip
    return OutputDrift(**{**values, **changes})


def report(*cells, **changes):
    return RunReport(environment={}, settings={}, cells=cells, **changes)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "opset9-cpu"),
        ({"device": "cuda:1"}, "opset9-cuda:1"),
        ({"exporter": "dynamo"}, "opset9-cpu-dynamo"),
        ({"opset": 18, "exporter": "dynamo"}, "opset18-cpu"),
        ({"opset": 18}, "opset18-cpu-torchscript"),
    ],
)
def test_an_id_names_its_cell_and_gives_it_back(changes, label):
    assert cell(**changes).id == f"a/b.py::net::{label}"
    assert Cell.from_id(cell(**changes).id) == cell(**changes)


@pytest.mark.parametrize("id", ["tests/test_a.py::test_b", "a.py::net::opsetX-cpu", "a.py::net::opset9", "net", ""])
def test_what_is_no_cell_id_gives_no_cell(id):
    assert Cell.from_id(id) is None


def test_a_result_survives_json_with_its_infinities():
    result = CellResult(
        cell=cell(),
        status=Status.FAILED,
        findings=(finding("numeric-drift", "off", drift=math.inf),),
        outputs=(drift(drift=math.inf, error=math.inf), drift(max_rel=math.nan, index=None)),
        timings={"export": 1.0},
    )
    text = json.dumps(result.as_json(), allow_nan=False)
    again = CellResult.from_json(json.loads(text))
    assert json.dumps(again.as_json(), allow_nan=False) == text
    assert again.cell == result.cell
    assert again.outputs[0] == result.outputs[0]
    assert math.isnan(again.outputs[1].max_rel)


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ((), "nothing-ran"),
        ((Status.SKIPPED,), "nothing-ran"),
        ((Status.PASSED, Status.SKIPPED), "passed"),
        ((Status.PASSED, Status.XFAILED), "passed"),
        ((Status.PASSED, Status.FAILED), "failed"),
        ((Status.PASSED, Status.ERROR), "failed"),
        ((Status.PASSED, Status.XPASSED), "failed"),
    ],
)
def test_zero_judged_cells_are_never_a_success(statuses, verdict):
    assert report(*(CellResult(cell=cell(), status=status) for status in statuses)).verdict == verdict


def test_a_problem_and_a_cell_that_did_not_run_fail_the_run():
    passed = CellResult(cell=cell(), status=Status.PASSED)
    assert report(passed).verdict == "passed"
    assert report(passed, problems=(Problem(source="x.py", message="broken"),)).verdict == "failed"
    assert report(passed, not_run=("x",)).verdict == "failed"


def test_the_worst_output_is_the_one_nearest_to_its_limit():
    outputs = (drift(name="a", drift=5.0, limit=100.0), drift(name="b", drift=2.0, limit=4.0))
    assert CellResult(cell=cell(), status=Status.PASSED, outputs=outputs).worst.name == "b"
    exact = drift(name="c", drift=1.0, limit=0.0)
    assert CellResult(cell=cell(), status=Status.FAILED, outputs=(*outputs, exact)).worst.name == "c"
    equal = drift(name="d", drift=0.0, limit=0.0)
    assert CellResult(cell=cell(), status=Status.PASSED, outputs=(equal, *outputs)).worst.name == "b"


@pytest.mark.parametrize(
    ("value", "limit", "share"),
    [(8.0, 16.0, 0.5), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (math.nan, 16.0, math.inf), (math.inf, 16.0, math.inf)],
)
def test_drift_is_told_as_a_share_of_its_limit(value, limit, share):
    assert drift(drift=value, limit=limit).share_of_limit == share


def test_every_rule_says_what_it_means_and_what_to_do():
    for rule in RULES.values():
        assert rule.meaning.endswith(".")
        assert rule.remedy.endswith(".")
        assert rule.id == rule.id.lower()
