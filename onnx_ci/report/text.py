"""The report as plain text for a terminal, and the sentences about results that every rendering shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from onnx_ci.environment.versions import describe_untested
from onnx_ci.report.causes import (
    SharedFinding,
    baseline_changes,
    by_remedy,
    causes_of,
    describe_cells,
    shared_notes,
    shared_warnings,
)
from onnx_ci.report.environments import describe_failing_environments, differences
from onnx_ci.report.findings import describe_finding, finding_lines, label, wrapped
from onnx_ci.report.grid import NOT_RUN, WARNED, describe_unit, format_result, grid
from onnx_ci.results.records import Cell, CellResult, Exclusion, Finding, NodeStep, Severity, Status
from onnx_ci.results.rules import RULES
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict
from onnx_ci.text import count, listed, listed_shortly, one_line

Style = Callable[[str, Status | None], str]
"""Styles a text for a status, or as a heading if the status is ``None``."""

COLOURS = {Status.PASSED: "green", Status.SKIPPED: "yellow", Status.XFAILED: "yellow"}
"""The colour of a status in a terminal; other statuses are red."""


def plain(text: str, status: Status | None) -> str:
    """A style without colour."""
    return text


def grid_lines(results: Sequence[CellResult], style: Style = plain) -> list[str]:
    """The grid, followed by its legend."""
    lines = table_lines(results, format_result, style)
    legend = []
    if any(result.status is Status.PASSED and result.outputs for result in results):
        legend.append(f"a number is the largest drift of a passed cell, in units of {describe_unit(results)}")
    if any(result.warnings for result in results):
        legend.append(f"{WARNED} passed with a warning")
    if any(None in row.results for row in grid(results).rows):
        legend.append(f"{NOT_RUN} did not run")
    return [*lines, *(["(" + "; ".join(legend) + ")"] if legend else [])]


def table_lines(results: Sequence[CellResult], word_of: Callable[[CellResult | None], str], style: Style = plain) -> list[str]:
    """The grid, with a word in each place."""
    table = grid(results)
    if not table.rows:
        return []
    words = [[word_of(result) for result in row.results] for row in table.rows]
    titles = [one_line(row.title) for row in table.rows]
    first = max(map(len, ["opset", *titles]))
    widths = [max(len(str(opset)), *(len(line[i]) for line in words)) for i, opset in enumerate(table.opsets)]
    lines = [
        style("  ".join(["opset".ljust(first), *(str(o).rjust(w) for o, w in zip(table.opsets, widths, strict=True))]), None)
    ]
    for row, title, line in zip(table.rows, titles, words, strict=True):
        places = [
            style(text.rjust(width), result.status if result else None) if result else text.rjust(width)
            for text, width, result in zip(line, widths, row.results, strict=True)
        ]
        lines.append("  ".join([title.ljust(first), *places]))
    return lines


def summary_lines(report: RunReport, style: Style = plain) -> list[str]:
    """The grid, remarks on the run, and the conclusion."""
    since = [
        f"since the baseline: {each.place}: {each.finding.message}"
        + ("" if each.finding.severity is Severity.ERROR else f" ({each.finding.severity.value})")
        for each in baseline_changes(report.cells)
    ]
    notes = _lines_of("note", (each for each in shared_notes(report.cells) if each.finding.baseline_change is None))
    lines = [*describe_run(report), *notes, *warning_lines(report.cells), *since]
    return [*grid_lines(report.cells, style), *map(one_line, lines), *conclusion_lines(report, style)]


def warning_lines(results: Iterable[CellResult]) -> list[str]:
    """Each warning once, and each remedy."""
    return _lines_of("warning", shared_warnings(results))


def _lines_of(kind: str, findings: Iterable[SharedFinding]) -> list[str]:
    """A line for each finding and each remedy; what is said of several lines of code is said once."""

    def words(shared: SharedFinding) -> tuple[str, ...]:
        return shared.place, shared.finding.rule, shared.finding.message, shared.finding.remedy

    alike: dict[tuple[str, ...], list[SharedFinding]] = {}
    for each in findings:
        alike.setdefault(words(each), []).append(each)
    lines = []
    for shared, remedy in by_remedy(first for first, *_ in alike.values()):
        said = describe_finding(shared.finding)
        if others := [str(each.finding.lines[0]) for each in alike[words(shared)][1:] if each.finding.lines]:
            said = f"{said.removesuffix('.')}; also at {listed_shortly(others)}"
        lines += wrapped(f"{kind}: {shared.place}: {shared.finding.rule}: {said}")
        lines += wrapped(f"remedy: {remedy}", "    ") if remedy else []
    return lines


def describe_run(report: RunReport) -> list[str]:
    """How merged runs differ and what that breaks, why cells were skipped or failed as expected, and what is left out."""
    lines = [f"merged from {len(report.merged_from)} runs"] if report.merged_from else []
    lines += [f"merged runs differ: {each}" for each in differences(report.merged_from)]
    return [
        *lines,
        *filter(None, [describe_untested(report.environment)]),
        *describe_failing_environments(report),
        *describe_reasons(report.cells),
        *(f"left out {each}" for each in describe_exclusions(report.exclusions)),
    ]


def describe_exclusions(exclusions: Iterable[Exclusion]) -> list[str]:
    """``net at opset 10: the recipe declares opsets 11-17``: a line for each reason, with the first recipes left out for it."""
    recipes: dict[str, list[str]] = {}
    for exclusion in exclusions:
        recipes.setdefault(exclusion.reason, []).append(exclusion.recipe)
    return [f"{listed_shortly(names)} at {reason}" for reason, names in recipes.items()]


def describe_reasons(results: Iterable[CellResult]) -> list[str]:
    """``skipped 9 cells: no cuda``: why cells were skipped or failed as expected."""
    counts = Counter((each.status, each.reason) for each in results if each.status in (Status.SKIPPED, Status.XFAILED))
    return [f"{status} {count(number, 'cell')}: {reason}" for (status, reason), number in counts.items()]


def conclusion_lines(report: RunReport, style: Style = plain) -> list[str]:
    """Problems, what did not run, and the counts."""
    lines = [style(one_line(f"{problem.source}: {problem.message}"), Status.ERROR) for problem in report.problems]
    if report.not_run:
        message = f"did not run: {count(len(report.not_run), 'cell')}, first {report.not_run[0]}"
        lines.append(style(one_line(message), Status.ERROR))
    lines.append(style(format_counts(report), Status.PASSED if report.verdict is RunVerdict.PASSED else Status.FAILED))
    return lines


def describe_missing_device(report: RunReport) -> str:
    """``a required device is missing: no cuda: …``."""
    return one_line(f"a required device is missing: {report.missing_device}; run onnx-ci doctor for details")


def format_counts(report: RunReport) -> str:
    """``36 cells: 36 passed, 27 of them cached, in 41.3 s``; of a run that did not end, ``9 of 36 cells: 9 passed in 5 s``."""
    warned = f" ({report.warned} with a warning)" if report.warned else ""
    words = (f"{number} {status}{warned if status == Status.PASSED else ''}" for status, number in report.counts.items())
    counts = ", ".join(words) or "none ran"
    problems = f", {count(len(report.problems), 'problem')}" if report.problems else ""
    cached = sum(result.cached for result in report.cells)
    from_cache = f", {cached} of them cached" if cached else ""
    together = " together" if report.merged_from else ""
    comma = "," if from_cache and not problems else ""
    ended = f"{len(report.cells)} of " if report.not_run else ""
    cells = ended + count(len(report.cells) + len(report.not_run), "cell")
    effort = report.settings.get("effort")
    quick = ", on the examples alone (effort=quick)" if effort is not None and effort.value == "quick" else ""
    return f"{cells}: {counts}{from_cache}{problems}{comma} in {report.seconds:.1f} s{together}{quick}"


def format_duration(seconds: float) -> str:
    """``250 ms``, ``3.2 s``."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def format_cells(results: Sequence[CellResult]) -> str:
    """``onnx_recipes.py::net  opsets 9-17 on cpu``: the cells of one recipe."""
    cell = results[0].cell
    return one_line(f"{cell.source}::{cell.recipe}  {describe_cells((result.cell for result in results), before='')}")


