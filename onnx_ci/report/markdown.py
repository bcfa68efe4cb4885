"""The report as Markdown, for a job's summary page: the verdict, the grid, the failures."""

from __future__ import annotations

import html
from collections.abc import Callable

from onnx_ci.records import Cell, RunReport, Severity, Status
from onnx_ci.report.grid import grid, word
from onnx_ci.report.text import count_line, remarks

_MARKS = {
    Status.FAILED: "❌",
    Status.ERROR: "💥",
    Status.SKIPPED: "⏭️",
    Status.XFAILED: "☑️",
    Status.XPASSED: "❗",
}
_MARKUP = {ord(character): f"&#{ord(character)};" for character in "\\`*_[]|~#@"}
_VERDICTS = {"passed": "✅ passed", "failed": "❌ failed", "nothing-ran": "⚠️ nothing ran"}


def render(report: RunReport, repeat: Callable[[Cell], str]) -> str:
    """The whole report as GitHub-flavoured Markdown. Text from outside is escaped, so it can be no markup.

    Args:
        repeat: gives the command that repeats a cell.
    """
    lines = [f"## ONNX export: {_VERDICTS[report.verdict]}", "", escape(count_line(report)), ""]
    table = grid(report.cells)
    if table.rows:
        lines.append("| opset | " + " | ".join(map(str, table.opsets)) + " |")
        lines.append("| --- |" + " ---: |" * len(table.opsets))
        for row in table.rows:
            places = [" ".join(filter(None, (_MARKS.get(r.status) if r else None, word(r)))) for r in row.results]
            lines.append(f"| {escape(row.title)} | " + " | ".join(places) + " |")
        lines += ["", "A number is the largest drift of a passed cell, in units of PyTorch's own rounding.", ""]
    lines += [f"- {escape(problem.source)}: {escape(problem.message)}" for problem in report.problems]
    lines += [f"- {escape(remark)}" for remark in remarks(report)]
    if report.not_run:
        lines.append(f"- did not run: {len(report.not_run)} cells")
    for result in report.cells:
        if not result.status.is_bad:
            continue
        lines += ["", f"### {escape(result.cell.recipe)} {escape(result.cell.label)}: {result.status.value}", ""]
        for finding in result.findings:
            if finding.severity is Severity.ERROR:
                lines += [f"- `{finding.rule}`: {escape(finding.message)}", f"  - remedy: {escape(finding.remedy)}"]
        lines += ["", *_code_block(repeat(result.cell))]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """``text`` as one line that Markdown shows as it is."""
    flat = html.escape(" ".join(text.split()), quote=False)
    return flat.translate(_MARKUP)


def _code_block(text: str) -> list[str]:
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence, text, fence]
