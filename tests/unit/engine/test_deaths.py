"""What is known about a cell whose process died."""

from __future__ import annotations

import pytest
from toolbox.cells import recipe_of, task

from onnx_ci.engine.deaths import LastSeen, evidence_of_death
from onnx_ci.processes.supervisor import Death
from onnx_ci.results.records import CellEvidence, Severity
from onnx_ci.results.rules import finding

DEATH = Death(cause="crash", message="was killed by SIGSEGV", log="last words")


def cell():
    return task(recipe_of(lambda x: x, 1.0, name="net"))


@pytest.mark.parametrize("rules", [("baked-value",), ("numeric-drift", "export-warning")])
def test_a_failure_from_before_the_search_stands_and_the_death_is_a_note(rules):
    before = CellEvidence(cell=cell().cell, findings=tuple(finding(rule, "wrong") for rule in rules))
    evidence = evidence_of_death(cell(), DEATH, LastSeen(stage="locate", evidence=before))
    assert [each.rule for each in evidence.findings] == [*rules, "crash"]
    assert evidence.findings[-1].severity is Severity.NOTE
    assert evidence.log == "last words"


def test_a_cell_that_dies_is_never_green():
    for before in (CellEvidence(cell=cell().cell), None):
        (death,) = evidence_of_death(cell(), DEATH, LastSeen(stage="locate", evidence=before)).findings
        assert (death.rule, death.severity) == ("crash", Severity.ERROR)
