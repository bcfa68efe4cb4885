"""The report as Markdown, for the summary page of a job: the verdict, the failures, the grid.

GitHub cuts a long summary off at its end, so what matters most comes first, and each cause is shown once.
"""

from __future__ import annotations

import html
from collections.abc import Callable

from onnx_ci.report.causes import baseline_changes, by_remedy, shared_failures, shared_warnings
from onnx_ci.report.findings import describe_failure, describe_finding
from onnx_ci.report.grid import WARNED, Grid, describe_unit, format_result, grid
from onnx_ci.report.markup import code_block, printable
from onnx_ci.report.text import describe_run, format_counts
from onnx_ci.results.records import Cell, Status
from onnx_ci.results.run_report import RunReport

_MARKS = {Status.FAILED: "❌", Status.ERROR: "💥", Status.SKIPPED: "⏭️", Status.XFAILED: "☑️", Status.XPASSED: "❗"}
_VERDICTS = {"passed": "✅ passed", "failed": "❌ failed", "nothing-ran": "⚠️ nothing ran"}
_LENGTH = 1000
"""Longer messages are cut off; the JSON and HTML reports contain them in full."""


def render(report: RunReport, repeat: Callable[[Cell], str]) -> str:
    """The whole report as GitHub-flavored Markdown, with commands that repeat cells. Text from outside is never markup."""
    table = grid(report.cells)
    lines = [f"## ONNX export: {_VERDICTS[report.verdict]}", "", escape(format_counts(report)), ""]
    lines += [f"- {escape(problem.source)}: {_cut(problem.message)}" for problem in report.problems]
    if report.not_run:
        lines.append(f"- did not run: {len(report.not_run)} cells, first {escape(report.not_run[0])}")
    lines += [f"- {_cut(reason)}" for reason in describe_run(report)]
    for failure in shared_failures(report.cells):
        lines += ["", f"### {escape(failure.title)}", ""]
        lines += code_block(describe_failure(failure, repeat(failure.first.cell)))
    if warnings := shared_warnings(report.cells):
        lines += ["", "### Warnings", ""]
        for warning, remedy in by_remedy(warnings):
            lines.append(
                f"- {escape(warning.place)}: `{escape(warning.finding.rule)}`: {_cut(describe_finding(warning.finding))}"
            )
            lines += [f"  - remedy: {_cut(remedy)}"] if remedy else []
    if since := baseline_changes(report.cells):
        lines += ["", "### Since the baseline", "", "| cells | what changed | |", "| --- | --- | --- |"]
        lines += [f"| {escape(each.place)} | {_cut(each.finding.message)} | {each.finding.severity.value} |" for each in since]
    if table.rows:
        lines += [
            "",
            *_grid(table),
            "",
            f"A number is the largest drift of a passed cell, in units of {describe_unit(report.cells)}.",
        ]
    return "\n".join(lines) + "\n"


def _grid(table: Grid) -> list[str]:
    lines = ["| opset | " + " | ".join(map(str, table.opsets)) + " |", "| --- |" + " ---: |" * len(table.opsets)]
    for row in table.rows:
        places = []
        for result in row.results:
            mark = "⚠️" if result and result.warnings else _MARKS.get(result.status) if result else None
            places.append(" ".join(filter(None, (mark, format_result(result).removesuffix(WARNED)))))
        lines.append(f"| {escape(row.title)} | " + " | ".join(places) + " |")
    return lines


_ENTITIES = {ord(character): f"&#{ord(character)};" for character in "\\`*_[]|~#@"}


def escape(text: str) -> str:
    """``text`` as one line that Markdown shows literally."""
    return " ".join(html.escape(printable(text), quote=False).split()).translate(_ENTITIES)


def _cut(text: str) -> str:
    return escape(text if len(text) <= _LENGTH else f"{text[: _LENGTH - 1]}…")
