"""A report as JUnit's XML: the structure that Jenkins' schema demands, one test case for each cell, whatever is in it."""

from __future__ import annotations

import dataclasses

import pytest
from toolbox.junit import parsed, shown
from toolbox.records import failed, passed, report, run_of, skipped, warned

from onnx_ci import CellResult, Problem, Status
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.session import Session
from onnx_ci.errors import UnwrittenError
from onnx_ci.results.records import SkipCause
from onnx_ci.results.rules import finding

PROBLEM = Problem(source="a/c.py", message="cannot be imported", file="a/c.py", line=3)


def test_each_cell_is_a_test_case_with_its_outcome():
    known = CellResult(cell=failed(opset=11).cell, status=Status.XFAILED, reason="rounds twice", findings=failed().findings)
    unusable = CellResult(cell=failed(opset=12).cell, status=Status.ERROR, findings=(finding("recipe-error", "raises"),))
    closed = CellResult(cell=failed(opset=13).cell, status=Status.XPASSED, findings=(finding("unexpected-pass", "it passes"),))
    suite = parsed(report(passed(), failed(opset=10), known, unusable, closed, skipped(device="cuda"), warned(opset=14)))
    assert [shown(case) for case in suite.findall("testcase")] == [
        ("a.b.net", "opset9-cpu"),
        ("a.b.net", "opset10-cpu", ("failure", "numeric-drift", "numeric-drift: off by 3")),
        ("a.b.net", "opset11-cpu", ("skipped", "xfailed", "rounds twice")),
        ("a.b.net", "opset12-cpu", ("error", "recipe-error", "recipe-error: raises")),
        ("a.b.net", "opset13-cpu", ("failure", "unexpected-pass", "unexpected-pass: it passes")),
        ("a.b.net", "opset9-cuda", ("skipped", "skipped", "no cuda: no driver")),
        ("a.b.net", "opset14-cpu"),
    ]
    text = suite.find("testcase/failure").text
    assert "numeric-drift: off by 3\n    remedy: " in text
    assert text.endswith("repeat with: repeat a/b.py::net::opset10-cpu")
    assert "edge-mismatch (warning): off by 2" in suite.findall("testcase")[-1].find("system-out").text


def test_what_could_not_run_is_an_error():
    stopped = dataclasses.replace(report(passed()), problems=(PROBLEM,), not_run=("a/b.py::net::opset10-cpu",))
    assert [shown(case) for case in parsed(stopped).findall("testcase")[1:]] == [
        ("a/c.py", "recipe file", ("error", "problem", "cannot be imported")),
        ("a.b.net", "opset10-cpu", ("error", "not-run", "the run was stopped before this cell ran")),
    ]


def test_times_are_of_this_run_and_the_suite_has_versions_and_settings():
    timed = dataclasses.replace(passed(), timings={"export": 1.25, "run": 0.5})
    suite = parsed(run_of(timed, dataclasses.replace(timed, cell=passed(opset=10).cell, cached=True), seconds=2.0))
    assert [case.get("time") for case in suite.findall("testcase")] == ["1.750", "0.000"]
    assert suite.get("time") == "2.000"
    properties = {each.get("name"): each.get("value") for each in suite.findall("properties/property")}
    assert properties == {"torch": "2.13.0", "setting max-drift": "16"}


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "a\x00b\x08", "\ud800", "\ufffe\uffff", "]]> <b> & \"'", "two\nlines", "\x85\u202e"]
)
def test_any_text_gives_a_document_that_can_be_read(text):
    wrong = dataclasses.replace(failed(), findings=(finding("numeric-drift", text),), log=text)
    absent = CellResult(cell=failed(opset=10).cell, status=Status.SKIPPED, reason=text, skip_cause=SkipCause.RECIPE)
    problem = Problem(source=text, message=text)
    suite = parsed(report(wrong, absent, problems=(problem,), not_run=(text,)))
    assert len(suite.findall("testcase")) == 4


def test_a_file_that_cannot_be_made_costs_no_other(project):
    def fail(report):
        raise RuntimeError("a mistake in the rendering")

    settings = load_settings(project.root, flags={"report": "r.json"}, environment={})
    files = {
        project.root / "first": lambda report: "1",
        project.root / "second": fail,
        project.root / "third": lambda report: "3",
    }
    session = Session(settings, also_written=files)
    session.expect([])
    with pytest.raises(
        UnwrittenError, match=r"second cannot be written: RuntimeError: a mistake in the rendering .* bug in onnx-ci"
    ):
        session.finish()
    assert sorted(path.name for path in project.root.iterdir()) == ["first", "r.json", "third"]


def test_a_run_that_judged_nothing_is_no_success():
    suite = parsed(report(skipped(opset=9), skipped(opset=10)))
    assert suite.findall("testcase")[-1].get("name") == "any cell"
    assert suite.get("errors") == "1"


def test_a_rule_that_this_version_does_not_know_is_text():
    broken = finding("numeric-drift", "off by 3")
    result = dataclasses.replace(failed(), findings=(dataclasses.replace(broken, rule="bad\x01rule"),))
    (failure,) = parsed(report(result)).iter("failure")
    assert failure.get("type").startswith("bad")
