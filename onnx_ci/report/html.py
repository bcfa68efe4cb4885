"""The report as one HTML page that loads nothing: the verdict, the grid, the failures, the times and every cell.

This module prepares the values, and the templates beside it show them. Without JavaScript, only the filter and the details of
passed cells are missing: a large project has thousands of these, so they are compressed and expanded on demand.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from onnx_ci.baseline.changes import in_bytes
from onnx_ci.report.causes import SharedFailure, baseline_changes, by_remedy, causes_of, common_causes, shared_failures
from onnx_ci.report.comparison import Movement, RunComparison, changed_rows, describe_verdict
from onnx_ci.report.environments import describe_failing_environments, gathered
from onnx_ci.report.findings import code_of, describe_finding, describe_place
from onnx_ci.report.grid import Grid, Row, grid
from onnx_ci.report.templates import asset, fill, shade
from onnx_ci.report.text import describe_first_cause, describe_inputs_compared, describe_reasons, format_counts, format_duration
from onnx_ci.results.records import Cell, CellResult, Severity
from onnx_ci.results.run_report import RunReport
from onnx_ci.text import count, listed

_OPEN = 3
"""Up to this many causes of failures are open when the page loads; more would hide each other."""

_FEW = 20
"""Fewer cells than this need no filter. A link to the cells that break a rule still shows it."""

_BUILT = 100
"""The details of this many failures are in the page itself, for paper and for readers without JavaScript."""
_BUILT_LENGTH = 300_000
"""The details of all cells are in the page itself if they have at most this many characters together: a small page needs no
JavaScript."""

_EXCERPT = 240
_SLOWEST = 10
_LARGE = 40
"""From this many rows on, the rows of the grid are in groups."""
_VERSIONS = ("torch", "onnx", "onnxruntime", "onnxruntime-gpu", "onnx-ci", "python")
"""What the page begins with; all versions are in its section on versions and settings."""


def render(
    report: RunReport,
    repeat: Callable[[Cell], str],
    *,
    since: RunComparison | None = None,
    since_name: str = "",
    code_in: Path | None = None,
) -> str:
    """The whole report as a page. Text from outside is shown as text, never as markup, and the page may load nothing.

    ``repeat`` gives the command that repeats a cell. With ``code_in``, which files in findings are relative to, the code around
    their lines is shown; with ``since``, what moved since the run ``since_name``.
    """
    taken: set[str] = set()
    anchors = {each.cell: _anchor(f"cell-{each.cell.recipe}-{each.cell.label}", taken) for each in report.cells}
    causes = common_causes(shared_failures(report.cells))
    failures = [failure for cause in causes for failure in cause]
    first_cells = [failure.first.cell for failure in failures]
    open_cells = [cause[0].first.cell for cause in causes] if len(causes) <= _OPEN else []
    # For the first cell of each recipe that fails, the anchors and labels of its other cells with the same cause.
    alike = {each.first.cell: [(anchors[other.cell], other.cell.label) for other in each.results[1:]] for each in failures}
    details = {
        result.cell: _details(
            result,
            command=repeat(result.cell),
            alike=alike.get(result.cell, ()),
            before=since.earlier.get(result.cell) if since else None,
            code_in=code_in,
        )
        for result in report.cells
    }
    built = set(details)
    if sum(map(len, details.values())) > _BUILT_LENGTH:
        failing = (result.cell for result in report.cells if result.status.is_bad)
        built = set(list(dict.fromkeys([*first_cells, *failing]))[:_BUILT])
    entries = {
        result.cell: {
            "anchor": anchors[result.cell],
            "result": result,
            "about": _about(result),
            "details": details[result.cell] if result.cell in built else "",
            "is_open": result.cell in open_cells,
        }
        for result in report.cells
    }
    table = grid(report.cells)
    packed = {anchors[cell]: text for cell, text in details.items() if cell not in built}
    page = fill(
        "page.html.jinja",
        verdict=report.verdict,
        counts=format_counts(report),
        run=_run(report),
        statuses={**report.counts, **({"warned": report.warned} if report.warned else {})},
        skip="failures" if causes else "grid",
        is_small=len(report.cells) < _FEW,
        sections={
            "problems": report.problems,
            "not-run": report.not_run,
            "failures": _causes(causes, {cell: entries.pop(cell) for cell in first_cells}),
            "since": _since(since, since_name, anchors) if since else None,
            "grid": _grid(table, report, anchors, since),
            "baseline": baseline_changes(report.cells),
            "rules": _rules(report.cells),
            "times": _times(report.cells, anchors),
            "setup": report if report.environment or report.settings else None,
            "cells": list(entries.values()),
        },
        style=asset("page.css"),
        script=asset("page.js"),
        bodies=base64.b64encode(zlib.compress(json.dumps(packed).encode(), 9)).decode(),
    )
    return str(page)


def _anchor(name: str, taken: set[str]) -> str:
    """An id made from a name, which can be any text. It is added to ``taken``."""
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")
    anchor, number = plain, 1
    while anchor in taken:
        number += 1
        anchor = f"{plain}-{number}"
    taken.add(anchor)
    return anchor


def _run(report: RunReport) -> dict[str, str]:
    """What the run is about: the commit, the branch and the versions, as far as they are known."""
    revisions = [report.revision] if report.revision else [part.revision for part in report.merged_from]
    commits_and_branches = gathered(
        {"commit": each.short + " with uncommitted changes" * each.is_modified, "branch": each.branch or "not known"}
        for each in revisions
        if each is not None
    )
    versions = (f"{name} {report.environment[name]}" for name in _VERSIONS if name in report.environment)
    named = {name: listed(values) for name, values in commits_and_branches.items() if values != ["not known"]}
    return {**named, "versions": ", ".join(versions)}


def _causes(causes: Sequence[Sequence[SharedFailure]], entries: Mapping[Cell, dict[str, object]]) -> list[dict[str, object]]:
    """The causes, each with its anchor, its title, and the first cell of each recipe."""
    taken: set[str] = set()
    shown: list[dict[str, object]] = []
    for cause in causes:
        result = cause[0].first
        first = next((each.finding for each in causes_of(result.findings)), None)
        rule = result.status.value if first is None else first.rule
        place = "" if first is None else describe_place(first)
        shown.append(
            {
                "anchor": _anchor(f"cause-{rule}-{result.cell.recipe}", taken),
                "title": place or describe_first_cause(result) or result.status.value,
                "code": first.lines[0].text if first is not None and place else "",
                "remedy": first.remedy if first is not None and not entries[result.cell]["is_open"] else None,
                "recipes": [(failure.first.cell.recipe, failure.cells) for failure in cause],
                "entries": [entries[failure.first.cell] for failure in cause],
            }
        )
    return shown


def _since(since: RunComparison, name: str, anchors: Mapping[Cell, str]) -> dict[str, object]:
    revision = since.before.revision if since.before else None
    movements = Counter(each.movement for each in since.moved if each.before and each.after)
    return {
        "name": name if revision is None else f"{name} ({revision.in_words})",
        "moved": sum(movements.values()),
        "movements": ", ".join(f"{movements[each]} {each.value}" for each in Movement if each in movements),
        "new": sum(each.before is None for each in since.moved),
        "gone": [each.cell.id for each in since.moved if each.after is None],
        "versions": since.versions,
        "settings": ", ".join(since.settings),
        "totals": since.totals,
        "rows": changed_rows(since),
        "anchors": anchors,
    }


def _grid(table: Grid, report: RunReport, anchors: Mapping[Cell, str], since: RunComparison | None) -> dict[str, object]:
    results = report.cells
    marks = {} if since is None else {each.cell: each.mark for each in since.moved}
    return {
        "table": table,
        "groups": _groups(table),
        "anchors": anchors,
        "titles": {result.cell: _title(result, since) for result in results},
        "marks": marks,
        "examples": {shade(result): result for result in results},  # for the legend
        "has_warnings": any(result.warnings for result in results),
        "has_gaps": any(None in row.results for row in table.rows),
        "notes": [*describe_failing_environments(report), *describe_reasons(results)],
    }


def _groups(table: Grid) -> list[dict[str, object]]:
    """The rows of the grid. Those of a large grid are grouped by the folder of their recipes, or by their file."""
    sources = [next(result.cell.source for result in row.results if result is not None) for row in table.rows]
    folders = [str(PurePosixPath(source).parent) for source in sources]
    keys = folders if len(set(folders)) > 1 else sources
    if len(table.rows) < _LARGE or not 1 < len(set(keys)) <= len(table.rows) / 2:
        return [{"title": "", "counts": "", "rows": table.rows}]
    groups: dict[str, list[Row]] = {}
    for key, row in zip(keys, table.rows, strict=True):
        groups.setdefault(key, []).append(row)
    shown: list[dict[str, object]] = []
    for key, rows in groups.items():
        statuses = Counter(result.status for row in rows for result in row.results if result is not None)
        counts = ", ".join(f"{number} {status}" for status, number in statuses.items())
        shown.append({"title": key, "counts": f"{count(len(rows), 'row')}: {counts}", "rows": rows})
    return shown


def _title(result: CellResult, since: RunComparison | None) -> str:
    """``drift 1.31 of 16, 1.2 MiB, 3.2 s; before: drift 0.4 of 16, 1.1 MiB, 3.0 s``: what is measured of a cell."""
    before = None if since is None else since.earlier.get(result.cell)
    was = "" if before is None else _measures(before)
    if before is not None and describe_verdict(before) != describe_verdict(result):
        was = ", ".join(filter(None, [describe_verdict(before), was]))
    return "; ".join(filter(None, [_measures(result), f"before: {was}" if was else ""]))


def _measures(result: CellResult) -> str:
    drift = f"drift {result.worst.drift:.3g} of {result.worst.limit:g}" if result.worst else ""
    size = in_bytes(result.facts.file_bytes) if result.facts else ""
    time = format_duration(result.seconds) if result.timings else ""
    return ", ".join(filter(None, [drift, size, time]))


def _rules(results: Sequence[CellResult]) -> list[tuple[Severity, str, int]]:
    """The rules that cells break, each with the number of cells, errors first."""
    cells = Counter(rule for result in results for rule in {(f.severity, f.rule): None for f in result.findings})
    counts = [(severity, rule, number) for (severity, rule), number in cells.items()]
    return sorted(counts, key=lambda each: (list(Severity).index(each[0]), -each[2]))


def _times(results: Sequence[CellResult], anchors: Mapping[Cell, str]) -> dict[str, object] | None:
    ran = [result for result in results if not result.cached and result.timings]
    if not ran:
        return None
    stages: Counter[str] = Counter()
    for result in ran:
        stages.update(result.timings)
    return {
        "ran": len(ran),
        "stages": stages,
        "total": sum(stages.values()) or 1.0,
        "longest": max(stages.values()) or 1.0,
        "slowest": sorted(ran, key=lambda result: -result.seconds)[:_SLOWEST],
        "anchors": anchors,
    }


def _about(result: CellResult) -> str:
    """The rules that a cell breaks, and the start of its first error or warning, or of the reason for its status."""
    findings = [cause.finding for cause in causes_of(result.findings)]
    has_problem = result.status.is_bad or result.warnings
    text = " ".join((describe_finding(findings[0]) if findings and has_problem else result.reason).split())
    beginning = text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"
    return ": ".join(filter(None, [", ".join(dict.fromkeys(each.rule for each in findings)), beginning]))


def _details(
    result: CellResult, *, command: str, alike: Sequence[tuple[str, str]], before: CellResult | None, code_in: Path | None
) -> str:
    """What a cell shows once it is open; ``alike`` has the anchors and labels of others of its recipe with the same cause."""
    share = result.observability
    facts = {
        "exporter": result.cell.exporter,
        "took": ", ".join(f"{stage} {format_duration(seconds)}" for stage, seconds in result.timings.items()),
        "cached": "yes: the verdict and the times are from an earlier run" if result.cached else result.why_run or "no",
        "CPU and GPU": "; ".join(each.in_words for each in result.cpu_vs_gpu),
        "observability": "" if share is None else f"{share:.0%} of the model is visible in its outputs",
        "compared on": describe_inputs_compared(result),
        "inputs": "; ".join(each.in_words for each in result.inputs),
        "size": in_bytes(result.facts.file_bytes) if result.facts else "",
        "file": result.artifact or "",
        "before": "" if before is None else ", ".join(filter(None, [describe_verdict(before), _measures(before)])),
    }
    return fill(
        "details.html.jinja",
        result=result,
        causes=[
            (
                cause,
                remedy,
                code_of(cause.finding, code_in),
                next((each for each in (cause.finding, *cause.consequences) if each.steps), None),
            )
            for cause, remedy in by_remedy(causes_of(result.findings))
        ],
        alike=alike,
        command=command,
        facts=facts,
    )
