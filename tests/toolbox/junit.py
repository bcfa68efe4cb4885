"""A report as JUnit's XML, parsed and held against what Jenkins' schema demands."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from onnx_ci.report.junit import render

OUTCOMES = {"failure", "error", "skipped"}
TIME = re.compile(r"\d+\.\d{3}")

# What the schema allows, element by element: attributes that must be there, others that may, and children.
# Source: src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd in jenkinsci/xunit-plugin.
STRUCTURE = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": ({"name"}, {"time", "classname", "group"}, {*OUTCOMES, "system-out", "system-err"}),
    **{outcome: (set(), {"type", "message"}, set()) for outcome in OUTCOMES},
    "system-out": (set(), set(), set()),
}


def parsed(found):
    """The suite of a report, whose structure is as demanded."""
    root = ElementTree.fromstring(render(found, lambda cell: f"repeat {cell.id}").encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        needed, possible, children = STRUCTURE[element.tag]
        assert needed <= set(element.attrib) <= needed | possible, element.tag
        assert {child.tag for child in element} <= children, element.tag
        assert TIME.fullmatch(element.get("time", "0.000"))
    (suite,) = root
    cases = suite.findall("testcase")
    counted = {"tests": len(cases), **{f"{tag}s": len(suite.findall(f"testcase/{tag}")) for tag in ("failure", "error")}}
    for element in (root, suite):
        assert {name: int(element.get(name)) for name in counted} == counted
    assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped"))
    return suite


def shown(case):
    """The names of a test case, and what became of it: the element, its type and its message."""
    outcomes = [(child.tag, child.get("type"), child.get("message")) for child in case if child.tag in OUTCOMES]
    return case.get("classname"), case.get("name"), *outcomes
