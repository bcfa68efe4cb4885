"""The report as plain text for a terminal: the grid, a line a failure, the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from onnx_ci.records import CellResult, Exclusion, Finding, RunReport, Severity, Status
from onnx_ci.report.grid import NOT_RUN, grid, moved, word
from onnx_ci.report.repeat import NARROWED

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


def summary_lines(report: RunReport, style: Style = plain) -> list[str]:
    """The grid, what else is to be known of the run, and the conclusion."""
    since = [
        f"since the baseline: {each.title} opset {each.opsets}: {each.finding.message}{_note(each.finding)}"
        for each in moved(report.cells)
    ]
    return [*grid_lines(report.cells, style), *map(one_line, [*remarks(report), *since]), *conclusion(report, style)]


def _note(finding: Finding) -> str:
    return "" if finding.severity is Severity.ERROR else f" ({finding.severity.value})"


def remarks(report: RunReport) -> list[str]:
    """What the report was merged from, why cells did not run or failed as expected, and what is left out."""
    lines = [f"merged from {len(report.merged_from)} runs"] if report.merged_from else []
    lines += [f"merged runs differ: {each}" for each in differences(report)]
    return [*lines, *reasons(report.cells), *(f"left out {each}" for each in left_out(report.exclusions))]


_NAMED = 3


def left_out(exclusions: Iterable[Exclusion]) -> list[str]:
    """``net at opset 10: the recipe declares opsets 11-17``: a line for each reason, with the first recipes it is that of."""
    recipes: dict[str, list[str]] = {}
    for each in exclusions:
        recipes.setdefault(each.reason, []).append(each.recipe)
    return [
        f"{in_words(names if len(names) <= _NAMED else [*names[:_NAMED], f'{len(names) - _NAMED} more'])} at {reason}"
        for reason, names in recipes.items()
    ]


def reasons(results: Iterable[CellResult]) -> list[str]:
    """``skipped 9 cells: no cuda``: why cells did not run, or failed as expected."""
    counts = Counter((each.status, each.reason) for each in results if each.status in (Status.SKIPPED, Status.XFAILED))
    return [f"{status} {_cells(count)}: {reason}" for (status, reason), count in counts.items()]


def conclusion(report: RunReport, style: Style = plain) -> list[str]:
    """Problems, what did not run, and the counts."""
    lines = [style(one_line(f"{problem.source}: {problem.message}"), Status.ERROR) for problem in report.problems]
    if report.not_run:
        said = f"did not run: {_cells(len(report.not_run))}, first {report.not_run[0]}"
        lines.append(style(one_line(said), Status.ERROR))
    lines.append(style(count_line(report), Status.PASSED if report.verdict == "passed" else Status.FAILED))
    return lines


def lacks_line(report: RunReport) -> str:
    """``the environment lacks what was asked for: no cuda: …``."""
    return one_line(f"the environment lacks what was asked for: {report.lacks}; onnx-ci doctor tells more")


def differences(report: RunReport) -> list[str]:
    """What was not the same in the runs that were merged and bears on verdicts: ``torch 2.12.0 and 2.13.0``."""
    shown = gathered(
        {**part.environment, **{n: each["value"] or "none" for n, each in part.settings.items() if n not in NARROWED}}
        for part in report.merged_from
    )
    return [f"{name} {in_words(values)}" for name, values in shown.items() if len(values) > 1]


def gathered(mappings: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """Under each name its different values, in order."""
    found: dict[str, dict[str, None]] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def in_words(values: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = values
    return f"{', '.join(first)} and {last}" if first else last


def count_line(report: RunReport) -> str:
    """``36 cells: 36 passed, 27 of them known from earlier runs, in 41.3 s``."""
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items()) or "none ran"
    problems = f", {len(report.problems)} problem{'s' * (len(report.problems) > 1)}" if report.problems else ""
    cached = sum(result.cached for result in report.cells)
    known = f", {cached} of them known from earlier runs" if cached else ""
    together = " together" if report.merged_from else ""
    comma = "," if known and not problems else ""
    return f"{_cells(len(report.cells))}: {counts}{known}{problems}{comma} in {report.seconds:.1f} s{together}"


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
    lines += [f"    {each}" for each in standing_apart(result)]
    if result.artifact:
        lines.append(f"the file: {result.artifact}")
    lines += ["", f"repeat with: {repeat}"]
    return "\n".join(map(one_line, lines))


def standing_apart(result: CellResult) -> list[str]:
    """On a GPU, for each output which of the four sides stand apart, where any does."""
    return [each.in_words for each in result.four_ways if each.apart]


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Each finding with its remedy, errors first."""
    lines = []
    for finding in in_order(findings):
        label = finding.rule if finding.severity is Severity.ERROR else f"{finding.rule} ({finding.severity.value})"
        lines += [f"{label}: {finding.message}", f"    remedy: {finding.remedy}"]
    return lines


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those that fail the cell first."""
    return sorted(findings, key=lambda each: each.severity is not Severity.ERROR)


def particulars(result: CellResult) -> list[str]:
    """What else is known of a result, whatever became of it: notes where nothing else tells them, times, and the log."""
    lines = []
    if not result.status.is_bad:
        lines += [f"{each.rule} ({each.severity.value}): {each.message}" for each in result.findings]
        lines += [f"reason: {result.reason}"] if result.reason else []
        lines += [each.in_words for each in result.four_ways]
    if result.timings:
        times = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in result.timings.items())
        lines.append(f"{result.seconds:.2f} s: {times}")
    # Behind a bar, no line of a log can be taken for a command of GitHub's.
    lines += [f"| {line}" for line in result.log.splitlines()]
    return [f"    {one_line(line)}" for line in lines]


def one_line(text: str) -> str:
    """``text`` without anything that moves a terminal's cursor or begins a line."""
    return "".join(each if each.isprintable() else " " if each.isspace() else "\N{REPLACEMENT CHARACTER}" for each in text)


_ROWS = 12


def _numbers(result: CellResult) -> list[str]:
    """The comparisons as a table: those beyond their limit and those of the first input; the others in one line."""
    first = result.outputs[0].probe
    shown = [each for each in result.outputs if not each.drift <= each.limit or each.probe == first][:_ROWS]
    rows = [("output", "on", "drift", "limit", "error", "noise", "largest value")]
    rows += [
        (o.title, o.probe, f"{o.drift:.3g}", f"{o.limit:g}", f"{o.error:.3g}", f"{o.noise:.3g}", f"{o.max_abs:.3g}")
        for o in shown
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["    " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rest = len(result.outputs) - len(shown)
    return [*lines, f"    … and {rest} more, in the JSON report"] if rest else lines
