"""The picture of the nodes around a fault."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from onnx_ci import NodeStep, SourceLine
from onnx_ci.report.node_picture import node_picture
from onnx_ci.report.text import step_lines


def step(node, *inputs, error=None, is_culprit=False, can_run=True):
    known = error is not None
    return NodeStep(
        node=node,
        inputs=inputs,
        is_culprit=is_culprit,
        can_run=can_run,
        operator="aten.mul" if known else "",
        source=SourceLine(file="net.py", line=7, text="<y> = x & z") if known else None,
        shape=(2, 3) if can_run else (),
        index=(1, 2) if known else None,
        file_value=1.5 + error if known else None,
        model_value=1.5 if known else None,
        error=error,
        noise=1e-7 if known else None,
    )


STEPS = [
    step("Relu 'a'", error=0.0),
    step("Mul 'b'", 0, error=0.5, is_culprit=True),
    step("Add 'c<'", 1, 0, error=0.25),
    step("Split 'd'", 2, can_run=False),
]


def test_each_node_is_a_box_that_says_what_it_is_and_how_far_off():
    root = ElementTree.fromstring(node_picture(STEPS))
    name = "{http://www.w3.org/2000/svg}"
    assert root.tag in ("svg", f"{name}svg")
    groups = [(each.get("class"), each.find("title").text) for each in root.iter("g")]
    assert groups == [
        ("right", "Relu 'a', right: drift 0: 1.5 for 1.5"),
        ("culprit", "Mul 'b', at fault: drift 5e+06: 2 for 1.5"),
        ("wrong", "Add 'c<', wrong behind the fault: drift 2.5e+06: 1.75 for 1.5"),
        ("wrong", "Split 'd', wrong behind the fault: does not run"),
    ]
    bars = [float(each.get("width")) for each in root.iter("rect") if each.get("class") == "bar"]
    assert len(bars) == 3
    assert bars[0] < bars[2] < bars[1]
    assert len(list(root.iter("path"))) == 4
    assert root.get("aria-label") == "4 nodes around the fault at Mul 'b'"
    assert node_picture([]) == ""


def test_a_name_that_is_too_long_for_its_box_loses_its_beginning():
    root = ElementTree.fromstring(node_picture([step(f"Mul '/{'layer/' * 30}Mul_7'", is_culprit=True)]))
    shown = "".join(next(each for each in root.iter("text")).itertext())
    assert shown.startswith("✗ …") and shown.endswith("layer/Mul_7'")
    assert len(shown) < 80
    assert "'/layer/" in root.find("g").find("title").text


def test_the_table_marks_what_is_at_fault():
    assert [re.split(r"  +", line.strip()) for line in step_lines(STEPS)] == [
        ["node", "line", "error ÷ rounding", "at", "file", "model"],
        ["Relu 'a'", "net.py:7", "0", "[1, 2]", "1.5", "1.5"],
        [">", "Mul 'b'", "net.py:7", "5e+06", "[1, 2]", "2", "1.5"],
        ["Add 'c<'", "net.py:7", "2.5e+06", "[1, 2]", "1.75", "1.5"],
        ["Split 'd'", "does not run"],
    ]
