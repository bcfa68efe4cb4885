"""Findings by their causes: what one fault breaks is shown once, within a cell and over cells.

Findings that name the same lines of code or the same nodes have one cause; a finding that names neither is a cause of its own.
Within a cell, the first finding of a cause is shown in full and the others are its consequences. Over opsets, exporters and
devices, a cause is one paragraph. JSON reports and ``-v`` keep everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from onnx_ci.opsets import format_opsets
from onnx_ci.owners import package_folder
from onnx_ci.results.records import Cell, CellResult, Finding, Severity
from onnx_ci.results.rules import RULES
from onnx_ci.text import count, listed_shortly


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One fault in one cell."""

    finding: Finding
    consequences: tuple[Finding, ...]
    """The other findings that it explains."""


@dataclass(frozen=True, kw_only=True)
class SharedFailure:
    """Cells of one recipe that have the same causes."""

    results: tuple[CellResult, ...]
    """In the order in which they ran."""

    @property
    def first(self) -> CellResult:
        """The cell that is shown in full."""
        return self.results[0]

    @property
    def cells(self) -> str:
        """``at opsets 12-14 on cpu``."""
        return describe_cells(result.cell for result in self.results)

    @property
    def title(self) -> str:
        """``net: failed at opsets 12-14 on cpu``."""
        return f"{self.first.cell.recipe}: {self.first.status.value} {self.cells}"


def causes_of(findings: Iterable[Finding]) -> list[Cause]:
    """The causes of a cell's findings, errors first, those that the recipe expects after others, and notes last.

    A branch of which nothing is known comes after what is measured.
    Findings at the same places have one cause. So has a note or a warning about one of the lines of an error.
    """
    groups: list[list[Finding]] = []
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    for finding in sorted(findings, key=lambda each: (ranks[each.severity], each.is_expected, each.rule == "untaken-branch")):
        group = next((group for group in groups if any(_has_cause_of(finding, each) for each in group)), None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return [Cause(finding=first, consequences=tuple(rest)) for first, *rest in groups]


def _has_cause_of(finding: Finding, first: Finding) -> bool:
    """Whether a finding has the cause of another one, which is at least as severe.

    What a comparison with a model finds that returns different outputs on each run has no other cause than that, unless it is
    about an axis, and the sizes are the same on each run. Findings about one axis of one output have one cause.
    """
    axis = _axis(finding)
    if first.rule == "nondeterministic" and first.severity is Severity.ERROR:
        if axis is not None and not first.details.get("other_sizes"):
            return False
        if finding.rule in _COMPARED:
            return True
    if axis is not None and axis == _axis(first):
        return True
    places, first_places = _places(finding), _places(first)
    is_part = finding.severity is not Severity.ERROR and places <= first_places
    return bool(places) and (places == first_places or is_part)


def _axis(finding: Finding) -> tuple[str, int | str] | None:
    """The output and the axis that a finding is about; or the name of an axis that no input has at another size."""
    details = finding.details
    if "axis" in details:
        return finding.output or details.get("output", ""), details["axis"]
    return ("", details["dynamic_axis"]) if details.get("dynamic_axis") else None


_COMPARED = frozenset(rule.id for rule in RULES.values() if rule.phase == "compare")


def shared_failures(results: Iterable[CellResult]) -> list[SharedFailure]:
    """The cells that fail, those of a recipe with the same causes together."""
    groups: dict[object, list[CellResult]] = {}
    for result in results:
        if result.status.is_bad:
            groups.setdefault(failure_key(result), []).append(result)
    return [SharedFailure(results=tuple(group)) for group in groups.values()]


def failure_key(result: CellResult) -> object:
    """What cells of a recipe have in common that fail with the same causes."""
    errors = (each for each in result.findings if each.severity is Severity.ERROR)
    causes = frozenset(cause_key(cause.finding) for cause in causes_of(errors))
    return result.cell.source, result.cell.recipe, result.status, causes


@dataclass(frozen=True, kw_only=True)
class SharedFinding:
    """A finding that several cells have, which is shown once."""

    finding: Finding
    """The finding as the first cell has it."""
    cells: tuple[Cell, ...]
    """In the order in which they ran."""

    @property
    def place(self) -> str:
        """``net at opsets 12-14 on cpu``, ``net, lstm and 3 more in 45 cells``."""
        recipes = list(dict.fromkeys(cell.recipe for cell in self.cells))
        if len(recipes) == 1:
            return f"{recipes[0]} {describe_cells(self.cells)}"
        return f"{listed_shortly(recipes)} in {count(len(self.cells), 'cell')}"


_Caused = TypeVar("_Caused", Cause, SharedFinding)


def by_remedy(items: Iterable[_Caused]) -> list[tuple[_Caused, str]]:
    """Causes or findings, those with one remedy together, with the remedy after the last of them and nothing before."""
    groups: dict[tuple[Severity, str], list[_Caused]] = {}
    for each in items:
        groups.setdefault((each.finding.severity, each.finding.remedy), []).append(each)
    return [
        (each, remedy if position == len(group) else "")
        for (_, remedy), group in groups.items()
        for position, each in enumerate(group, start=1)
    ]


def shared_notes(results: Iterable[CellResult]) -> list[SharedFinding]:
    """The notes on cells that pass or fail, each cause once for all recipes; without those that belong to an error.

    Without details. Those about lines of code come last: they are what somebody can act on.
    """
    pairs: list[tuple[Cell, Finding]] = []
    for result in results:
        if result.status.is_bad:
            notes = (each.finding for each in causes_of(result.findings) if each.finding.severity is Severity.NOTE)
            pairs += [(result.cell, each) for each in notes if not _is_detail(each, of_failure=True)]
        else:  # several notes at one line are all shown, because each says something else
            pairs += [(result.cell, each) for each in result.notes if not _is_detail(each)]
    pairs.sort(key=lambda pair: bool(pair[1].lines))
    return _shared((cell, note, cause_key(note)) for cell, note in pairs)


def _is_detail(note: Finding, *, of_failure: bool = False) -> bool:
    """Whether most users can do nothing about a note: because of its rule, or because it is about lines of packages alone."""
    is_of_packages = not of_failure and bool(note.lines) and all(package_folder(line.file) for line in note.lines)
    return is_of_packages or (note.rule in RULES and RULES[note.rule].is_detail)


def shared_warnings(results: Iterable[CellResult]) -> list[SharedFinding]:
    """The warnings of cells that pass, once for each recipe."""
    return _shared(
        (result.cell, warning, (result.cell.source, result.cell.recipe, warning.rule, warning.output, warning.probe))
        for result in results
        for warning in result.warnings
    )


def baseline_changes(results: Iterable[CellResult]) -> list[SharedFinding]:
    """What changed since the baseline, once for each recipe."""
    changes = [(each.cell, change) for each in results for change in each.findings if change.baseline_change is not None]
    return _shared(
        # Messages about a missing baseline differ from cell to cell.
        (
            cell,
            each,
            (cell.source, cell.recipe, each.rule, each.severity, each.message if each.rule == "baseline-drift" else ""),
        )
        for cell, each in changes
    )


def _shared(findings: Iterable[tuple[Cell, Finding, object]]) -> list[SharedFinding]:
    """Findings with their cells, those with the same key together."""
    groups: dict[object, tuple[Finding, list[Cell]]] = {}
    for cell, finding, key in findings:
        groups.setdefault(key, (finding, []))[1].append(cell)
    return [SharedFinding(finding=finding, cells=tuple(dict.fromkeys(cells))) for finding, cells in groups.values()]


def common_causes(failures: Iterable[SharedFailure]) -> list[list[SharedFailure]]:
    """The failures, one for each recipe, those of several recipes with the same causes together.

    Two recipes have a cause in common only if it names a line of code or an operator, because all drifts read alike; or if
    both cannot be used for a reason that is the same to the letter, such as a package that is not installed. What an exporter
    raises must read alike, too, because the line may be the one that calls it.
    """
    groups: dict[object, list[SharedFailure]] = {}
    for number, failure in enumerate(failures):
        errors = [each.finding for each in causes_of(failure.first.findings) if each.finding.severity is Severity.ERROR]
        if errors and all(each.lines or each.operator for each in errors):
            words = frozenset(_NUMBER.sub("#", each.message) for each in errors if each.rule == "export-error")
            key: object = (failure.first.status, frozenset(map(cause_key, errors)), words)
        elif errors and all(each.rule == "recipe-error" for each in errors):
            key = (failure.first.status, frozenset(each.message for each in errors))
        else:
            key = number
        groups.setdefault(key, []).append(failure)
    return [*groups.values()]


def cause_key(finding: Finding) -> object:
    """What findings of one cause have in common in several cells, where numbers and names of nodes differ."""
    operators = (finding.operator, *(each.operators[:1] for each in finding.culprits))
    if finding.lines:
        return finding.rule, frozenset(finding.lines), operators
    if finding.culprits:
        return finding.rule, finding.culprits[0].nodes
    if finding.rule == "absolute-path":  # which paths differs with the recipe's file, and the exporter writes them all
        return finding.rule
    return finding.rule, finding.output, operators, _NUMBER.sub("#", finding.message)


_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]\d+)?")