def describe_outcome(*results: CellResult) -> str:
    """``passed (drift 3.7; 1 note; cached)``, ``failed (baked-value at net.py:26)``.

    Of several cells of one recipe that have the same status, ``passed (drift at most 3.7; 1 note; 4 cached)``.
    """
    first, *others = results
    drifts = [result.worst.drift for result in results if result.worst is not None and result.status is Status.PASSED]
    drift = ""
    if drifts and not others:
        drift = f"drift {format_result(first).removesuffix(WARNED)}"
    elif drifts:
        largest = max(drifts)
        drift = f"drift at most {largest:.2g}" if largest >= 0.1 or not largest else "drift below 0.1"
    broken = describe_first_cause(first) if first.status.is_bad else ""
    details = [broken, drift]
    if warnings := shared_warnings(results):
        details.append(count(len(warnings), "warning"))
    if notes := shared_notes(each for each in results if not each.status.is_bad):
        details.append(count(len(notes), "note"))
    if cached := sum(result.cached for result in results):
        details.append("cached" if cached == len(results) else f"{cached} cached")
    said = "; ".join(filter(None, details))
    return one_line(f"{first.status.value} ({said})" if said else first.status.value)


def describe_first_cause(result: CellResult) -> str:
    """``baked-value at net.py:26 and 1 more``: the first cause of a failure."""
    causes = causes_of(each for each in result.findings if each.severity is Severity.ERROR)
    if not causes:
        return ""
    first = causes[0].finding
    place = f" at {first.lines[0]}" if first.lines else ""
    return one_line(first.rule + place + (f" and {len(causes) - 1} more" if len(causes) > 1 else ""))


