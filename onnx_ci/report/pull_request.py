"""The verdict on a pull request as a headline and a comment that shows what moved against the base.

Whoever opens a pull request can write its report. So all text of reports stands in code, where GitHub looks for no mention,
link or HTML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.baseline.changes import in_bytes
from onnx_ci.config.reproduce import record_from, repeat_from
from onnx_ci.report.causes import SharedFailure, causes_of, describe_cells, shared_failures
from onnx_ci.report.comparison import CellChange, Movement, RunComparison, describe_verdict
from onnx_ci.report.findings import describe_failure
from onnx_ci.report.markup import code_block, code_span, fitting, size_of
from onnx_ci.results.records import Cell, CellResult, Severity
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict
from onnx_ci.text import count, one_line

COMMENT_LIMIT = 60_000
"""Bytes of a comment; GitHub takes 65,536 characters."""
_LONGEST_MESSAGE = 3000
_LONGEST_NAME = 120
_ROOM_FOR_COMMANDS = 8000
"""Bytes of the commands that accept changes; only whole commands are shown."""
_MARKS = {RunVerdict.PASSED: "✅", RunVerdict.FAILED: "❌", RunVerdict.NOTHING_RAN: "⚠️"}


@dataclass(frozen=True, kw_only=True)
class Links:
    """What a comment links to. None of it comes from a report."""

    head: str = ""
    """The page of the run of the pull request."""
    base: str = ""
    """That of the run of the base; empty if there is none."""
    branch: str = ""
    """The name of the base's branch."""


def headline(comparison: RunComparison, name: Callable[[str], str] = one_line) -> str:
    """The verdict in one line: ``2 of 240 cells broke: net at opset 13 on cpu, since model.py:41``; ``name`` formats names."""
    head, has_base = comparison.after, comparison.before is not None
    cells = count(len(head.cells), "cell")
    failing = [result for result in head.cells if result.status.is_bad]
    broken = comparison.results(Movement.BROKE) if has_base else failing
    failed_before = len(failing) - len(broken)
    if head.verdict is RunVerdict.NOTHING_RAN:
        return "nothing ran: no cell was judged"
    if broken:
        also = f"; {failed_before} failed before, too" if failed_before else ""
        return f"{len(broken)} of {cells} {'broke' if has_base else 'failed'}: {_first(broken, name)}{also}"
    if head.problems:
        problem = head.problems[0]
        more = f", and {count(len(head.problems) - 1, 'other problem')}" if len(head.problems) > 1 else ""
        return f"{name(_short(f'{problem.source}: {problem.message}'))}{more}"
    if head.not_run:
        return f"{count(len(head.not_run), 'cell')} did not run: the run was stopped, or a job is missing"
    if differently := comparison.results(Movement.FAILS_DIFFERENTLY):
        verb = "fails" if len(differently) == 1 else "fail"
        alike = failed_before - len(differently)
        also = f"; {alike} failed as on the base" if alike else ""
        return f"{len(differently)} of {cells} {verb} differently than on the base: {_first(differently, name)}{also}"
    if failing:
        return f"{failed_before} of {cells} failed, as on the base: {_first(failing, name)}"
    if fixed := comparison.results(Movement.FIXED):
        return f"{len(fixed)} of {cells} {'is' if len(fixed) == 1 else 'are'} fixed: {_first(fixed, name)}"
    return _passing(comparison)


def _passing(comparison: RunComparison) -> str:
    """The headline where no cell fails or is fixed: ``8 of 9 cells passed, 1 skipped; 2 changed``."""
    head = comparison.after
    cells, passed = count(len(head.cells), "cell"), head.counts.get("passed", 0)
    others = ", ".join(f"{number} {status}" for status, number in head.counts.items() if status != "passed")
    first = f"{passed} of {cells} passed, {others}" if others else f"{'all ' if passed > 1 else ''}{cells} passed"
    movements = Counter(each.movement for each in comparison.news)
    words = {Movement.WARNS: "with a new warning", Movement.CHANGED: "changed", Movement.GONE: "gone"}
    moved = ", ".join(f"{movements[each]} {said}" for each, said in words.items() if each in movements)
    return "; ".join(filter(None, [first, moved]))


def _first(results: Sequence[CellResult], name: Callable[[str], str]) -> str:
    """The first failure, or the first recipe if nothing fails: its cells, the line at fault, and how many others there are."""
    failures = shared_failures(results)
    group = failures[0].results if failures else [each for each in results if each.cell.recipe == results[0].cell.recipe]
    errors = causes_of(each for each in group[0].findings if each.severity is Severity.ERROR)
    line = next((str(cause.finding.lines[0]) for cause in errors if cause.finding.lines), "")
    since = f", since {name(_short(line))}" if line else ""
    others = len(failures) - 1 if failures else len({each.cell.recipe for each in results}) - 1
    more = f", and {count(others, 'other failure' if failures else 'other recipe')}" if others else ""
    return f"{name(_cells(each.cell for each in group))}{since}{more}"


