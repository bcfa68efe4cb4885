"""The verdict on a pull request: one headline, and a comment with what moved against the base.

All text of reports stands in code, in which GitHub looks for no mention, link or HTML. Whoever opens a pull request can write
its report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.baseline.changes import in_bytes
from onnx_ci.config.reproduce import record_from, repeat_from
from onnx_ci.environment.versions import differing_versions
from onnx_ci.report.causes import SharedFailure, causes_of, in_words, shared_failures
from onnx_ci.report.comparison import Comparison, Moved, Movement
from onnx_ci.report.markup import code_block, code_span, fitting, printable, size_of
from onnx_ci.report.text import finding_lines
from onnx_ci.results.records import Cell, CellResult, Finding, Severity
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict
from onnx_ci.text import count, one_line

COMMENT_LIMIT = 60_000
"""Bytes of a comment; GitHub takes 65,536 characters."""
_LONGEST_FAILURE = 3000
_LONGEST_NAME = 120
_ROOM_FOR_COMMANDS = 8000
"""Bytes of the commands that accept changes; only whole commands are shown."""
_MARKS = {RunVerdict.PASSED: "✅", RunVerdict.FAILED: "❌", RunVerdict.NOTHING_RAN: "⚠️"}
_FAILING = (Movement.BROKE, Movement.FAILS_DIFFERENTLY)


@dataclass(frozen=True, kw_only=True)
class Links:
    """What a comment links to. None of it comes from a report."""

    head: str = ""
    """The page of the run of the pull request."""
    base: str = ""
    """That of the run of the base; empty if there is none."""
    branch: str = ""
    """The name of the base's branch."""


def headline(comparison: Comparison, name: Callable[[str], str] = one_line) -> str:
    """The verdict in one line: ``2 of 240 cells broke: resnet50 at opsets 13-17 on cpu, since model.py:41``.

    Args:
        comparison: the report of the head, compared with that of the base.
        name: makes a name from the report part of the line.
    """
    head = comparison.head
    cells = count(len(head.cells), "cell")
    bad = [result for result in head.cells if result.status.is_bad]
    broke = bad if comparison.base is None else comparison.results(Movement.BROKE)
    before = len(bad) - len(broke)
    if head.verdict is RunVerdict.NOTHING_RAN:
        return "nothing ran: no cell was judged"
    if broke:
        verb = "failed" if comparison.base is None else "broke"
        also = f"; {before} failed before, too" if before else ""
        return f"{len(broke)} of {cells} {verb}: {_first(broke, name)}{also}"
    if head.problems:
        problem = head.problems[0]
        more = f", and {count(len(head.problems) - 1, 'other problem')}" if len(head.problems) > 1 else ""
        return f"{name(_short(problem.source))} cannot be used{more}"
    if head.not_run:
        return f"the run was stopped: {count(len(head.not_run), 'cell')} did not run"
    if differently := comparison.results(Movement.FAILS_DIFFERENTLY):
        verb = "fails" if len(differently) == 1 else "fail"
        alike = before - len(differently)
        also = f"; {alike} failed as on the base" if alike else ""
        return f"{len(differently)} of {cells} {verb} differently than on the base: {_first(differently, name)}{also}"
    if bad:
        return f"{before} of {cells} failed, as on the base: {_first(bad, name)}"
    if fixed := comparison.results(Movement.FIXED):
        return f"{len(fixed)} of {cells} {'is' if len(fixed) == 1 else 'are'} fixed: {_first(fixed, name)}"
    others = ", ".join(f"{number} {status}" for status, number in head.counts.items() if status != "passed")
    number = head.counts.get("passed", 0)
    passed = f"{number} of {cells} passed, {others}" if others else f"{'all ' if number > 1 else ''}{cells} passed"
    changed = len(comparison.results(Movement.CHANGED))
    gone = sum(each.movement is Movement.GONE for each in comparison.moved)
    remarks = [f"{changed} changed" if changed else "", f"{gone} gone" if gone else ""]
    return "; ".join(filter(None, [passed, ", ".join(filter(None, remarks))]))