def describe_result(
    result: CellResult, repeat: str, *, about: Callable[[str, Cell], str] | None = None, has_notes: bool = True
) -> str:
    """A result in full: each cause with its remedy, the numbers, and the command that repeats the cell.

    Args:
        result: the result.
        repeat: the command.
        about: returns a command about the cell by its name: ``why``, which shows the nodes around a fault, if these are known;
            ``versions``, which tries other versions of packages, if nodes compute something else although no number was frozen;
            and ``fix``, which tries remedies, if the file is wrong.
        has_notes: whether to show notes that belong to no error. Otherwise :func:`summary_lines` shows them, for all cells.
    """
    causes = (each for each in causes_of(result.findings) if has_notes or each.finding.severity is not Severity.NOTE)
    lines = finding_lines(each for cause in causes for each in (cause.finding, *cause.consequences))
    if result.reason:
        lines.append(f"expected: {result.reason}")
    if result.outputs:
        lines += ["", *_numbers(result)]
    lines += [f"    {each.in_words}" for each in result.cpu_vs_gpu if each.apart]
    if result.artifact:
        lines.append(f"the file: {result.artifact}")
    lines += ["", f"repeat with: {repeat}"]
    if about is not None:
        if any(each.steps for each in result.findings):
            lines.append(f"node by node: {about('why', result.cell)}")
        if any(map(_is_wrong_operator, result.findings)):
            lines.append(f"try other versions: {about('versions', result.cell)}")
        phases = {RULES[each.rule].phase for each in result.findings if each.severity is Severity.ERROR}
        if result.status is Status.FAILED and phases - {"baseline", "verdict"}:  # not only other than recorded or expected
            lines.append(f"try remedies: {about('fix', result.cell)}")
    return "\n".join(map(one_line, lines))


