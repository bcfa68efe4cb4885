"""The report as one HTML page that needs no network: the verdict, the grid, the failures, the drift, the times, every cell.

The page stands on Python: a reader without JavaScript has all but the filter and the details of the cells that passed.
Those are thousands in a large project, so they travel compressed and are built when somebody opens them.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import string
import urllib.parse
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_ci.baseline.changes import Limits, in_bytes
from onnx_ci.baseline.history import Moment, series, steps
from onnx_ci.records import Cell, CellResult, Finding, OutputDrift, RunReport, Severity, Status
from onnx_ci.report.grid import NOT_RUN, Grid, grid, moved, word
from onnx_ci.report.markup import escape, printable
from onnx_ci.report.plot import plot
from onnx_ci.report.text import count_line, in_order, reasons
from onnx_ci.report.trend import trend
from onnx_ci.rules import RULES

_OPEN = 3
"""So many failures stand open from the start; more of them would hide each other."""

_BUILT = 100
"""The failures whose details stand in the page itself, for paper and for readers without JavaScript."""

_EXCERPT = 240
_SLOWEST = 10
_SHADES = ((1 / 64, "p0", "1/64"), (1 / 16, "p1", "1/16"), (1 / 4, "p2", "1/4"), (1.0, "p3", "1"))
"""The shades of passed cells: the largest share of its limit that a cell's drift takes up, and how the legend calls it."""

_BEYOND = "p4"
"""The shade of a cell that passed beyond the limit of drift, because its recipe sets tolerances of its own."""

_MEANINGS = {
    Status.FAILED: "the export is wrong",
    Status.ERROR: "could not be judged",
    Status.SKIPPED: "not run, with a reason",
    Status.XFAILED: "failed as its recipe expects",
    Status.XPASSED: "expected to fail, and does not",
}
_MARKS = {
    Status.PASSED: "✓",
    Status.FAILED: "✗",
    Status.ERROR: "!",
    Status.SKIPPED: "–",
    Status.XFAILED: "≈",
    Status.XPASSED: "‼",
}
_VERDICTS = {
    "passed": ("✓", "passed", "#1f6fb2"),
    "failed": ("✗", "failed", "#b8400b"),
    "nothing-ran": ("–", "nothing ran", "#6b7280"),
}
"""How a verdict is told: its mark, its words and the colour of the page's icon."""


def render(report: RunReport, repeat: Callable[[Cell], str], past: Past | None = None) -> str:
    """The whole report as a page. Text from outside is escaped, so it can be no markup; the page may load nothing.

    Args:
        repeat: gives the command that repeats a cell.
        past: what became of the baselines over the commits, if that is to be in it.
    """
    # Cells are called by their place in the report: a name from outside could be anything, and no valid id.
    named = {f"c{place}": result for place, result in enumerate(report.cells)}
    anchors = {result.cell: anchor for anchor, result in named.items()}
    bad = [anchor for anchor, result in named.items() if result.status.is_bad]
    packed = {anchor: _details(result, repeat(result.cell)) for anchor, result in named.items()}
    built = {anchor: packed.pop(anchor) for anchor in bad[:_BUILT]}
    entries = {
        anchor: _entry(anchor, result, built.get(anchor, ""), is_open=anchor in built and len(bad) <= _OPEN)
        for anchor, result in named.items()
    }
    table = grid(report.cells)
    sections = [
        ("problems", "Could not be used", _problems(report)),
        ("not-run", "Did not run", _not_run(report)),
        ("grid", "Recipes and opsets", _grid(table, report.cells, anchors)),
        ("failures", "Failures", _entries(entries[anchor] for anchor in bad)),
        ("baseline", "Since the baseline", _since_the_baseline(report.cells)),
        ("drift", "Drift by opset", _drift(table)),
        ("history", "Baselines over the commits", "" if past is None else _history(past)),
        ("rules", "Findings by rule", _rules(report.cells)),
        ("times", "Times", _times(report.cells, anchors)),
        ("setup", "Versions and settings", _setup(report)),
        (
            "cells",
            "Other cells" if bad else "Cells",
            _entries(entries[a] for a, each in named.items() if not each.status.is_bad),
        ),
    ]
    statuses = "".join(
        f'<label><input type="checkbox" value="{status}"> {status} <span class="count">{count}</span></label>'
        for status, count in report.counts.items()
    )
    mark, words, colour = _VERDICTS[report.verdict]
    return _page(
        verdict=report.verdict,
        mark=mark,
        title=f"ONNX export: {words}",
        colour=colour,
        counts=escape(count_line(report)),
        skip="failures" if bad else "grid",
        filter=_FILTER.replace("$statuses", statuses),
        sections=sections,
        script=_asset("page.js"),
        bodies=base64.b64encode(zlib.compress(json.dumps(packed).encode())).decode(),
    )


