"""The support table: recipes × exporter × opset from real runs, as Markdown that a page can hold between two marks.

It has what stays the same on every machine with the same versions: rules, operators, declared reasons; no measured number.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from onnx_ci.errors import ConfigurationError
from onnx_ci.opsets import EXPORTERS, format_opsets
from onnx_ci.records import CellResult, Finding, RunReport, Severity, Status
from onnx_ci.report.markdown import escape

BEGIN, END = "<!-- onnx-ci table: begin -->", "<!-- onnx-ci table: end -->"
"""The marks between which a page holds the table."""

_PACKAGES = ("onnx-ci", "torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu")
"""Whose versions the table was made with; the rest of an environment has no say in it."""


class Support(enum.Enum):
    """What a cell says about its recipe: the mark in the table, and what it means."""

    PASSED = "✅", "passed"
    WRONG = "❌", "a file was written, and it is wrong"
    UNSUPPORTED = "➖", "no file was written"
    ELSEWHERE = "→", "the exporter wrote this opset instead"
    UNKNOWN = "❔", "could not be judged"
    NOT_RUN = "·", "did not run"

    @property
    def mark(self) -> str:
        """What stands in the table."""
        return self.value[0]

    @property
    def meaning(self) -> str:
        """What the mark means."""
        return self.value[1]


_NO_FILE = frozenset({"unsupported-operator", "unsupported-opset", "export-error"})
_NO_VERDICT = frozenset({"crash", "timeout", "out-of-memory", "disk-error", "recipe-error", "internal-error"})
_OF_THE_VERDICT = "unexpected-pass"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One recipe with one exporter on one device."""

    recipe: str
    exporter: str
    device: str
    results: Mapping[int, CellResult]
    """By opset, as far as they ran."""

    @property
    def lowest_safe(self) -> int | None:
        """The lowest opset from which on every cell passed; ``None`` if the highest did not."""
        safe = None
        for opset in sorted(self.results, reverse=True):
            if support_of(self.results[opset]) is not Support.PASSED:
                break
            safe = opset
        return safe


def rows_of(results: Iterable[CellResult]) -> list[Row]:
    """The rows of the table: recipes in the order in which they ran, of each the exporters, TorchScript first."""
    rows: dict[tuple[str, str, str], dict[int, CellResult]] = {}
    for result in results:
        cell = result.cell
        rows.setdefault((cell.recipe, cell.exporter, cell.device), {})[cell.opset] = result
    places = {recipe: place for place, recipe in enumerate(dict.fromkeys(recipe for recipe, _, _ in rows))}
    ordered = sorted(rows, key=lambda key: (places[key[0]], EXPORTERS.index(key[1])))
    return [Row(recipe=key[0], exporter=key[1], device=key[2], results=rows[key]) for key in ordered]


def support_of(result: CellResult | None) -> Support:
    """What a result says. An expected failure is a failure: the table tells what works, not what surprises."""
    if result is None or result.status is Status.SKIPPED:
        return Support.NOT_RUN
    rules = {each.rule for each in _errors(result)}
    if not rules:
        return Support.PASSED
    if rules & _NO_VERDICT:
        return Support.UNKNOWN
    if rules & _NO_FILE:
        return Support.UNSUPPORTED
    return Support.ELSEWHERE if rules == {"opset-mismatch"} else Support.WRONG


def _errors(result: CellResult) -> list[Finding]:
    return [each for each in result.findings if each.severity is Severity.ERROR and each.rule != _OF_THE_VERDICT]


# --- Markdown -------------------------------------------------------------------------------------------------------


