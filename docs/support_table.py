"""The support table: each recipe with each exporter at each opset, from the reports of real runs.

    python docs/support_table.py REPORT... [--write=PAGE | --check=PAGE]

Without an option, the table is printed. It contains only what is the same on every machine with the same versions: rules,
operators and declared reasons, but no numbers.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.errors import OnnxCiError
from onnx_ci.opsets import exporter_order, format_opsets
from onnx_ci.report.markdown import escape
from onnx_ci.report.merge import merge
from onnx_ci.report.text import describe_finding
from onnx_ci.results.files import read_reports
from onnx_ci.results.records import CellResult, Finding, Severity, Status
from onnx_ci.results.run_report import RunReport

BEGIN, END = "<!-- generated table: begin -->", "<!-- generated table: end -->"
"""The marks between which a page contains its table."""

_PACKAGES = ("onnx-ci", "torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu")
"""The packages whose versions are listed above the table."""


class Support(enum.Enum):
    """The outcome of a cell: its mark in the table, and the meaning of the mark."""

    PASSED = "✅", "passed"
    WRONG = "❌", "a file was written, and it is wrong"
    UNSUPPORTED = "➖", "no file was written"
    ELSEWHERE = "→", "the exporter wrote this opset instead"
    UNKNOWN = "❔", "could not be judged"
    NOT_RUN = "·", "did not run"

    @property
    def mark(self) -> str:
        """The mark in the table."""
        return self.value[0]

    @property
    def meaning(self) -> str:
        """The meaning of the mark."""
        return self.value[1]


_NO_FILE = frozenset({"unsupported-operator", "unsupported-opset", "export-error"})
_NO_VERDICT = frozenset({"crash", "timeout", "out-of-memory", "disk-error", "recipe-error", "internal-error"})
_EXPECTATION_RULE = "unexpected-pass"


@dataclass(frozen=True, kw_only=True)
class SupportRow:
    """One recipe with one exporter on one device."""

    recipe: str
    exporter: str
    device: str
    results: Mapping[int, CellResult]
    """The results of the cells that ran, by opset."""

    @property
    def lowest_safe(self) -> int | None:
        """The lowest opset from which on every cell passed; ``None`` if the highest one failed."""
        safe = None
        for opset in sorted(self.results, reverse=True):
            if support_of(self.results[opset]) is not Support.PASSED:
                break
            safe = opset
        return safe


def rows_of(results: Iterable[CellResult]) -> list[SupportRow]:
    """The rows of the table: recipes in the order in which they ran, each with TorchScript before dynamo."""
    rows: dict[tuple[str, str, str], dict[int, CellResult]] = {}
    for result in results:
        cell = result.cell
        if cell.stage is None:  # the table is about the exporters
            rows.setdefault((cell.recipe, cell.exporter, cell.device), {})[cell.opset] = result
    places = {recipe: place for place, recipe in enumerate(dict.fromkeys(recipe for recipe, _, _ in rows))}
    ordered = sorted(rows, key=lambda key: (places[key[0]], exporter_order(key[1])))
    return [SupportRow(recipe=key[0], exporter=key[1], device=key[2], results=rows[key]) for key in ordered]


def support_of(result: CellResult | None) -> Support:
    """The outcome of a cell. An expected failure counts as a failure, because the table shows what works."""
    if result is None or result.status is Status.SKIPPED:
        return Support.NOT_RUN
    rules = {error.rule for error in _errors(result)}
    if not rules:
        return Support.PASSED
    if rules & _NO_VERDICT:
        return Support.UNKNOWN
    if rules & _NO_FILE:
        return Support.UNSUPPORTED
    return Support.ELSEWHERE if rules == {"opset-mismatch"} else Support.WRONG


def _errors(result: CellResult) -> list[Finding]:
    return [each for each in result.findings if each.severity is Severity.ERROR and each.rule != _EXPECTATION_RULE]


# --- Markdown -------------------------------------------------------------------------------------------------------


def render(report: RunReport) -> str:
    """The table, its legend, and one line for each thing that is wrong or unsupported."""
    rows = rows_of(report.cells)
    opsets = sorted({opset for row in rows for opset in row.results})
    with_device = len({row.device for row in rows}) > 1 or any(row.device != "cpu" for row in rows)
    heads = ["recipe", "exporter", *(["device"] if with_device else []), "safe from"]
    lines = [
        _versions(report),
        "",
        f"| {' | '.join([*heads, *map(str, opsets)])} |",
        "|" + " --- |" * (len(heads) - 1) + " ---: |" + " :-: |" * len(opsets),
    ]
    for row in rows:
        words = [_code(row.recipe), row.exporter, *([row.device] if with_device else []), str(row.lowest_safe or "–")]
        lines.append(f"| {' | '.join([*words, *(_mark(row.results.get(opset)) for opset in opsets)])} |")
    lines += ["", _legend(rows, opsets)]
    notes = [f"- {note}" for row in rows for note in _notes(row, with_device=with_device)]
    return "\n".join([*lines, *(["", "What is wrong, and what is unsupported:", "", *notes] if notes else [])]) + "\n"


def _versions(report: RunReport) -> str:
    # The CPU build of torch has the version 2.13.0+cpu; its exporters are the same.
    installed = [f"{name} {report.environment[name].partition('+')[0]}" for name in _PACKAGES if name in report.environment]
    return f"Made with {', '.join(installed)}."


def _mark(result: CellResult | None) -> str:
    support = support_of(result)
    if support is Support.ELSEWHERE and result is not None:
        return f"{support.mark}{next(error.opset for error in _errors(result) if error.opset)}"
    return support.mark


def _legend(rows: Iterable[SupportRow], opsets: Iterable[int]) -> str:
    """The meanings and counts of the marks that occur."""
    counts = Counter(support_of(row.results.get(opset)) for row in rows for opset in opsets)
    meanings = [f"{support.mark} {support.meaning} ({counts[support]:,})" for support in Support if counts[support]]
    return f"{'; '.join(meanings)}. A recipe is safe from the lowest opset from which on every cell passed."


def _notes(row: SupportRow, *, with_device: bool) -> Iterator[str]:
    """``recipe, exporter, opset 9-10: wrong, numeric-drift: why``, one line for each reason."""
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
    """The rules that the cell breaks; if it is unsupported, the operators, if the exporter names them."""
    errors = _errors(result)
    operators = [error.operator for error in errors if error.operator]
    names = operators if support is Support.UNSUPPORTED and operators else [error.rule for error in errors]
    return ", ".join(map(_code, dict.fromkeys(names)))


def _code(text: str) -> str:
    """``text`` as inline code; as escaped HTML if it contains characters that would end the code."""
    return f"<code>{escape(text)}</code>" if set(text) & set("`|\n") else f"`{text}`"


_LONGEST = 300


def _why(result: CellResult) -> str:
    """The declared reason or, if there is none, the first finding."""
    reason = result.reason or describe_finding(_errors(result)[0])
    return escape(reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 1]}…")


# --- the page -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Print the table, write it into a page, or check that the page has it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("reports", nargs="+", type=Path, help="files that onnx-ci run --report wrote, or folders of them")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--write", type=Path, metavar="PAGE", help="write the table into PAGE, between its marks")
    target.add_argument("--check", type=Path, metavar="PAGE", help="fail if PAGE has another table")
    options = parser.parse_args()
    try:
        report = merge(read_reports(options.reports))
    except OnnxCiError as error:
        sys.exit(str(error))
    if not report.cells:
        sys.exit("the reports contain no cells, so there is no table")
    if report.not_run:
        sys.exit(
            f"the run was stopped before {len(report.not_run)} of its cells ran, first {report.not_run[0]}: a table of the "
            "others would look complete; let the run finish"
        )
    table = render(report)
    if options.write is not None:
        write_into(options.write, table)
    elif options.check is not None:
        check_in(options.check, table)
    else:
        print(table, end="")


def write_into(page: Path, table: str) -> None:
    """Write ``table`` into ``page``, between its marks."""
    page.write_text(_replaced(page.read_text(encoding="utf-8"), page, table), encoding="utf-8")


def check_in(page: Path, table: str) -> None:
    """End with a diff and exit code 1 if ``page`` has another table."""
    present = page.read_text(encoding="utf-8")
    expected = _replaced(present, page, table)
    if present != expected:
        lines = difflib.unified_diff(present.splitlines(), expected.splitlines(), str(page), "the results", n=0, lineterm="")
        print(*lines, sep="\n")
        sys.exit(f"{page} is outdated; run the same command with --write={page}")


def _replaced(text: str, page: Path, table: str) -> str:
    """``text``, which is that of ``page``, with ``table`` between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        sys.exit(f"{page} must contain each of the two marks {BEGIN} and {END} once, in this order")
    return f"{before}{BEGIN}\n{table}{END}{after}"


if __name__ == "__main__":
    main()