_FILTER = """<div class="filter" role="search" aria-label="Cells">
<label class="find">Find <input id="search" type="search" placeholder="recipe, file, rule or message" autocomplete="off" spellcheck="false"></label>
<fieldset><legend>Only</legend>$statuses</fieldset>
<p><output id="shown"></output> <button type="button" id="clear">Clear</button></p>
</div>
<noscript><p>Without JavaScript the filter is off, and only cells that failed show their details.</p></noscript>"""  # noqa: E501


def render_history(past: Past) -> str:
    """What became of the baselines over the commits, as a page of its own."""
    return _page(
        verdict="history",
        mark="◷",
        title="ONNX export: history",
        colour="#6b7280",
        counts=escape(past.in_words),
        skip="history",
        filter="",
        sections=[("history", "Baselines over the commits", _history(past))],
        script="",
        bodies="",
    )


def _page(
    *,
    verdict: str,
    mark: str,
    title: str,
    colour: str,
    counts: str,
    skip: str,
    filter: str,
    sections: Sequence[tuple[str, str, str]],
    script: str,
    bodies: str,
) -> str:
    """A page of those sections that have content."""
    sections = [each for each in sections if each[2]]
    style = _asset("page.css")
    return string.Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'",
        icon=_icon(mark, colour),
        style=style,
        script=script,
        verdict=verdict,
        mark=mark,
        title=title,
        counts=counts,
        skip=skip,
        filter=filter,
        nav="".join(f'<li><a href="#{id}">{heading}</a></li>' for id, heading, _ in sections),
        sections="\n".join(
            f'<section id="{id}"><h2 tabindex="-1">{heading}</h2>\n{content}\n</section>' for id, heading, content in sections
        ),
        bodies=bodies,
    )


