"""Findings about branches that the exporter froze, and of which no probe takes the other side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_ci.processes.capture import Notice
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding
from onnx_ci.stages.export.places import is_in_project, source_line
from onnx_ci.stages.inputs.branches import UntakenBranch
from onnx_ci.stages.inputs.conditions import Condition


def frozen_branches(branches: Iterable[UntakenBranch], notices: Sequence[Notice], exporter: str) -> list[UntakenBranch]:
    """Those of the untaken branches of which an export contains one side only.

    TorchScript warns wherever it freezes a branch, or a number that a branch in the same function may use. Without a warning,
    the branch was not traced: the code asks whether it is. The dynamo exporter rejects branches on values, keeps ``min`` and
    ``max`` of sizes, and freezes branches on sizes without a warning.
    """
    if exporter != "torchscript":
        return [each for each in branches if each.by_sizes and not each.condition.is_call]
    return [each for each in branches if any(_freezes(notice, each.condition) for notice in notices)]


def _freezes(notice: Notice, condition: Condition) -> bool:
    if notice.filename != str(condition.path):
        return False
    is_of_branch = "Python boolean" in notice.message
    return notice.line in (condition.lines if is_of_branch else condition.function)


def judge_branches(branches: Iterable[UntakenBranch]) -> list[Finding]:
    """A finding for each frozen branch. In an installed package it is a note: libraries choose among equivalent ways."""
    found = {}
    for each in branches:
        condition = each.condition
        filename = str(condition.path)
        branch = f"`{condition.text}`" if condition.text else "a branch"
        if condition.is_test:
            one, other = str(each.outcome).lower(), str(not each.outcome).lower()
            message = (
                f"the file has only the side of {branch} for which it is {one}: no input was found for which it is {other}"
            )
        else:
            message = f"the file has only one side of {branch}: no input was found that takes the other one"
        severity = None if is_in_project(filename) else Severity.NOTE
        source = source_line(filename, condition.line)
        found[message, source] = finding("untaken-branch", message, severity=severity, source=source)
    return [*found.values()]


def without_those_at(branches: Iterable[UntakenBranch], notices: Iterable[Notice]) -> list[Notice]:
    """The warnings, without those about lines that decide one of ``branches``: one fault is reported once."""
    places = {(str(each.condition.path), line) for each in branches for line in each.condition.lines}
    return [notice for notice in notices if (notice.filename, notice.line) not in places]
