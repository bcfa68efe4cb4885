"""Findings about branches that the exporter froze, and of which no probe takes the other side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_ci.processes.capture import Notice
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding
from onnx_ci.stages.export.places import place_in_project, shown_place
from onnx_ci.stages.prepare.branches import UntakenBranch


def frozen_branches(branches: Iterable[UntakenBranch], notices: Sequence[Notice], exporter: str) -> list[UntakenBranch]:
    """Those of the untaken branches of which an export contains one side only.

    TorchScript warns wherever it freezes a number or a branch, so a branch in a function without a warning was not traced: the
    function asks whether it is traced. The dynamo exporter rejects branches on values, keeps ``min`` and ``max`` of sizes, and
    freezes branches on sizes without a warning.
    """
    if exporter != "torchscript":
        return [each for each in branches if each.by_sizes and each.condition.is_test]
    return [
        each
        for each in branches
        if any(notice.filename == str(each.condition.path) and notice.line in each.condition.function for notice in notices)
    ]


def judge_branches(branches: Iterable[UntakenBranch]) -> list[Finding]:
    """A finding for each frozen branch. In an installed package it is a warning: both sides often compute the same."""
    found = {}
    for each in branches:
        condition = each.condition
        filename = str(condition.path)
        where = f"`{condition.text or 'a branch'}` at {shown_place(filename, condition.line)}"
        if condition.is_test:
            one, other = str(each.outcome).lower(), str(not each.outcome).lower()
            message = f"the file has only the side of {where} for which it is {one}: no input was found for which it is {other}"
        else:
            message = f"the file has only one side of {where}: no input was found that takes the other one"
        severity = None if place_in_project(filename, condition.line) else Severity.WARNING
        found[message] = finding("untaken-branch", message, severity=severity)
    return [*found.values()]


def without_those_at(branches: Iterable[UntakenBranch], notices: Iterable[Notice]) -> list[Notice]:
    """The warnings, without those about lines that decide one of ``branches``: one fault is reported once."""
    places = {(str(each.condition.path), each.condition.line) for each in branches}
    return [notice for notice in notices if (notice.filename, notice.line) not in places]