def _asset(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    """What a content security policy calls an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _icon(mark: str, colour: str) -> str:
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="{colour}"/>'
        f'<text x="8" y="12.5" font-size="12" text-anchor="middle" fill="#fff">{mark}</text></svg>'
    )
    return "data:image/svg+xml," + urllib.parse.quote(svg)


def _table(caption: str, heads: Sequence[str], rows: Iterable[str], *, kind: str = "") -> str:
    """A table in a region that scrolls by itself where the page is narrow. A head that begins with ``#`` is of numbers."""
    cells = "".join(map(_head, heads))
    return (
        f'<div class="scroll {kind}" role="group" aria-label="{caption}" tabindex="0"><table><caption>{caption}</caption>'
        f"<thead><tr>{cells}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head(name: str) -> str:
    if not name:
        return "<td></td>"
    kind = ' class="number"' * name.startswith("#")
    return f'<th scope="col"{kind}>{name.removeprefix("#")}</th>'


def _row(name: str, *cells: str, attributes: str = "") -> str:
    return f'<tr{attributes}><th scope="row">{name}</th>{"".join(cells)}</tr>\n'


def _cell(content: str, kind: str = "") -> str:
    return f'<td class="{kind}">{content}</td>' if kind else f"<td>{content}</td>"


def _number(content: str) -> str:
    return _cell(content, "number")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _problems(report: RunReport) -> str:
    items = [f"<li><code>{escape(each.source)}</code><p>{escape(each.message)}</p></li>" for each in report.problems]
    return f'<ul class="problems">{"".join(items)}</ul>' if items else ""


def _not_run(report: RunReport) -> str:
    if not report.not_run:
        return ""
    items = "".join(f"<li><code>{escape(id)}</code></li>" for id in report.not_run)
    return (
        "<p>The run was stopped before these cells. Nothing is known of them.</p>"
        f'<details class="plain"><summary>{_count(len(report.not_run), "cell")}</summary><ul>{items}</ul></details>'
    )


def _grid(table: Grid, results: Sequence[CellResult], anchors: Mapping[Cell, str]) -> str:
    if not table.rows:
        return "<p>There is no cell, so nothing is proved.</p>"
    rows = [
        _row(escape(row.title), *(_place(result, anchors) for result in row.results), attributes=f' data-row="{number}"')
        for number, row in enumerate(table.rows)
    ]
    heads = ["opset", *(f"#{opset}" for opset in table.opsets)]
    return _table("Drift of each recipe at each opset", heads, rows, kind="grid headed") + _legend(table, results)


def _place(result: CellResult | None, anchors: Mapping[Cell, str]) -> str:
    if result is None:
        return _cell(f'<span aria-hidden="true">{NOT_RUN}</span><span class="unseen">no cell</span>')
    return _cell(f'<a href="#{anchors[result.cell]}">{word(result)}</a>', _shade(result))


def _shade(result: CellResult) -> str:
    """The class that colours a result."""
    if result.status is not Status.PASSED:
        return result.status.value
    share = result.worst.share_of_limit if result.worst else 0.0
    return next((shade for most, shade, _ in _SHADES if share <= most), _BEYOND)


def _legend(table: Grid, results: Sequence[CellResult]) -> str:
    shades = [f'<li><span class="key {shade}"></span> to {share}</li>' for _, shade, share in _SHADES]
    found = {_shade(result): result for result in results}
    if _BEYOND in found:
        shades.append(f'<li><span class="key {_BEYOND}"></span> beyond, but within tolerances that the recipe sets</li>')
    others = [
        f'<li><span class="key {status}">{word(found[status])}</span> {meaning}</li>'
        for status, meaning in _MEANINGS.items()
        if status in found
    ]
    if any(None in row.results for row in table.rows):
        others.append(f'<li><span class="key">{NOT_RUN}</span> no such cell in this run</li>')
    notes = [f"<li>{escape(each)}</li>" for each in reasons(results)]
    return (
        "<p>A number is the largest drift of a cell that passed: how many times worse than PyTorch’s own rounding. "
        "The stronger the colour, the more of the limit it takes up.</p>"
        f'<ul class="legend"><li>Share of the limit:</li>{"".join(shades)}</ul>'
        + "".join(
            f'<ul class="{kind}">{"".join(items)}</ul>' for kind, items in (("legend", others), ("notes", notes)) if items
        )
    )


def _since_the_baseline(results: Sequence[CellResult]) -> str:
    rows = [
        _row(
            escape(each.title),
            _cell(escape(each.opsets)),
            _cell(escape(each.finding.message)),
            _cell(each.finding.severity),
        )
        for each in moved(results)
    ]
    heads = ["cells", "opsets", "what moved", "severity"]
    return _table("What moved since the baseline", heads, rows, kind="headed wide") if rows else ""


def _drift(table: Grid) -> str:
    picture = plot(table)
    if picture is None:
        return ""
    return (
        f'<figure><div class="scroll" role="group" aria-label="Plot" tabindex="0">{picture.svg}</div><figcaption>'
        f'<p>{escape(picture.caption)} <span class="dot">●</span> passed or as expected, <span class="cross">×</span> failed.'
        "</p></figcaption></figure>"
    )


@dataclass(frozen=True, kw_only=True)
class Past:
    """The baselines over the commits."""

    moments: Sequence[Moment]
    limits: Limits

    @property
    def in_words(self) -> str:
        """``12 commits, 2026-01-03 to 2026-11-20``."""
        dates = [each.date for each in self.moments if each.date]
        count = _count(len(dates), "commit")
        return f"{count}, {dates[0]} to {dates[-1]}" if len(dates) > 1 else count


def _history(past: Past) -> str:
    """A row of small pictures for each recipe, and what each commit moved."""
    titles = [each.title for each in past.moments]
    rows = [
        _row(
            escape(each.title),
            _cell(trend(each.drift, titles, "{:.3g}".format, is_log=True)),
            _cell(trend(each.file_bytes, titles, in_bytes)),
            _cell(trend(each.operators, titles, "{:.0f}".format)),
        )
        for each in series(past.moments)
    ]
    moved = [
        _row(escape(moment.title), _cell("<br>".join(map(escape, [*moment.problems, *lines]))))
        for moment, lines in steps(past.moments, past.limits)
    ]
    heads = ["recipe", "drift", "file", "operators"]
    return (
        "<p>Each step of a line is a commit that changed a baseline; of all opsets the largest number counts. "
        'The scale of drift is logarithmic. <span class="cross">●</span> marks what grew.</p>'
        + _table("Baselines over the commits", heads, rows, kind="headed wide trends")
        + (_table("What each commit moved", ["commit", "what moved"], moved, kind="wide") if moved else "")
    )


def _rules(results: Sequence[CellResult]) -> str:
    cells = Counter(rule for result in results for rule in dict.fromkeys((f.severity, f.rule) for f in result.findings))
    rows = []
    for (severity, id), count in sorted(cells.items(), key=lambda item: (item[0][0] is not Severity.ERROR, -item[1])):
        rule = RULES.get(id)
        about = (
            f"<p>{escape(rule.meaning)}</p><p>More: <code>onnx-ci explain {rule.id}</code></p>"
            if rule
            else "<p>This version of onnx-ci does not know this rule.</p>"
        )
        found = f'<a href="#{urllib.parse.urlencode({"q": printable(id)})}">{_count(count, "cell")}</a>'
        anchor = f' id="{_rule_anchor(rule.id, severity)}" tabindex="-1"' if rule else ""
        name = f"<code>{escape(id)}</code>"
        rows.append(_row(name, _cell(severity), _number(found), _cell(about), attributes=anchor))
    return _table("Findings by rule", ["rule", "severity", "#found in", "meaning"], rows, kind="headed wide") if rows else ""


def _rule_anchor(rule: str, severity: Severity) -> str:
    return f"rule-{rule}-{severity}"


def _times(results: Sequence[CellResult], anchors: Mapping[Cell, str]) -> str:
    ran = [result for result in results if not result.cached and result.timings]
    if not ran:
        return ""
    stages: Counter[str] = Counter()
    for result in ran:
        stages.update(result.timings)
    total, longest = sum(stages.values()) or 1.0, max(stages.values()) or 1.0
    rows = [
        _row(
            escape(stage), _number(_seconds(seconds)), _number(f"{seconds / total:.0%}"), _cell(_bar(seconds / longest), "bar")
        )
        for stage, seconds in stages.items()
    ]
    slowest = [
        _row(
            f'<a href="#{anchors[result.cell]}">{escape(result.cell.recipe)} {escape(result.cell.label)}</a>',
            _number(_seconds(_total(result))),
            _cell(escape(max(result.timings, key=result.timings.__getitem__))),
        )
        for result in sorted(ran, key=lambda result: -_total(result))[:_SLOWEST]
    ]
    return (
        f'<div class="pair">{_table("Stages, all cells together", ["stage", "#time", "#share", ""], rows)}'
        f"{_table('The slowest cells', ['cell', '#time', 'most of it'], slowest)}</div>"
        f"<p>{_count(len(ran), 'cell')} ran. The first of a recipe on a device also bears the preparation that they share. "
        "Cells run side by side, so their times together can be more than the run took.</p>"
    )


def _bar(share: float) -> str:
    """A bar as a picture: the page's policy forbids styles on elements."""
    return (
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * share:.1f}" height="8"/></svg>'
    )


def _total(result: CellResult) -> float:
    return sum(result.timings.values())


def _setup(report: RunReport) -> str:
    versions = [_row(escape(name), _cell(f"<code>{escape(version)}</code>")) for name, version in report.environment.items()]
    settings = [_setting(name, value) for name, value in report.settings.items()]
    tables = [
        _table("Versions", ["of", "version"], versions) if versions else "",
        _table("Settings", ["setting", "value", "from"], settings) if settings else "",
    ]
    return f'<div class="pair">{"".join(tables)}</div>' if any(tables) else ""


def _setting(name: str, setting: Any) -> str:
    value, origin = (setting.get("value"), setting.get("from", "")) if isinstance(setting, Mapping) else (setting, "")
    shown = '<span class="unset">not set</span>' if value is None else f"<code>{escape(value)}</code>"
    return _row(escape(name), _cell(shown), _cell(escape(origin)), attributes=' class="default"' * (origin == "default"))


def _entries(entries: Iterable[str]) -> str:
    listed = "".join(entries)
    return f'<div class="cells">\n{listed}<p class="none" hidden>None of them matches the filter.</p></div>' if listed else ""


def _entry(anchor: str, result: CellResult, details: str, *, is_open: bool) -> str:
    """One cell in a list: what a glance needs, and the details if they are built already."""
    cell, status = result.cell, result.status
    kinds = f"cell {_shade(result)}{' bad' if status.is_bad else ''}"
    drift = f"drift {result.worst.drift:.3g} of {result.worst.limit:g}" if result.worst else ""
    took = "cached" if result.cached else _seconds(_total(result)) if result.timings else ""
    rules = ", ".join(dict.fromkeys(finding.rule for finding in in_order(result.findings)))
    said = in_order(result.findings)[0].message if result.findings and status.is_bad else result.reason
    said = " ".join(said.split())
    about = ": ".join(filter(None, [rules, said if len(said) <= _EXCERPT else f"{said[: _EXCERPT - 1]}…"]))
    return (
        f'<details id="{anchor}" class="{kinds}" data-status="{status}"{" open" * is_open}><summary>'
        f'<span class="status"><span aria-hidden="true">{_MARKS[status]}</span> {status}</span> '
        f'<span class="name">{escape(cell.recipe)}::{escape(cell.label)} '
        f'<span class="source">{escape(cell.source)}</span></span> <span class="about">{escape(about)}</span> '
        f'<span class="figure drift">{drift}</span> <span class="figure">{took}</span></summary>{details}</details>\n'
    )


def _details(result: CellResult, command: str) -> str:
    findings = "".join(_finding(each) for each in in_order(result.findings))
    why = "Skipped" if result.status is Status.SKIPPED else "Expected"
    seen = result.observability
    facts = {
        "exporter": result.cell.exporter,
        "took": ", ".join(f"{stage} {_seconds(seconds)}" for stage, seconds in result.timings.items()),
        "cached": "yes: verdict and times are those of an earlier run" if result.cached else "no",
        "four ways": "; ".join(each.in_words for each in result.four_ways),
        "observability": "" if seen is None else f"{seen:.0%} of the model shows in its outputs",
        "file": result.artifact or "",
    }
    listed = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value)
    parts = [
        f'<ul class="findings">{findings}</ul>' if findings else "",
        f"<p><b>{why}</b> {escape(result.reason)}</p>" if result.reason else "",
        '<div class="repeat"><b>Repeat with</b> <button type="button" class="copy">Copy</button>',
        f"<pre><code>{escape(command)}</code></pre></div>",
        _table("Outputs", _COLUMNS, map(_output, result.outputs), kind="outputs") if result.outputs else "",
        f'<dl class="facts">{listed}</dl>',
        f'<details class="plain"><summary>Log</summary><pre class="log">{escape(result.log)}</pre></details>'
        if result.log
        else "",
    ]
    return f'<div class="details">{"".join(parts)}</div>'


