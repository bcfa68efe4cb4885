"""Each fault is caught by the rule that names it, and its right twin passes."""

from __future__ import annotations

import pytest
from faults import declarations, dtypes, frozen_shapes, frozen_values, in_place, operators, purity, semantics
from faults.fault import Fault

import onnx_ci
from onnx_ci import CellResult, Recipe, Severity, Status

FAULTS = [
    fault
    for module in (frozen_values, frozen_shapes, semantics, operators, in_place, dtypes, purity, declarations)
    for fault in module.FAULTS
]

OF_FILES = {"checker", "load-error", "dtype-mismatch"}
"""Rules about a file as a whole whose findings name the line that the file has wrong."""

WITHOUT_LINE = {
    # The model has a symbolic function of its own, or lets an operator through as it is: torch's functions alone are right.
    *("symbol_too_new", "symbol_of_ours", "fall_through"),
    # The line is sought in a run that is watched, and that run computes what the file has.
    *("exported_mode", "exported_operators", "watched_casts"),
}
"""Faults in files whose line is not named; of all others, it is."""

TAKE_LONG = {"hidden_tokens_here_dynamo", "hidden_tokens_elsewhere_dynamo", "hidden_tokens_elsewhere_torchscript"}
"""Of the four faults of an encoder with hidden tokens, the fourth is always tested."""

every_fault = pytest.mark.parametrize(
    "fault",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.name in TAKE_LONG else []) for each in FAULTS],
)


def judged(recipe: Recipe, opset: int, **options: str) -> tuple[CellResult, set[str]]:
    """The verdict on one recipe at one opset, and the rules it broke; notes aside."""
    (result,) = onnx_ci.run([recipe], opsets=str(opset), **options).cells
    return result, {each.rule for each in result.findings if each.severity is Severity.ERROR}


@every_fault
def test_what_is_wrong_is_caught_by_its_rule(fault: Fault) -> None:
    result, broken = judged(fault.wrong, fault.opset)
    assert fault.rule in broken, [each.message for each in result.findings]
    assert result.status is (Status.ERROR if fault.rule == "recipe-error" else Status.FAILED)
    errors = [each for each in result.findings if each.severity is Severity.ERROR]
    wrong = [each for each in errors if each.probe is not None or each.rule in OF_FILES]
    assert all(bool(each.lines) is (fault.name not in WITHOUT_LINE) for each in wrong)
    lines = {line for each in wrong for line in each.lines}
    assert all(line.file.startswith(("tests/faults/", "tests/toolbox/cells.py")) for line in lines)


@every_fault
def test_its_right_twin_passes(fault: Fault) -> None:
    result, broken = judged(fault.right, fault.opset, isolation="none")  # a fork takes longer than a small cell
    assert (broken, result.status) == (set(), Status.PASSED), [each.message for each in result.findings]


def test_there_are_enough_faults_and_each_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) >= 40
    assert len(set(names)) == len(names)
