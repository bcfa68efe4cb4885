"""The grid: recipes down, opsets across, in each place the drift or what went wrong. Pure data, for any renderer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx_ci.opsets import format_opsets
from onnx_ci.records import CellResult, Finding, Status

NOT_RUN = "·"
_WORDS = {
    Status.FAILED: "FAIL",
    Status.ERROR: "ERROR",
    Status.SKIPPED: "skip",
    Status.XFAILED: "xfail",
    Status.XPASSED: "XPASS",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One recipe on one device with one way of choosing the exporter."""

    title: str
    results: tuple[CellResult | None, ...]
    """One for each opset of the grid; ``None`` where the cell did not run."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The results of a run as a table."""

    opsets: tuple[int, ...]
    rows: tuple[Row, ...]


def grid(results: Iterable[CellResult]) -> Grid:
    """Arrange results: opsets ascending, rows in the order in which their cells ran."""
    rows: dict[tuple[str, str, str], dict[int, CellResult]] = {}
    for result in results:
        cell = result.cell
        # The usual exporter of the opset needs no word; another one does.
        suffix = cell.label.removeprefix(f"opset{cell.opset}-{cell.device}").removeprefix("-")
        rows.setdefault((cell.recipe, cell.device, suffix), {})[cell.opset] = result
    opsets = tuple(sorted({opset for row in rows.values() for opset in row}))
    return Grid(
        opsets=opsets,
        rows=tuple(
            Row(title=" ".join(filter(None, key)), results=tuple(row.get(opset) for opset in opsets))
            for key, row in rows.items()
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What moved since the baseline, for all opsets of a row at which it is the same."""

    title: str
    """The row's."""
    opsets: str
    finding: Finding


def moved(results: Iterable[CellResult]) -> list[Moved]:
    """What moved since the baseline, row by row."""
    found: dict[tuple[str, str, str], tuple[Finding, list[int]]] = {}
    for row in grid(results).rows:
        for result in filter(None, row.results):
            for each in result.findings:
                if each.rule.startswith("baseline-"):
                    words = each.message if each.rule == "baseline-drift" else each.rule
                    found.setdefault((row.title, words, each.severity), (each, []))[1].append(result.cell.opset)
    return [
        Moved(title=title, opsets=format_opsets(opsets), finding=finding) for (title, *_), (finding, opsets) in found.items()
    ]


def word(result: CellResult | None) -> str:
    """What stands in the result's place: the largest drift of a passed cell, else what became of the cell."""
    if result is None:
        return NOT_RUN
    if result.status is Status.PASSED:
        worst = result.worst
        return "pass" if worst is None else f"{worst.drift:.2g}" if worst.drift >= 0.1 or not worst.drift else "<0.1"
    return _WORDS[result.status]