def _finding(finding: Finding) -> str:
    rule = f"<code>{escape(finding.rule)}</code>"
    if finding.rule in RULES:
        rule = f'<a href="#{_rule_anchor(finding.rule, finding.severity)}">{rule}</a>'
    note = " (note)" * (finding.severity is Severity.NOTE)
    return (
        f'<li class="{finding.severity}"><p>{rule}{note}: <span class="message">{escape(finding.message)}</span></p>'
        f'<p class="remedy"><b>Remedy</b> {escape(finding.remedy)}</p></li>'
    )


_COLUMNS = (
    *("output", "on", "#drift", "#limit", "#error", "#noise"),
    *("#largest value", "#largest relative", "at", "type", "reference"),
)


def _output(output: OutputDrift) -> str:
    beyond = output.share_of_limit > 1
    mark = '<span class="cross">×</span><span class="unseen">beyond the limit</span> ' * beyond
    index = "" if output.index is None else str(list(output.index))
    return _row(
        escape(output.title),
        _cell(escape(output.probe)),
        _number(f"{mark}{output.drift:.3g}"),
        _number(f"{output.limit:g}"),
        *(_number(f"{each:.3g}") for each in (output.error, output.noise, output.max_abs, output.max_rel)),
        *(_cell(escape(each)) for each in (index, f"{output.dtype} {list(output.shape)}", output.reference)),
        attributes=' class="beyond"' * beyond,
    )
