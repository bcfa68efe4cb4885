"""The grid: a row for each recipe, a column for each opset, and in each place the drift or what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx_ci.results.records import CellResult, Status

NOT_RUN = "·"
WARNED = "!"
"""The mark of a cell that passes with a warning."""
_WORDS = {
    Status.FAILED: "FAIL",
    Status.ERROR: "ERROR",
    Status.SKIPPED: "skip",
    Status.XFAILED: "xfail",
    Status.XPASSED: "XPASS",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One recipe on one device in an environment, with each opset's default exporter or, if the recipe has others, with one."""

    title: str
    results: tuple[CellResult | None, ...]
    """One for each opset of the grid; ``None`` if the cell did not run."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The results of a run as a table."""

    opsets: tuple[int, ...]
    rows: tuple[Row, ...]


def grid(results: Iterable[CellResult]) -> Grid:
    """Arrange results in a grid: opsets ascending, rows in the order in which their cells ran."""
    results, rows = list(results), dict[tuple[str, str, str, str, str], dict[int, CellResult]]()
    names_exporters = {each.cell.recipe for each in results if not each.cell.has_default_exporter}
    for result in results:
        cell = result.cell
        exporter = cell.exporter if cell.recipe in names_exporters else ""
        graph_pass = f"+{cell.graph_pass}" if cell.graph_pass else ""
        rows.setdefault((cell.recipe, cell.device, exporter, graph_pass, cell.versions), {})[cell.opset] = result
    opsets = tuple(sorted({opset for row in rows.values() for opset in row}))
    return Grid(
        opsets=opsets,
        rows=tuple(
            Row(title=" ".join(filter(None, key)), results=tuple(row.get(opset) for opset in opsets))
            for key, row in rows.items()
        ),
    )


def describe_unit(results: Iterable[CellResult]) -> str:
    """What the numbers in the grid count."""
    lossy = any(output.similarity is not None for result in results for output in result.outputs)
    return "PyTorch's own rounding" + (", or of that of a lossy pass" if lossy else "")


def format_result(result: CellResult | None) -> str:
    """The text of a result in the grid: the largest drift of a passed cell, otherwise its status."""
    if result is None:
        return NOT_RUN
    if result.status is Status.PASSED:
        worst = result.worst
        drift = "pass" if worst is None else f"{worst.drift:.2g}" if worst.drift >= 0.1 or not worst.drift else "<0.1"
        return drift + WARNED * bool(result.warnings)
    return _WORDS[result.status]