def describe_cells(cells: Iterable[Cell], *, before: str = "at ") -> str:
    """``at opsets 9-12 on cpu, at opset 18 on cuda``; each part begins with ``before``."""
    cells, opsets = list(cells), dict[str, list[int]]()
    names_exporters = not all(cell.has_default_exporter for cell in cells)
    for cell in cells:
        kind = f"{cell.device} with {cell.exporter}" if names_exporters else cell.device
        kind += (f" after {cell.graph_pass}" if cell.graph_pass else "") + (f" with {cell.versions}" if cell.versions else "")
        opsets.setdefault(kind, []).append(cell.opset)
    return ", ".join(
        f"{before}opset{'s' * (len(each) > 1)} {format_opsets(tuple(sorted(each)))} on {kind}" for kind, each in opsets.items()
    )


def describe_cells_by_recipe(cells: Iterable[Cell]) -> str:
    """``net at opsets 13-17 on cpu and lstm at opset 18 on cpu``."""
    by_recipe: dict[str, list[Cell]] = {}
    for cell in cells:
        by_recipe.setdefault(cell.recipe, []).append(cell)
    return listed_shortly([f"{recipe} {describe_cells(group)}" for recipe, group in by_recipe.items()])


def _places(finding: Finding) -> frozenset[object]:
    """Where a finding says that the fault is."""
    return frozenset(finding.lines) or frozenset(node for each in finding.culprits for node in each.nodes)
