"""A report as JUnit's XML: any report, and those that runs write."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from toolbox.any_report import reports
from toolbox.junit import parsed, shown
from toolbox.projects import RIGHT

from onnx_ci.results.verdict import RunVerdict


@given(any_report=reports())
def test_any_report_has_the_structure(any_report):
    cases = parsed(any_report).findall("testcase")
    told = len(any_report.cells) + len(any_report.problems) + len(any_report.not_run)
    assert len(cases) == told + (any_report.verdict is RunVerdict.NOTHING_RAN)  # which is a failed test case, too


BREAKS_OFF = """
    @onnx_ci.recipe
    def stops():
        raise KeyboardInterrupt
"""


@pytest.mark.parametrize("front_end", ["onnx_ci", "pytest"])
def test_a_run_writes_it_beside_its_report(project, front_end):
    project.recipes(RIGHT)
    words = ("onnx_ci", "run") if front_end == "onnx_ci" else ("pytest", "--onnx-export", "-p", "no:cacheprovider")
    prefix = "" if front_end == "onnx_ci" else "onnx-"
    files = (
        "junit=out/onnx.xml",
        "html=out/onnx.html",
        "code-quality=out/quality.json",
        "report=r.json",
    )
    flags = [f"--{prefix}{flag}" for flag in ("opsets=12-13", "isolation=none", *files)]
    done = project.command(*words, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    suite = ElementTree.parse(project.root / "out" / "onnx.xml").getroot()[0]
    assert [shown(case) for case in suite.findall("testcase")] == [
        ("onnx_recipes.right", "opset12-cpu"),
        ("onnx_recipes.right", "opset13-cpu"),
    ]
    assert (project.root / "out" / "quality.json").read_text() == "[]\n"
    project.in_process("report", "r.json", "--html=again.html")
    assert (project.root / "again.html").read_bytes() == (project.root / "out" / "onnx.html").read_bytes()


def test_a_run_that_is_interrupted_writes_it_too(project):
    project.recipes(RIGHT, BREAKS_OFF)
    done = project.command("onnx_ci", "run", "--opsets=13", "--isolation=none", "--junit=onnx.xml", "--summary=s.md")
    assert done.returncode == 1, done.stdout + done.stderr
    suite = ElementTree.parse(project.root / "onnx.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("errors")) == ("2", "1")
    assert (project.root / "s.md").is_file()


def test_python_writes_it_and_report_renders_it(project):
    project.recipes(RIGHT)
    code = (
        "import onnx_ci, onnx_recipes as r; onnx_ci.run([r.right], opsets=13, isolation='none', junit='a.xml', report='r.json')"
    )
    project.write("start.py", code)
    done = project.command("start")
    assert done.returncode == 0, done.stderr
    again = project.in_process("report", "r.json", "--junit=-")
    assert again.stdout == (project.root / "a.xml").read_text(encoding="utf-8")
