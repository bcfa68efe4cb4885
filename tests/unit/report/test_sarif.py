"""A report as SARIF: valid, each cause once, at its line in the repository."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from toolbox.records import failed, passed, report, skipped, warned
from toolbox.shown_runs import hostile_run, some_run

from onnx_ci import Problem
from onnx_ci.report.sarif import render
from onnx_ci.results.records import SourceLine

PROBLEM = Problem(source="a/c.py", message="cannot be imported", file="a/c.py", line=3)


@pytest.fixture
def repository(tmp_path):
    for name in ("a/b.py", "a/c.py", "net.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def run_of(found, repository):
    (run,) = json.loads(render(found, repository, repository))["runs"]
    return run


def at(result):
    """The file and the line of a result."""
    place = result["locations"][0]["physicalLocation"]
    return place["artifactLocation"]["uri"], place.get("region", {}).get("startLine")


def test_each_cause_is_one_result_at_its_line(repository):
    wrong = failed()
    line = SourceLine(file="net.py", line=7, text="return x")
    found = tuple(dataclasses.replace(each, source=line) for each in wrong.findings)
    twice = (dataclasses.replace(wrong, findings=found), dataclasses.replace(failed(opset=10), findings=found))
    run = run_of(dataclasses.replace(report(passed(opset=12), *twice, warned(opset=11)), problems=(PROBLEM,)), repository)
    assert [(each["ruleId"], each["level"], at(each)) for each in run["results"]] == [
        ("run", "error", ("a/c.py", 3)),
        ("numeric-drift", "error", ("net.py", 7)),
        ("edge-mismatch", "warning", ("a/b.py", None)),
    ]
    assert "at opsets 9-10 on cpu" in run["results"][1]["message"]["text"]
    assert [each["id"] for each in run["tool"]["driver"]["rules"]] == ["run", "numeric-drift", "edge-mismatch"]


def test_a_cause_is_known_again_when_its_line_and_its_numbers_have_changed(repository):
    def marks(line, message):
        (finding,) = failed().findings
        source = SourceLine(file="net.py", line=line, text="return x")
        changed = dataclasses.replace(finding, source=source, message=message)
        (result,) = run_of(report(dataclasses.replace(failed(), findings=(changed,))), repository)["results"]
        return result["partialFingerprints"]

    assert marks(7, "off by 2.5e-3") == marks(9, "off by 11")
    assert marks(7, "off by 2.5e-3") != marks(7, "another shape")


def test_every_result_has_a_place_as_code_scanning_demands(repository):
    (repository / "my models").mkdir()
    (repository / "my models/50%.py").write_text("")
    there = dataclasses.replace(PROBLEM, source="my models/50%.py", file="my models/50%.py")
    nowhere = dataclasses.replace(PROBLEM, source="gone.py", file="gone.py")
    found = dataclasses.replace(report(passed(), skipped()), problems=(there, nowhere), not_run=("a",))
    places = [at(each) for each in run_of(found, repository)["results"]]
    assert places == [("my%20models/50%25.py", 3), ("pyproject.toml", None), ("pyproject.toml", None)]


SCHEMA = json.loads(Path(__file__).with_name("sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8"))
"""From the npm package @microsoft/jest-sarif 1.0.0-beta.0; the file beside it has its licence."""


@pytest.mark.parametrize("make", [some_run, hostile_run, lambda: report(passed()), lambda: report(failed(), warned(opset=11))])
def test_it_is_valid(repository, make):
    jsonschema.Draft4Validator(SCHEMA).validate(json.loads(render(make(), repository, repository)))


def test_a_name_that_no_file_can_have_is_that_of_no_file(repository):
    for name in ("a\0.py", "x" * 5000 + ".py"):
        problem = Problem(source=name, message="cannot be imported")
        (result,) = run_of(dataclasses.replace(report(passed()), problems=(problem,)), repository)["results"]
        assert at(result) == ("pyproject.toml", None)


def test_the_schema_refuses_what_is_not_valid():
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(SCHEMA).validate({"version": "2.1.0", "runs": [{"tool": {}}]})


def test_nothing_wrong_is_an_empty_list(repository):
    assert run_of(report(passed()), repository)["results"] == []
