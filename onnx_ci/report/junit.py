"""A report as JUnit's XML, which Jenkins, GitLab and most other CI systems show as tests: one test case for each cell.

The structure follows ``junit-10.xsd`` of Jenkins' xunit plugin. GitLab and the common actions for GitHub read it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import PurePosixPath
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from onnx_ci.report.causes import causes_of
from onnx_ci.report.findings import describe_finding
from onnx_ci.report.markup import printable
from onnx_ci.report.text import describe_result, detail_lines
from onnx_ci.results.records import Cell, CellResult, Status
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict
from onnx_ci.text import one_line

_TAGS = {
    Status.FAILED: "failure",
    Status.XPASSED: "failure",
    Status.ERROR: "error",
    Status.SKIPPED: "skipped",
    Status.XFAILED: "skipped",  # as pytest writes it: JUnit knows no expected failures
}
"""The element that says what became of a cell; a cell that passed has none."""


def render(report: RunReport, repeat: Callable[[Cell], str]) -> str:
    """Every cell of a report as a test case, in one test suite that has the versions and settings as properties.

    Recipe files that cannot be used, cells that did not run, and a run that judged nothing are errors. ``repeat`` returns the
    command that repeats a cell.
    """
    cases = [
        *(_case_of(result, repeat(result.cell)) for result in report.cells),
        *(_error_case(_named(each.source, "recipe file"), "problem", each.message, has_text=True) for each in report.problems),
    ]
    for id in report.not_run:
        cell = Cell.from_id(id)
        names = _named("onnx-ci", id) if cell is None else _names(cell)
        cases.append(_error_case(names, "not-run", "the run was stopped before this cell ran"))
    if report.verdict is RunVerdict.NOTHING_RAN:
        cases.append(_error_case(_named("onnx-ci", "any cell"), "nothing-ran", "no cell was judged"))
    tags = Counter(child.tag for case in cases for child in case)
    counts = {"tests": str(len(cases)), "failures": str(tags["failure"]), "errors": str(tags["error"])}
    time = {"time": f"{report.seconds:.3f}"}
    suites = Element("testsuites", {"name": "onnx-ci", **counts, **time})
    suite = SubElement(suites, "testsuite", {"name": "onnx-ci", **counts, "skipped": str(tags["skipped"]), **time})
    properties = SubElement(suite, "properties")
    settings = {f"setting {name}": each.value for name, each in report.settings.items() if each.value is not None}
    for name, value in {**report.environment, **settings}.items():
        SubElement(properties, "property", {"name": _attribute(name), "value": _attribute(value)})
    suite.extend(cases)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _case_of(result: CellResult, repeat: str) -> Element:
    seconds = 0.0 if result.cached else result.seconds
    case = Element("testcase", {**_names(result.cell), "time": f"{seconds:.3f}"})
    if result.status in _TAGS:
        causes = causes_of(result.findings) if result.status.is_bad else []
        if causes:
            first = causes[0].finding
            outcome = {"type": _attribute(first.rule), "message": _attribute(f"{first.rule}: {describe_finding(first)}")}
        else:
            outcome = {"type": result.status.value, "message": _attribute(result.reason)}
        child = SubElement(case, _TAGS[result.status], outcome)
        child.text = printable(describe_result(result, repeat)) if result.status.is_bad else None
    if lines := detail_lines(result):
        SubElement(case, "system-out").text = printable("\n".join(lines))
    return case


def _error_case(names: dict[str, str], kind: str, message: str, *, has_text: bool = False) -> Element:
    """A test case for what is no cell: it is an error, because it is no success in the exit code either."""
    case = Element("testcase", {**names, "time": "0.000"})
    SubElement(case, "error", {"type": kind, "message": _attribute(message)}).text = printable(message) if has_text else None
    return case


def _names(cell: Cell) -> dict[str, str]:
    """``exports.nets.lstm`` and ``opset9-cpu``: the class and the name of a test case."""
    module = ".".join(PurePosixPath(cell.source).with_suffix("").parts)
    return _named(f"{module}.{cell.recipe}", cell.label)


def _named(group: str, name: str) -> dict[str, str]:
    return {"classname": _attribute(group), "name": _attribute(name)}


def _attribute(text: str) -> str:
    return one_line(printable(text))