def _first(results: Sequence[CellResult], name: Callable[[str], str]) -> str:
    """The first of what has one cause: its recipe, its cells, and the line at fault."""
    failures = shared_failures(results)
    group = failures[0].results if failures else [each for each in results if each.cell.recipe == results[0].cell.recipe]
    line = _line_at_fault(group[0])
    since = f", since {name(_short(line))}" if line else ""
    others = len(failures) - 1 if failures else len({each.cell.recipe for each in results}) - 1
    more = f", and {count(others, 'other failure' if failures else 'other recipe')}" if others else ""
    return f"{name(_cells(each.cell for each in group))}{since}{more}"


def _cells(cells: Iterable[Cell]) -> str:
    """Cells of one recipe: ``net at opsets 9-12 on cpu``."""
    cells = tuple(cells)
    return _short(f"{cells[0].recipe} {in_words(cells)}")


def _line_at_fault(result: CellResult) -> str:
    errors = (each for each in result.findings if each.severity is Severity.ERROR)
    return next((str(cause.finding.lines[0]) for cause in causes_of(errors) if cause.finding.lines), "")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def comment(comparison: Comparison, links: Links, limit: int = COMMENT_LIMIT) -> str:
    """The comment in Markdown: the headline, a table of what moved, the failures, and how to accept changes of baselines."""
    head, base = comparison.head, comparison.base
    first = f"### {_MARKS[head.verdict]} ONNX export: {headline(comparison, code_span)}\n"
    moved = _moved_cells(comparison)
    bad = [each for each in head.cells if each.status.is_bad]
    told = bad if base is None else comparison.results(*_FAILING)
    repeat = repeat_from(head, Path.cwd())
    failures = [_failure(each, repeat(each.first.cell)) for each in shared_failures(told)]
    problems = [f"- {code_span(_short(each.source))}: {code_span(each.message[:_LONGEST_FAILURE])}\n" for each in head.problems]
    last = "".join([*_accepting(head), *_compared(comparison, links)])
    room = limit - size_of(first) - size_of(last) - 500  # for the counts of what is left out
    rows = fitting(moved, room // 3)
    shown = fitting([*problems, *failures], room - sum(map(size_of, rows)))
    return "".join(
        [
            first,
            *([_HEADER] if rows else []),
            *rows,
            _left_out(len(moved) - len(rows), "row"),
            *([_CAPTION] if rows else []),
            *(["\n"] if problems else []),
            *shown,
            _left_out(len(problems) + len(failures) - len(shown), "failure"),
            last,
        ]
    )


_HEADER = "\n| | cells | verdict | drift | size | operators | time |\n| --- | --- | --- | ---: | ---: | --- | ---: |\n"
_CAPTION = "\n<sub>base → head. Drift and size are the largest of a row's cells, the time is their sum.</sub>\n"


def _left_out(number: int, what: str) -> str:
    return f"\n… and {number} more {what}{'' if number == 1 else 's'}, in the report.\n" if number > 0 else ""


def _moved_cells(comparison: Comparison) -> list[str]:
    """The rows of the table."""
    groups: dict[object, list[Moved]] = {}
    for each in comparison.moved:
        statuses = each.before and each.before.status, each.after and each.after.status
        kinds = frozenset(change.kind for change in each.changes if each.movement is Movement.CHANGED)
        groups.setdefault((each.movement, each.cell.source, each.cell.recipe, statuses, kinds), []).append(each)
    return [_row(each, comparison.base is not None) for each in groups.values()]


def _row(group: Sequence[Moved], has_base: bool) -> str:
    """Cells of one recipe that moved alike, as a row."""
    before = [each.before for each in group if each.before is not None]
    after = [each.after for each in group if each.after is not None]
    first = group[0]
    is_told = first.movement is Movement.CHANGED  # what fails is told below
    changed = [each.words for each in first.changes if is_told and each.kind not in ("drift", "size", "operators")]
    cells = [code_span(_cells(each.cell for each in group)), *map(_words, changed)]
    values = [
        first.movement.value if has_base else "failed",
        "<br>".join(cells),
        _pair(*(_status(each) for each in (before, after))),
        _pair(*(_drift(each) for each in (before, after))),
        _pair(*(_size(each) for each in (before, after))),
        _operators(first),
        _pair(*(_time(each) for each in (before, after))),
    ]
    return f"| {' | '.join(values)} |\n"


def _words(text: str) -> str:
    return code_span(_short(text))


def _pair(before: str, after: str) -> str:
    return after if before in ("", after) else f"{before} → {after or '—'}"


def _status(results: Sequence[CellResult]) -> str:
    return results[0].status.value if results else ""


def _drift(results: Sequence[CellResult]) -> str:
    found = [each.worst.drift for each in results if each.worst is not None]
    return f"{max(found):.3g}" if found else ""


def _size(results: Sequence[CellResult]) -> str:
    found = [each.facts.file_bytes for each in results if each.facts is not None]
    return in_bytes(max(found)) if found else ""


def _time(results: Sequence[CellResult]) -> str:
    return f"{sum(each.seconds for each in results):.1f} s" if results else ""


def _operators(moved: Moved) -> str:
    words = [change.words for change in moved.changes if change.kind == "operators"]
    if words:
        return _words(words[0])
    facts = [each.facts for each in (moved.before, moved.after) if each is not None and each.facts is not None]
    return str(sum(facts[-1].operators.values())) if facts else ""


def _failure(failure: SharedFailure, repeat: str) -> str:
    """One failure in full, folded."""
    errors = (each for each in failure.first.findings if each.severity is Severity.ERROR)
    text = "\n".join(map(one_line, finding_lines(errors)))
    shown = text if len(text) <= _LONGEST_FAILURE else f"{text[: _LONGEST_FAILURE - 1]}…"
    block = "\n".join(code_block(f"{shown}\n\nrepeat with: {one_line(repeat)}"))
    return f"\n{code_span(_short(failure.title))}\n\n{block}\n"


def _accepting(head: RunReport) -> list[str]:
    """How to accept what changed since the baselines."""
    changed = [each.cell for each in head.cells if any(map(_is_to_accept, each.findings))]
    if not changed:
        return []
    commands = fitting([f"{one_line(each)}\n" for each in record_from(head, changed, Path.cwd())], _ROOM_FOR_COMMANDS)
    many = "s" if len(commands) > 1 else ""
    lines = [f"To accept what changed since the baselines, run the command{many}, review the difference and commit it:", ""]
    return ["\n", *(f"{line}\n" for line in [*lines, *code_block("".join(commands).rstrip("\n"), "sh")])]


def _is_to_accept(finding: Finding) -> bool:
    return finding.baseline_change is not None and finding.severity is not Severity.NOTE


def _compared(comparison: Comparison, links: Links) -> Iterable[str]:
    """With what the head was compared."""
    this = f"[This run]({links.head})" if links.head else "This run"
    if comparison.base is None:
        yield f"\n<sub>{this} is compared with nothing: there is no report of the base branch.</sub>\n"
        return
    that = f"[the last one]({links.base})" if links.base else "the last one"
    branch = f" on {code_span(links.branch)}" if links.branch else ""
    as_before = f" {count(comparison.as_before, 'cell')} failed as before." if comparison.as_before else ""
    versions = differing_versions(comparison.base.environment, comparison.head.environment)
    other = f" The packages differ: {code_span(versions[:_LONGEST_FAILURE])}." if versions else ""
    settings = ", ".join(f"{each.name} {each.before or 'none'} → {each.after or 'none'}" for each in comparison.settings)
    checked = f" The settings differ: {code_span(settings[:_LONGEST_FAILURE])}." if settings else ""
    yield f"\n<sub>{this} is compared with {that}{branch}.{as_before}{checked}{other}</sub>\n"


_COLOURS = {RunVerdict.PASSED: "brightgreen", RunVerdict.FAILED: "red", RunVerdict.NOTHING_RAN: "lightgrey"}


def badge(report: RunReport) -> dict[str, str | int]:
    """The verdict as a badge, in the JSON that the endpoint badge of shields.io reads."""
    bad = sum(result.status.is_bad for result in report.cells)
    cells = count(len(report.cells), "cell")
    message = {
        RunVerdict.PASSED: f"{report.counts.get('passed', 0)} of {cells} passed",
        RunVerdict.FAILED: f"{bad} of {cells} failed" if bad else "failed",
        RunVerdict.NOTHING_RAN: "nothing ran",
    }[report.verdict]
    return {"schemaVersion": 1, "label": "ONNX export", "message": printable(message), "color": _COLOURS[report.verdict]}