def _cells(cells: Iterable[Cell]) -> str:
    """Cells of one recipe: ``net at opsets 9-12 on cpu``."""
    cells = tuple(cells)
    return _short(f"{cells[0].recipe} {describe_cells(cells)}")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def comment(comparison: RunComparison, links: Links, limit: int = COMMENT_LIMIT) -> str:
    """The comment in Markdown: the headline, a table of what moved, the failures, and how to accept changes of baselines."""
    head = comparison.after
    first = f"### {_MARKS[head.verdict]} ONNX export: {headline(comparison, code_span)}\n"
    moved = _moved_cells(comparison)
    failing = comparison.results(Movement.BROKE, Movement.FAILS_DIFFERENTLY)
    repeat = repeat_from(head, Path.cwd())
    failures = [_failure(each, repeat(each.first.cell)) for each in shared_failures(failing)]
    problems = [f"- {code_span(_short(each.source))}: {code_span(each.message[:_LONGEST_MESSAGE])}\n" for each in head.problems]
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


def _moved_cells(comparison: RunComparison) -> list[str]:
    """The rows of the table: cells of one recipe that moved alike."""
    groups: dict[object, list[CellChange]] = {}
    for moved in comparison.news:
        statuses = tuple(result and describe_verdict(result) for result in (moved.before, moved.after))
        kinds = moved.kinds if moved.movement in (Movement.CHANGED, Movement.WARNS) else None
        key = moved.movement, moved.cell.source, moved.cell.recipe, statuses, kinds
        groups.setdefault(key, []).append(moved)
    return [_row(group, has_base=comparison.before is not None) for group in groups.values()]


def _row(group: Sequence[CellChange], *, has_base: bool) -> str:
    before = [moved.before for moved in group if moved.before is not None]
    after = [moved.after for moved in group if moved.after is not None]
    first = group[0]
    is_changed = first.movement in (Movement.CHANGED, Movement.WARNS)  # what fails is shown below
    words = [words for kind, words in first.unmeasured if is_changed and kind != "operators"]
    cells = [code_span(_cells(moved.cell for moved in group)), *map(_words, words)]
    values = [
        first.movement.value if has_base and first.movement else "failed",
        "<br>".join(cells),
        _pair(*(describe_verdict(each[0]) if each else "" for each in (before, after))),
        _pair(*(_largest((one.worst.drift for one in each if one.worst), "{:.3g}".format) for each in (before, after))),
        _pair(*(_largest((one.facts.file_bytes for one in each if one.facts), in_bytes) for each in (before, after))),
        _operators(first),
        _pair(*(f"{sum(one.seconds for one in each):.1f} s" if each else "" for each in (before, after))),
    ]
    return f"| {' | '.join(values)} |\n"


def _words(text: str) -> str:
    return code_span(_short(text))


def _pair(before: str, after: str) -> str:
    """``1.5 → 9``; one value where both are the same or only the later one is known."""
    return after if before in ("", after) else f"{before} → {after or '—'}"


def _largest(values: Iterable[float], show: Callable[[float], str]) -> str:
    largest = max(values, default=None)
    return "" if largest is None else show(largest)


def _operators(moved: CellChange) -> str:
    """The operators that were added and removed, or how many there are."""
    words = [words for kind, words in moved.unmeasured if kind == "operators"]
    if words:
        return _words(words[0])
    facts = [each.facts for each in (moved.before, moved.after) if each is not None and each.facts is not None]
    return str(sum(facts[-1].operators.values())) if facts else ""


def _failure(failure: SharedFailure, repeat: str) -> str:
    """One failure in full: its causes and the command that repeats it."""
    block = "\n".join(code_block(describe_failure(failure, repeat)))
    return f"\n{code_span(_short(failure.title))}\n\n{block}\n"


def _accepting(head: RunReport) -> list[str]:
    """The commands that accept what changed since the baselines."""
    changed = [
        result.cell
        for result in head.cells
        if any(each.baseline_change is not None and each.severity is not Severity.NOTE for each in result.findings)
    ]
    if not changed:
        return []
    commands = fitting([f"{one_line(each)}\n" for each in record_from(head, changed, Path.cwd())], _ROOM_FOR_COMMANDS)
    many = "s" if len(commands) > 1 else ""
    lines = [f"To accept what changed since the baselines, run the command{many}, review the difference and commit it:", ""]
    return ["\n", *(f"{line}\n" for line in [*lines, *code_block("".join(commands).rstrip("\n"), "sh")])]


def _compared(comparison: RunComparison, links: Links) -> Iterable[str]:
    """What the head was compared with, and what is different for the run as a whole."""
    this = f"[This run]({links.head})" if links.head else "This run"
    if comparison.before is None:
        yield f"\n<sub>{this} is compared with nothing: there is no report of the base branch.</sub>\n"
        return
    that = f"[the last one]({links.base})" if links.base else "the last one"
    branch = f" on {code_span(links.branch)}" if links.branch else ""
    sentences = [f"{this} is compared with {that}{branch}."]
    if comparison.as_before:
        sentences.append(f"{count(comparison.as_before, 'cell')} failed as before.")
    if totals := comparison.totals:
        words = (f"{each.title} {each.before} → {each.after}" + f" ({each.change})" * bool(each.change) for each in totals)
        sentences.append(f"Over the cells that both have: {'; '.join(words)}.")
    if comparison.settings:
        settings = ", ".join(comparison.settings)
        sentences.append(f"The settings differ: {code_span(settings[:_LONGEST_MESSAGE])}.")
    if comparison.versions:
        sentences.append(f"The packages differ: {code_span(comparison.versions[:_LONGEST_MESSAGE])}.")
    yield f"\n<sub>{' '.join(sentences)}</sub>\n"
