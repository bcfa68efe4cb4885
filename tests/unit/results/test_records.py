from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from toolbox.any_report import reports
from toolbox.records import cell, drift, report, setting

from onnx_ci import Cell, CellResult, Revision, RunReport, Similarity, Status
from onnx_ci.results.files import as_text
from onnx_ci.results.rules import RULES, finding


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "opset9-cpu"),
        ({"device": "cuda:1"}, "opset9-cuda:1"),
        ({"exporter": "dynamo"}, "opset9-cpu-dynamo"),
        ({"opset": 18, "exporter": "dynamo"}, "opset18-cpu"),
        ({"opset": 18}, "opset18-cpu-torchscript"),
        ({"graph_pass": "onnxslim"}, "opset9-cpu+onnxslim"),
        ({"device": "cuda:1", "exporter": "dynamo", "graph_pass": "int8-static"}, "opset9-cuda:1-dynamo+int8-static"),
    ],
)
def test_an_id_names_its_cell_and_gives_it_back(changes, label):
    assert cell(**changes).id == f"a/b.py::net::{label}"
    assert Cell.from_id(cell(**changes).id) == cell(**changes)


@pytest.mark.parametrize(
    "id",
    [
        "tests/test_a.py::test_b",
        "a.py::net::opsetX-cpu",
        "a.py::net::opset9",
        "net",
        "a.py::net::opset9-cpu+",
        "a.py::net::opset9-cpu+[x]",
        "",
        "a.py::n\nt::opset9-cpu",
        "a\x1b::n::opset9-cpu",
    ],
)
def test_what_is_no_cell_id_gives_no_cell(id):
    assert Cell.from_id(id) is None


def test_a_result_of_a_pass_survives_json():
    alike = Similarity(cosine=0.5, sqnr=math.inf, agreement=None, ties=3)
    result = CellResult(
        cell=cell(graph_pass="float16"),
        status=Status.FAILED,
        findings=(finding("numeric-drift", "off", introduced_by="export"),),
        outputs=(drift(similarity=alike),),
    )
    assert CellResult.from_json(json.loads(json.dumps(result.as_json(), allow_nan=False))) == result
    assert alike.in_words == "cosine 0.50000, SQNR inf dB, 3 ties left out"


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


@given(any_report=reports())
def test_a_report_survives_json(any_report):
    text = json.dumps(any_report.as_json(), allow_nan=False)
    again = RunReport.from_json(json.loads(text))
    assert json.dumps(again.as_json(), allow_nan=False) == text


def test_the_time_of_a_report_survives_json():
    # Rounded to 3.45 s on the way, 3.4496 s would be shown as 3.5 s afterwards and as 3.4 s before.
    assert RunReport.from_json(report(seconds=3.4496).as_json()).seconds == 3.4496


@given(any_report=reports())
def test_a_report_that_is_written_cell_by_cell_is_the_document_that_it_is_as_a_whole(any_report):
    whole = json.dumps(any_report.as_json(), indent=1, ensure_ascii=False, allow_nan=False)
    assert as_text(any_report) == whole + "\n"


