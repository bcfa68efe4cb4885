"""Findings about branches of which the file has one side only, and no probe takes the other one."""

from __future__ import annotations

from collections.abc import Iterable

from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.model.places import is_in_project, source_line
from onnx_ci.processes.capture import Notice
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding


def judge_branches(branches: Iterable[UntakenBranch]) -> list[Finding]:
    """A finding for each frozen branch. In an installed package it is a note: libraries choose between equivalent ways."""
    findings = {}
    for branch in branches:
        condition = branch.condition
        filename = str(condition.path)
        text = f"`{condition.text}`" if condition.text else "a branch"
        if condition.is_test:
            taken, untaken = str(branch.outcome).lower(), str(not branch.outcome).lower()
            message = (
                f"the file has only the side of {text} for which it is {taken}: no input was found for which it is {untaken}"
            )
        else:
            message = f"the file has only one side of {text}: no input was found that takes the other one"
        severity = None if is_in_project(filename) else Severity.NOTE
        source = source_line(filename, condition.line)
        findings[message, source] = finding("untaken-branch", message, severity=severity, source=source)
    return [*findings.values()]


def without_those_at(branches: Iterable[UntakenBranch], notices: Iterable[Notice]) -> list[Notice]:
    """The warnings, without those about lines that decide one of ``branches``: one fault is reported once."""
    places = {(str(branch.condition.path), line) for branch in branches for line in branch.condition.lines}
    return [notice for notice in notices if (notice.filename, notice.line) not in places]