def _is_wrong_operator(finding: Finding) -> bool:
    """Whether nodes compute something else than the model, on the example, too."""
    is_error = finding.severity is Severity.ERROR and finding.rule == "numeric-drift"
    return is_error and any(each.nodes for each in finding.culprits) and not any(each.frozen for each in finding.culprits)


def step_lines(steps: Sequence[NodeStep]) -> list[str]:
    """The nodes around a fault as a table in which those at fault are marked."""
    return _table(step_rows(steps))


def step_rows(steps: Sequence[NodeStep]) -> list[tuple[str, ...]]:
    """The rows of that table, the first with the titles of its columns."""
    heads = ("", "node", "line", "error ÷ rounding", "at", "file", "model")
    rows: list[tuple[str, ...]] = [heads]
    for step in steps:
        values = ("", "", "", "")
        if not step.can_run:
            values = ("does not run", "", "", "")
        elif step.drift is not None and step.file_value is not None and step.model_value is not None:
            at = str(list(step.index or ()))
            values = (f"{step.drift:.3g}", at, f"{step.file_value:.6g}", f"{step.model_value:.6g}")
        rows.append((">" if step.is_culprit else "", step.node, str(step.source or ""), *values))
    return rows


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of words, indented and aligned in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["    " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def describe_inputs_compared(result: CellResult) -> str:
    """``14 inputs; nothing is proved on 'floats large' (too noisy)``; empty if none was compared.

    On a large example: ``2 inputs; the example is large, so not on 'floats zero' and 'floats large'``.
    """
    vain = result.unproven_inputs
    proven = {each.probe for each in result.outputs} - vain.keys()
    of_reason = [
        f"{listed_shortly([repr(probe) for probe, each in vain.items() if each == reason])} ({reason})"
        for reason in dict.fromkeys(vain.values())
    ]
    in_vain = [f"nothing is proved on {listed(of_reason)}"] if vain else []
    if result.left_out:
        in_vain.append(f"the example is large, so not on {listed(map(repr, result.left_out))}")
    return "; ".join([count(len(proven), "input"), *in_vain]) if result.outputs else ""


def detail_lines(result: CellResult) -> list[str]:
    """What else is known about a result: its findings if it does not fail, times, and the log."""
    lines = []
    if not result.status.is_bad:
        lines += [line for each in result.findings for line in wrapped(f"{label(each)}: {describe_finding(each)}")]
        lines += [f"reason: {result.reason}"] if result.reason else []
        lines += [each.in_words for each in result.cpu_vs_gpu]
        lines += [f"input {each.in_words}" for each in result.inputs]
    lines += [f"compared on {compared}"] if (compared := describe_inputs_compared(result)) else []
    if result.why_run:
        lines.append(f"ran because: {result.why_run}")
    if result.timings:
        times = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in result.timings.items())
        lines.append(f"{result.seconds:.2f} s: {times}")
    # After a bar, GitHub takes no line of a log for a command.
    lines += [f"| {line}" for line in result.log.splitlines()]
    return [f"    {one_line(line)}" for line in lines]


_ROWS = 12


def _numbers(result: CellResult) -> list[str]:
    """The comparisons of the first input as a table and, if the cell fails, those over their limit; the others are counted."""
    first, is_bad = result.outputs[0].probe, result.status.is_bad
    shown = [each for each in result.outputs if (is_bad and not each.drift <= each.limit) or each.probe == first][:_ROWS]
    rows = [("output", "on", "drift", "limit", "error", "noise", "largest value")]
    rows += [
        (o.title, o.input_title, f"{o.drift:.3g}", f"{o.limit:g}", f"{o.error:.3g}", f"{o.noise:.3g}", f"{o.max_abs:.3g}")
        for o in shown
    ]
    lines = _table(rows)
    similarities = [(each, each.similarity) for each in shown if each.similarity is not None]
    lines += [f"    {each.title} on {each.input_title}: {like.in_words}" for each, like in similarities if like.in_words]
    rest = len(result.outputs) - len(shown)
    return [*lines, f"    … and {rest} more, in the JSON report"] if rest else lines
