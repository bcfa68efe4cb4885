"""Findings from an exporter's warnings, by the table beside this file, and from the branches that it freezes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.model.places import innermost, is_in_project, is_of_toolchain, source_line
from onnx_ci.processes.capture import Notice
from onnx_ci.results.records import Finding, Severity, SourceLine
from onnx_ci.results.rules import REMEDIES, RULES, finding

_WARNINGS = [
    {**entry, "pattern": re.compile(entry["pattern"], re.DOTALL), "severity": Severity(entry.get("severity", "note"))}
    for entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["warning"]
]


def judge_warnings(notices: Iterable[Notice], allowed: Sequence[str], *, training: bool) -> list[Finding]:
    """A finding for each warning whose meaning is known and whose text is not allowed, with the line of code that caused it.

    With ``training``, warnings about that mode are ignored.
    """
    findings: dict[tuple[str, SourceLine | None], Finding] = {}
    for notice in notices:
        entry = next((entry for entry in _WARNINGS if entry["pattern"].search(notice.message)), None)
        if entry is None:
            continue
        meaning = entry["meaning"]
        first_sentence = re.split(r"(?<=[.!])\s", " ".join(notice.message.split()), maxsplit=1)[0][:300]
        message = f"{meaning}: {first_sentence}"
        if any(re.search(pattern, text) for pattern in allowed for text in (notice.message, message)):
            continue
        if training and meaning.endswith("training mode"):
            continue
        if entry.get("needs-line") and (not notice.filename or is_of_toolchain(notice.filename)):
            continue  # torch's own layers check their arguments so
        source = innermost(notice.stack or ([(notice.filename, notice.line)] if notice.filename else []))
        remedy = entry.get("remedy") or (None if source is not None else REMEDIES["without-line"])
        details = {"explains": entry["explains"]} if "explains" in entry else {}
        judged = finding("export-warning", message, severity=entry["severity"], source=source, remedy=remedy, details=details)
        findings.setdefault((meaning, source), judged)
    return list(findings.values())


def explained(findings: Iterable[Finding], warnings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings; wrong numbers of which nothing else is known, with what the exporter has warned of and its remedy."""
    for each in findings:
        nodes = [node for culprit in each.culprits for node in culprit.nodes]
        of_nodes = (one for one in warnings if "explains" in one.details and (not nodes or one.details["explains"] in nodes[0]))
        warning = next(of_nodes, None)
        if warning is None or each.rule != "numeric-drift" or each.remedy != RULES[each.rule].remedy:
            yield each
        else:
            message = f"{each.message}; the exporter has warned that, {warning.message.partition(':')[0]}"
            yield replace(each, message=message, remedy=warning.remedy)


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