@pytest.mark.parametrize(("device", "gpu"), [("cpu", None), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")])
def test_a_gpu_has_one_name(device, gpu):
    assert cell(device=device).gpu == gpu


def test_what_a_later_version_adds_to_a_report_is_passed_over():
    written = report(
        CellResult(cell=cell(), status=Status.FAILED, findings=(finding("crash", "x"),), outputs=(drift(),))
    ).as_json()
    one = written["cells"][0]
    for place in (written, one, one["findings"][0], one["outputs"][0], written["summary"]):
        place["later"] = 3
    read = RunReport.from_json(written).as_json()
    assert "later" not in json.dumps(read)
    assert read["cells"][0]["findings"][0]["message"] == "x"


def inside(data, path):
    """What holds the end of a path through JSON data, and the end."""
    *parents, last = path.split(".")
    for key in parents:
        data = data[int(key) if isinstance(data, list) else key]
    return data, last


DEEP = json.loads("[" * 30 + "]" * 30)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("schema_version", 2, "it has schema_version 2, but this onnx-ci reads 1"),
        ("schema_version", None, "it has schema_version None"),
        ("cells", {}, "cells is {} and should be list"),
        ("cells.0.status", "fine", "cells[0].status is 'fine' and should be Status"),
        ("cells.0.opset", 10, "cells[0] has the id 'a/b.py::net::opset9-cpu', which does not match its cell"),
        ("cells.0.opset", True, "cells[0].opset is True and should be int"),
        ("cells.0.id", "x", "cells[0] has the id 'x'"),
        ("cells.0.recipe", "n\nt", "does not match its cell"),
        ("cells.0.findings.0.message", None, "cells[0].findings[0].message is None and should be str"),
        ("cells.0.findings.0.details.x", DEEP, "cells[0].findings[0].details['x'] is nested too deeply"),
        ("cells.0.outputs.0.drift", "much", "cells[0].outputs[0].drift is 'much' and should be float"),
        ("cells.0.outputs.0.drift", 10**400, "cells[0].outputs[0].drift is 1000"),
        ("cells.0.outputs.0.index", [1, 2.5], "cells[0].outputs[0].index[1] is 2.5 and should be int"),
        ("cells.0.timings.run", -1, "cells[0].timings are not times in seconds"),
        ("cells.0.timings.run", "inf", "cells[0].timings are not times in seconds"),
        ("cells.1", "the first one", "it has two results for a/b.py::net::opset9-cpu"),
        ("environment.torch", 2, "environment['torch'] is 2 and should be str"),
        ("settings.max-drift", {"value": "3"}, "settings['max-drift'] has no 'origin'"),
        ("settings.max-drift", {"origin": {"source": "default"}}, "settings['max-drift'] has no 'value'"),
        ("settings.max-drift.origin", {"source": "default"}, "settings['max-drift'].origin has no 'given_as'"),
        (
            "settings.max-drift.origin.source",
            "magic",
            "settings['max-drift'].origin.source is 'magic' and should be SettingSource",
        ),
        ("settings.max-drift", 3, "settings['max-drift'] has no 'value'"),
        ("not_run", [3], "not_run[0] is 3 and should be str"),
        ("summary", [], "summary has no 'seconds'"),
        ("summary.seconds", "nan", "it took nan s, which is not possible"),
        ("summary.failed", 2, "its summary does not match its cells"),
        ("cells.0.status", "error", "its summary does not match its cells"),
        ("cells.0.status", "passed", "a/b.py::net::opset9-cpu passed, although it breaks crash"),
        ("revision", 3, "revision has no 'commit'"),
        ("revision.commit", "HEAD", "revision.commit is 'HEAD' and should be a full hash"),
        ("revision.branch", 3, "revision.branch is 3 and should be str"),
    ],
)
def test_what_is_no_report_is_refused_with_the_place(path, value, said):
    result = CellResult(
        cell=cell(), status=Status.FAILED, findings=(finding("crash", "x"),), outputs=(drift(),), timings={"run": 1.0}
    )
    data = RunReport(
        environment={"torch": "2"}, settings={"max-drift": setting("3", "--max-drift")}, cells=(result,), not_run=("x",),
        revision=Revision(commit="a1b2c3d4" * 5, branch="main", is_modified=False),
    ).as_json()  # fmt: skip
    place, last = inside(data, path)
    if path == "cells.1":
        place.append(place[0])
    else:
        place[last] = value
    with pytest.raises(ValueError, match=r".") as caught:
        RunReport.from_json(data)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "path", ["cells", "summary", "exclusions", "cells.0.id", "cells.0.outputs.0.limit", "cells.0.findings.0.rule"]
)
def test_a_report_without_a_field_is_refused(path):
    result = CellResult(cell=cell(), status=Status.FAILED, findings=(finding("crash", "x"),), outputs=(drift(),))
    data = report(result).as_json()
    place, last = inside(data, path)
    del place[last]
    with pytest.raises(ValueError, match=f"has no '{last}'"):
        RunReport.from_json(data)


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
def test_drift_is_shown_as_a_share_of_its_limit(value, limit, share):
    assert drift(drift=value, limit=limit).share_of_limit == share


def test_every_rule_says_what_it_means_and_what_to_do():
    for rule in RULES.values():
        assert rule.meaning.endswith(".")
        assert rule.remedy.endswith(".")
        assert rule.id == rule.id.lower()
