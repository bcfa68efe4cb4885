"""Findings by their causes: what one fault breaks is told once, within a cell and over cells.

A cause is known by the line of code or the nodes that findings name; without either, every finding is a cause of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from onnx_ci.opsets import format_opsets
from onnx_ci.results.records import Cell, CellResult, Finding, Severity
from onnx_ci.text import count, listed_shortly


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One fault in one cell."""

    finding: Finding
    consequences: tuple[Finding, ...]
    """The other findings that it explains."""


@dataclass(frozen=True, kw_only=True)
class SharedFailure:
    """Cells of one recipe that fail for the same causes."""

    results: tuple[CellResult, ...]
    """In the order in which they ran."""

    @property
    def first(self) -> CellResult:
        """The cell that is told in full."""
        return self.results[0]

    @property
    def cells(self) -> str:
        """``at opsets 12-14 on cpu``."""
        return in_words(result.cell for result in self.results)

    @property
    def title(self) -> str:
        """``net: failed at opsets 12-14 on cpu``."""
        return f"{self.first.cell.recipe}: {self.first.status.value} {self.cells}"


@dataclass(frozen=True, kw_only=True)
class CommonCause:
    """Cells of one or several recipes that fail for the same causes."""

    failures: tuple[SharedFailure, ...]
    """One for each recipe, in the order in which they ran."""

    @property
    def first(self) -> CellResult:
        """The cell that is told in full."""
        return self.failures[0].first


def causes_of(findings: Iterable[Finding]) -> list[Cause]:
    """The causes of a cell's findings, errors first and notes last.

    Findings at the same places have one cause. So has a note or a warning about one of the lines of an error.
    """
    ordered = sorted(findings, key=lambda each: list(Severity).index(each.severity))
    found: list[list[Finding]] = []
    for finding in ordered:
        places = _places(finding)
        same = (
            group
            for group in found
            if places
            and (places == _places(group[0]) or (finding.severity is not Severity.ERROR and places <= _places(group[0])))
        )
        group = next(same, None)
        if group is None:
            found.append([finding])
        else:
            group.append(finding)
    return [Cause(finding=first, consequences=tuple(rest)) for first, *rest in found]


def shared_failures(results: Iterable[CellResult]) -> list[SharedFailure]:
    """The cells that fail, each group with the same causes once."""
    found: dict[object, list[CellResult]] = {}
    for result in results:
        if result.status.is_bad:
            errors = (each for each in result.findings if each.severity is Severity.ERROR)
            causes = frozenset(cause_key(cause.finding) for cause in causes_of(errors))
            found.setdefault((result.cell.source, result.cell.recipe, result.status, causes), []).append(result)
    return [SharedFailure(results=tuple(each)) for each in found.values()]


@dataclass(frozen=True, kw_only=True)
class SharedNote:
    """A note with one cause, on cells that pass."""

    finding: Finding
    """The note as the first cell has it."""
    cells: tuple[Cell, ...]
    """In the order in which they ran."""

    @property
    def place(self) -> str:
        """``net at opsets 12-14 on cpu``, ``net, lstm and 3 more in 45 cells``."""
        recipes = list(dict.fromkeys(cell.recipe for cell in self.cells))
        if len(recipes) == 1:
            return f"{recipes[0]} {in_words(self.cells)}"
        return f"{listed_shortly(recipes)} in {count(len(self.cells), 'cell')}"


def shared_notes(results: Iterable[CellResult]) -> list[SharedNote]:
    """The notes on cells that pass, those with the same cause once, whatever recipes they are on."""
    found: dict[object, tuple[Finding, list[Cell]]] = {}
    for result in results:
        for note in result.notes:  # those at one line, too: each says something else
            found.setdefault(cause_key(note), (note, []))[1].append(result.cell)
    return [SharedNote(finding=finding, cells=tuple(dict.fromkeys(cells))) for finding, cells in found.values()]


def common_causes(failures: Iterable[SharedFailure]) -> list[CommonCause]:
    """The failures, those of several recipes together if they have the same causes.

    Two recipes have a cause in common only if it names a line of code or an operator: all drifts read alike.
    """
    found: dict[object, list[SharedFailure]] = {}
    for number, failure in enumerate(failures):
        errors = [each.finding for each in causes_of(failure.first.findings) if each.finding.severity is Severity.ERROR]
        has_places = bool(errors) and all(each.lines or each.operator for each in errors)
        key = (failure.first.status, frozenset(map(cause_key, errors))) if has_places else number
        found.setdefault(key, []).append(failure)
    return [CommonCause(failures=tuple(each)) for each in found.values()]


def cause_key(finding: Finding) -> object:
    """What a finding has in common with those of the same cause in other cells, whose numbers and node names differ."""
    operators = (finding.operator, *(each.operators[:1] for each in finding.culprits))
    if finding.lines:
        return finding.rule, frozenset(finding.lines), operators
    if finding.culprits:
        return finding.rule, finding.culprits[0].nodes
    return finding.rule, finding.output, operators, _NUMBER.sub("#", finding.message)


_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]\d+)?")


def in_words(cells: Iterable[Cell], *, before: str = "at ") -> str:
    """``at opsets 9-12 on cpu, at opset 18 on cuda``; each part begins with ``before``."""
    opsets: dict[str, list[int]] = {}
    for cell in cells:
        kind, _, stage = cell.label.removeprefix(f"opset{cell.opset}-").partition("+")
        kind = kind.replace("-", " with ") + (f" after {stage}" if stage else "")
        opsets.setdefault(kind, []).append(cell.opset)
    return ", ".join(
        f"{before}opset{'s' * (len(each) > 1)} {format_opsets(tuple(sorted(each)))} on {kind}" for kind, each in opsets.items()
    )


def _places(finding: Finding) -> frozenset[object]:
    """Where a finding says that the fault is."""
    return frozenset(finding.lines) or frozenset(node for each in finding.culprits for node in each.nodes)
