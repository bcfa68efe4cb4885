"""The report as plain text for a terminal: the grid, a line a failure, the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from onnx_ci.records import CellResult, Exclusion, Finding, RunReport, Severity, Status
from onnx_ci.report.grid import NOT_RUN, grid, word

Style = Callable[[str, Status | None], str]
"""Dresses a word for a status, with colour or not; ``None`` is a heading."""


COLOURS = {Status.PASSED: "green", Status.SKIPPED: "yellow", Status.XFAILED: "yellow"}
"""The colour of a status in a terminal that has colours; whatever is not here is red."""


def plain(text: str, status: Status | None) -> str:
    """No colour."""
    return text


def grid_lines(results: Sequence[CellResult], style: Style = plain) -> list[str]:
    """The grid, then what its words mean."""
    table = grid(results)
    if not table.rows:
        return []
    words = [[word(result) for result in row.results] for row in table.rows]
    first = max(len("opset"), *(len(row.title) for row in table.rows))
    widths = [max(len(str(opset)), *(len(line[i]) for line in words)) for i, opset in enumerate(table.opsets)]
    lines = [
        style("  ".join(["opset".ljust(first), *(str(o).rjust(w) for o, w in zip(table.opsets, widths, strict=True))]), None)
    ]
    for row, line in zip(table.rows, words, strict=True):
        places = [
            style(text.rjust(width), result.status if result else None) if result else text.rjust(width)
            for text, width, result in zip(line, widths, row.results, strict=True)
        ]
        lines.append("  ".join([row.title.ljust(first), *places]))
    legend = []
    if any(result.status is Status.PASSED and result.outputs for result in results):
        legend.append("a number is the largest drift of a passed cell, in units of PyTorch's own rounding")
    if any(NOT_RUN in line for line in words):
        legend.append(f"{NOT_RUN} did not run")
    return [*lines, *(["(" + "; ".join(legend) + ")"] if legend else [])]


def summary_lines(report: RunReport, exclusions: Sequence[Exclusion] = (), style: Style = plain) -> list[str]:
    """The grid, why cells were skipped, problems, what did not run, and the counts."""
    lines = grid_lines(report.cells, style)
    skipped = Counter(result.reason for result in report.cells if result.status is Status.SKIPPED)
    lines += [f"skipped {_cells(count)}: {reason}" for reason, count in skipped.items()]
    lines += [f"left out {each.recipe} at {each.reason}" for each in exclusions]
    lines += [style(f"{problem.source}: {problem.message}", Status.ERROR) for problem in report.problems]
    if report.not_run:
        lines.append(style(f"did not run: {_cells(len(report.not_run))}, first {report.not_run[0]}", Status.ERROR))
    lines.append(style(count_line(report), Status.PASSED if report.verdict == "passed" else Status.FAILED))
    return lines


def count_line(report: RunReport) -> str:
    """``36 cells: 36 passed, 27 of them known from earlier runs, in 41.3 s``."""
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items()) or "none ran"
    problems = f", {len(report.problems)} problem{'s' * (len(report.problems) > 1)}" if report.problems else ""
    cached = sum(result.cached for result in report.cells)
    known = f", {cached} of them known from earlier runs," if cached else ""
    return f"{_cells(len(report.cells))}: {counts}{problems}{known} in {report.seconds:.1f} s"


def outcome(result: CellResult) -> str:
    """``passed (drift 3.7, cached)``."""
    drift = f"drift {word(result)}" if result.status is Status.PASSED and result.outputs else ""
    more = ", ".join(filter(None, [drift, "cached" if result.cached else ""]))
    return f"{result.status.value} ({more})" if more else result.status.value


def _cells(count: int) -> str:
    return f"{count} cell{'s' * (count != 1)}"


def explain(result: CellResult, repeat: str) -> str:
    """All that a person needs to act on a result: each finding with its remedy, the numbers, how to repeat it."""
    lines = finding_lines(result.findings)
    if result.reason:
        lines.append(f"expected: {result.reason}")
    if result.outputs:
        lines += ["", *_numbers(result)]
    if result.artifact:
        lines.append(f"the file: {result.artifact}")
    lines += ["", f"repeat with: {repeat}"]
    return "\n".join(lines)


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Each finding with its remedy, errors first."""
    lines = []
    for finding in sorted(findings, key=lambda each: each.severity is not Severity.ERROR):
        label = finding.rule if finding.severity is Severity.ERROR else f"{finding.rule} ({finding.severity.value})"
        lines += [f"{label}: {finding.message}", f"    remedy: {finding.remedy}"]
    return lines


_ROWS = 12


def _numbers(result: CellResult) -> list[str]:
    """The comparisons as a table: those beyond their limit and those of the first input; the others in one line."""
    first = result.outputs[0].probe
    shown = [each for each in result.outputs if not each.drift <= each.limit or each.probe == first][:_ROWS]
    rows = [("output", "on", "drift", "limit", "error", "noise", "largest value")]
    rows += [
        (o.name, o.probe, f"{o.drift:.3g}", f"{o.limit:g}", f"{o.error:.3g}", f"{o.noise:.3g}", f"{o.max_abs:.3g}")
        for o in shown
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["    " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rest = len(result.outputs) - len(shown)
    return [*lines, f"    … and {rest} more, in the JSON report"] if rest else lines
