"""What is known about a cell whose process died."""

from __future__ import annotations

import dataclasses

import pytest
from toolbox.cells import planned, recipe_of

from onnx_ci.engine.messages import result_of_dead_process
from onnx_ci.processes.supervisor import Death
from onnx_ci.results.records import CellEvidence, Severity
from onnx_ci.results.rules import finding

DEATH = Death(cause="crash", message="was killed by SIGSEGV", log="last words")


def cell():
    return planned(recipe_of(lambda x: x, 1.0, name="net"))


@pytest.mark.parametrize("rules", [("baked-value",), ("numeric-drift", "export-warning")])
def test_a_failure_that_was_known_stands_and_the_death_is_a_note(rules):
    known = CellEvidence(cell=cell().cell, findings=tuple(finding(rule, "wrong") for rule in rules))
    evidence = result_of_dead_process(cell(), DEATH, "locate", known=known.as_json())
    assert [each.rule for each in evidence.findings] == [*rules, "crash"]
    assert evidence.findings[-1].severity is Severity.NOTE
    assert evidence.log == "last words"


def test_a_cell_that_dies_is_never_green():
    right, other = CellEvidence(cell=cell().cell), dataclasses.replace(cell().cell, opset=9)
    of_other = CellEvidence(cell=other, findings=(finding("baked-value", "wrong"),))
    for known in (right.as_json(), of_other.as_json(), {"id": "net"}, {}):
        (death,) = result_of_dead_process(cell(), DEATH, "locate", known=known).findings
        assert (death.rule, death.severity) == ("crash", Severity.ERROR)
