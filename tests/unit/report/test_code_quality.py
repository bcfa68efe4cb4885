"""A report as GitLab's code quality: each cause once, at its line, known again after edits."""

from __future__ import annotations

import dataclasses
import json

from toolbox.records import failed, passed, report, warned
from toolbox.shown_runs import hostile_run

from onnx_ci import Problem
from onnx_ci.report.annotations import code_quality
from onnx_ci.results.records import SourceLine


def violations_of(found, repository):
    return json.loads(code_quality(found, repository, repository))


def test_each_cause_is_one_violation_at_its_line(tmp_path):
    for name in ("net.py", "a/b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    wrong, line = failed(), SourceLine(file="net.py", line=7, text="return x")
    found = tuple(dataclasses.replace(each, source=line) for each in wrong.findings)
    twice = (dataclasses.replace(wrong, findings=found), dataclasses.replace(failed(opset=10), findings=found))
    gone = Problem(source="gone.py", message="cannot be imported", file="gone.py", line=3)
    all_of_them = dataclasses.replace(report(passed(opset=12), *twice, warned(opset=11)), problems=(gone,))
    violations = violations_of(all_of_them, tmp_path)
    assert [(each["check_name"], each["severity"], each["location"]) for each in violations] == [
        ("onnx-ci/run", "major", {"path": "pyproject.toml", "lines": {"begin": 1}}),
        ("onnx-ci/numeric-drift", "major", {"path": "net.py", "lines": {"begin": 7}}),
        ("onnx-ci/edge-mismatch", "minor", {"path": "a/b.py", "lines": {"begin": 1}}),
    ]
    assert "at opsets 9-10 on cpu" in violations[1]["description"]
    assert len({each["fingerprint"] for each in violations}) == 3


def test_two_lines_that_differ_in_a_number_are_two_violations(tmp_path):
    (tmp_path / "net.py").write_text("")
    wrong, lines = failed(), [SourceLine(file="net.py", line=line, text=f"return x * {line}.0") for line in (7, 8)]
    (one,) = wrong.findings
    both = tuple(dataclasses.replace(one, source=line, message=f"output {line.line} is off") for line in lines)
    violations = violations_of(report(dataclasses.replace(wrong, findings=both)), tmp_path)
    assert [each["location"]["lines"]["begin"] for each in violations] == [7, 8]
    assert violations[0]["fingerprint"] != violations[1]["fingerprint"]


def test_a_run_without_remarks_has_none(tmp_path):
    assert violations_of(report(passed()), tmp_path) == []


def test_every_violation_has_what_gitlab_demands(tmp_path):
    violations = violations_of(hostile_run(), tmp_path)
    assert violations
    for each in violations:
        assert {*each} == {"check_name", "description", "fingerprint", "severity", "location"}
        assert each["location"]["lines"]["begin"] >= 1