def render(report: RunReport) -> str:
    """The table, what its marks mean, and a line for each thing that is wrong or unsupported."""
    rows = rows_of(report.cells)
    opsets = sorted({opset for row in rows for opset in row.results})
    devices = len({row.device for row in rows}) > 1 or any(row.device != "cpu" for row in rows)
    heads = ["recipe", "exporter", *(["device"] if devices else []), "safe from"]
    lines = [
        _versions(report),
        "",
        f"| {' | '.join([*heads, *map(str, opsets)])} |",
        "|" + " --- |" * (len(heads) - 1) + " ---: |" + " :-: |" * len(opsets),
    ]
    for row in rows:
        words = [_code(row.recipe), row.exporter, *([row.device] if devices else []), str(row.lowest_safe or "–")]
        lines.append(f"| {' | '.join([*words, *(_mark(row.results.get(opset)) for opset in opsets)])} |")
    lines += ["", _legend(rows, opsets)]
    notes = [f"- {note}" for row in rows for note in _notes(row, with_device=devices)]
    return "\n".join([*lines, *(["", "What is wrong, and what is unsupported:", "", *notes] if notes else [])]) + "\n"


def _versions(report: RunReport) -> str:
    # A build of torch for CPUs calls itself 2.13.0+cpu; its exporters are the same.
    found = [f"{name} {report.environment[name].partition('+')[0]}" for name in _PACKAGES if name in report.environment]
    return f"Made with {', '.join(found)}."


def _mark(result: CellResult | None) -> str:
    support = support_of(result)
    if support is Support.ELSEWHERE and result is not None:
        return f"{support.mark}{next(each.details.get('found') for each in _errors(result))}"
    return support.mark


def _legend(rows: Iterable[Row], opsets: Iterable[int]) -> str:
    """What the marks mean that occur, and how often they do."""
    counts = Counter(support_of(row.results.get(opset)) for row in rows for opset in opsets)
    told = [f"{each.mark} {each.meaning} ({counts[each]:,})" for each in Support if counts[each]]
    return f"{'; '.join(told)}. A recipe is safe from the opset from which on everything passed."


def _notes(row: Row, *, with_device: bool) -> Iterator[str]:
    """``recipe, exporter, opset 9-10: wrong, numeric-drift: why``, a line for each reason."""
    groups: dict[tuple[Support, str, str], list[int]] = {}
    for opset, result in sorted(row.results.items()):
        support = support_of(result)
        if support in (Support.WRONG, Support.UNSUPPORTED, Support.UNKNOWN):
            groups.setdefault((support, _what(support, result), _why(result)), []).append(opset)
    for (support, what, why), opsets in groups.items():
        device = f", {row.device}" if with_device else ""
        where = f"{_code(row.recipe)}, {row.exporter}{device}, opset {format_opsets(opsets)}"
        yield f"{where}: {support.name.lower()}, {what}: {why}"


def _what(support: Support, result: CellResult) -> str:
    """The rules that are broken; for what is unsupported the operator, as far as the exporter names it."""
    errors = _errors(result)
    named = [str(each.details["operator"]) for each in errors if "operator" in each.details]
    told = named if support is Support.UNSUPPORTED and named else [each.rule for each in errors]
    return ", ".join(map(_code, dict.fromkeys(told)))


def _code(text: str) -> str:
    """``text`` as code: as it is, or with its markup escaped where it could end the code."""
    return f"<code>{escape(text)}</code>" if set(text) & set("`|\n") else f"`{text}`"


_LONGEST = 300


def _why(result: CellResult) -> str:
    """The declared reason; where none is declared, what was found first."""
    said = result.reason or _errors(result)[0].message
    return escape(said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…")


# --- in a page ------------------------------------------------------------------------------------------------------


def replaced(page: str, table: str) -> str:
    """``page`` with ``table`` between its marks.

    Raises:
        ConfigurationError: the page has no marks, or more than one pair of them.
    """
    before, rest = _split(page, BEGIN)
    _, after = _split(rest, END)
    return f"{before}{BEGIN}\n{table}{END}{after}"


def _split(text: str, mark: str) -> tuple[str, str]:
    if text.count(mark) != 1:
        raise ConfigurationError(f"it must have each of the two marks {BEGIN} and {END} once, in this order")
    before, _, after = text.partition(mark)
    return before, after
