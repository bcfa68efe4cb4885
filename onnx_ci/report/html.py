"""The report as one HTML page that loads nothing: the verdict, the grid, the failures, the drift, the times and every cell.

This module prepares the values, and the templates beside it show them. The page works without JavaScript, except for the
filter and the details of passed cells: a large project has thousands, so they are compressed and expanded on demand.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnx_ci.baseline.changes import Limits, in_bytes
from onnx_ci.baseline.history import Moment, series, steps
from onnx_ci.report.causes import Cause, causes_of, shared_failures
from onnx_ci.report.grid import Grid, baseline_changes, grid
from onnx_ci.report.node_picture import node_picture
from onnx_ci.report.plot import plot
from onnx_ci.report.sparkline import trend
from onnx_ci.report.templates import asset, duration, fill, shade
from onnx_ci.report.text import count_line, reasons, sentence
from onnx_ci.results.records import Cell, CellResult, Severity
from onnx_ci.results.run_report import RunReport
from onnx_ci.text import count

_OPEN = 3
"""Up to this many failures are open when the page loads; more of them would hide each other."""

_BUILT = 100
"""The details of this many failures are in the page itself, for paper and for readers without JavaScript."""

_EXCERPT = 240
_SLOWEST = 10


@dataclass(frozen=True, kw_only=True)
class Past:
    """The baselines over the commits."""

    moments: Sequence[Moment]
    limits: Limits

    @property
    def in_words(self) -> str:
        """``12 commits, 2026-01-03 to 2026-11-20``."""
        dates = [each.date for each in self.moments if each.date]
        commits = count(len(dates), "commit")
        return f"{commits}, {dates[0]} to {dates[-1]}" if len(dates) > 1 else commits


def render(report: RunReport, repeat: Callable[[Cell], str], past: Past | None = None) -> str:
    """The whole report as a page. Text from outside is shown as text, never as markup, and the page may load nothing.

    Args:
        repeat: gives the command that repeats a cell.
        past: the baselines over the commits, if the page is to show them.
    """
    # The id of a cell is its place in the report, because its name could be anything.
    named = {f"c{place}": result for place, result in enumerate(report.cells)}
    anchors = {result.cell: anchor for anchor, result in named.items()}
    shared = {anchors[each.first.cell]: each for each in shared_failures(report.cells)}
    bad = [anchor for anchor, result in named.items() if result.status.is_bad]
    same = {
        anchor: [(anchors[each.cell], each.cell.label) for each in failure.results[1:]] for anchor, failure in shared.items()
    }
    packed = {anchor: _details(result, repeat(result.cell), same.get(anchor, [])) for anchor, result in named.items()}
    built = {anchor: packed.pop(anchor) for anchor in bad[:_BUILT]}
    entries = {
        anchor: {
            "anchor": anchor,
            "result": result,
            "about": _about(result),
            "details": built.get(anchor, ""),
            "is_open": anchor in shared and anchor in built and len(shared) <= _OPEN,
        }
        for anchor, result in named.items()
    }
    table = grid(report.cells)
    page = fill(
        "page.html.jinja",
        verdict=report.verdict,
        counts=count_line(report),
        statuses=report.counts,
        skip="failures" if bad else "grid",
        sections={
            "problems": report.problems,
            "not-run": report.not_run,
            "grid": _grid(table, report.cells, anchors),
            "failures": [entries.pop(anchor) for anchor in shared],
            "baseline": baseline_changes(report.cells),
            "drift": plot(table),
            "history": _history(past) if past else None,
            "rules": _rules(report.cells),
            "times": _times(report.cells, anchors),
            "setup": report if report.environment or report.settings else None,
            "cells": list(entries.values()),
        },
        style=asset("page.css"),
        script=asset("page.js"),
        bodies=base64.b64encode(zlib.compress(json.dumps(packed).encode())).decode(),
    )
    return str(page)


def render_history(past: Past) -> str:
    """The baselines over the commits as a page of its own, which needs no script."""
    page = fill(
        "page.html.jinja",
        verdict="history",
        counts=past.in_words,
        skip="history",
        sections={"history": _history(past)},
        style=asset("page.css"),
        script="",
        bodies="",
    )
    return str(page)


def _grid(table: Grid, results: Sequence[CellResult], anchors: Mapping[Cell, str]) -> dict[str, object]:
    return {
        "table": table,
        "anchors": anchors,
        "examples": {shade(result): result for result in results},  # for the legend
        "has_warnings": any(result.warnings for result in results),
        "has_gaps": any(None in row.results for row in table.rows),
        "notes": reasons(results),
    }


def _history(past: Past) -> dict[str, object]:
    """A row of small pictures for each recipe, and the changes of each commit."""
    titles = [each.title for each in past.moments]
    return {
        "rows": [
            {
                "title": each.title,
                "drift": trend(each.drift, titles, "{:.3g}".format, is_log=True),
                "file_bytes": trend(each.file_bytes, titles, in_bytes),
                "operators": trend(each.operators, titles, "{:.0f}".format),
            }
            for each in series(past.moments)
        ],
        "commits": [(moment.title, [*moment.problems, *lines]) for moment, lines in steps(past.moments, past.limits)],
    }


def _rules(results: Sequence[CellResult]) -> list[tuple[Severity, str, int]]:
    """The rules that cells break, each with the number of cells, errors first."""
    cells = Counter(rule for result in results for rule in {(f.severity, f.rule): None for f in result.findings})
    found = [(severity, rule, number) for (severity, rule), number in cells.items()]
    return sorted(found, key=lambda each: (list(Severity).index(each[0]), -each[2]))


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
    is_told = result.status.is_bad or result.warnings
    text = " ".join((sentence(findings[0]) if findings and is_told else result.reason).split())
    excerpt = text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"
    return ": ".join(filter(None, [", ".join(dict.fromkeys(each.rule for each in findings)), excerpt]))


def _details(result: CellResult, command: str, same: Sequence[tuple[str, str]]) -> str:
    """What a cell shows once it is open; ``same`` are the anchors and labels of the cells that fail for the same cause."""
    seen = result.observability
    facts = {
        "exporter": result.cell.exporter,
        "took": ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in result.timings.items()),
        "cached": "yes: the verdict and the times are from an earlier run" if result.cached else "no",
        "CPU and GPU": "; ".join(each.in_words for each in result.cpu_vs_gpu),
        "observability": "" if seen is None else f"{seen:.0%} of the model is visible in its outputs",
        "inputs": "; ".join(each.in_words for each in result.inputs),
        "file": result.artifact or "",
    }
    return fill(
        "details.html.jinja",
        result=result,
        causes=[(cause, *_picture(cause)) for cause in causes_of(result.findings)],
        same=same,
        command=command,
        facts=facts,
    )


def _picture(cause: Cause) -> tuple[str, str]:
    """The input on which the nodes around a cause are known, and the picture of these; both empty if none are."""
    finding = next((each for each in (cause.finding, *cause.consequences) if each.steps), None)
    return ("", "") if finding is None else (finding.probe or "", node_picture(finding.steps))
