"""Compares results with the baselines of a project, or records them.

Neither is part of a cached verdict: a baseline can change while the cell does not. A baseline has the values of the model in
float64; a runtime's values appear in it only as drift. A known failure is not compared with what was accepted before it. A file
that is given to ``verify`` is compared in what does not depend on the values of the weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from onnx_ci.baseline.changes import Limits, changed_versions, changes, differences, is_same
from onnx_ci.baseline.entry import Entry, entry_of, without_values
from onnx_ci.baseline.file import Baseline, Place
from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.config.reproduce import record_with_cli
from onnx_ci.config.settings import Settings
from onnx_ci.environment.versions import versions
from onnx_ci.errors import ConfigurationError
from onnx_ci.opsets import format_opsets
from onnx_ci.results.records import Cell, CellEvidence, CellResult, Finding, SettingSource, Severity, Status
from onnx_ci.results.rules import BASELINE_CHANGES, finding
from onnx_ci.text import count

_CLOSE = 0.25
"""The share of the limits within which two opsets get the same recorded number."""


class Baselines:
    """The baselines of a run, whose settings choose between checking, recording and neither."""

    def __init__(self, settings: Settings, packages: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._folder = BaselineFolder(settings.root / settings.baseline_folder)
        self._packages = functools.cache(versions if packages is None else lambda: packages)
        self._loaded: dict[str, Baseline | None] = {}

    @property
    def is_checking(self) -> bool:
        """Whether the run compares results with the recorded ones."""
        return self._settings.baseline == "check"

    @property
    def is_recording(self) -> bool:
        """Whether the run records its results."""
        return self._settings.baseline == "update"

    def open(self, recipes: Iterable[str]) -> None:
        """Read the baselines of ``recipes``. Raises ``ConfigurationError`` if one cannot be used or recorded."""
        if self._settings.baseline == "off":
            return
        if self.is_recording:
            if self._settings.origins["baseline"].source is SettingSource.PROJECT_FILE:
                raise ConfigurationError(
                    "[tool.onnx-ci] baseline: update would record on every run; set it to check, and run onnx-ci baseline "
                    "update"
                )
            self._folder.check_writable()
        for recipe in recipes:
            self._recorded(recipe)

    def orphans(self, recipes: Iterable[str]) -> list[Path]:
        """The baseline files that belong to none of ``recipes``, if results are checked."""
        if not self.is_checking:
            return []
        expected = {self._folder.file_of(recipe) for recipe in recipes}
        return [path for path in self._folder.files() if path not in expected]

    def _recorded(self, recipe: str) -> Baseline | None:
        if recipe not in self._loaded:
            self._loaded[recipe] = self._folder.load(recipe)
        return self._loaded[recipe]

    def findings(self, evidence: CellEvidence, *, is_clean: bool = True, ignores_weights: bool = False) -> Iterator[Finding]:
        """The changes of a cell since its baseline; none if results are not checked.

        A missing baseline is not reported for a cell that fails anyway. If the weights differ from the recorded ones,
        changes that depend on their values are left out.
        """
        if not self.is_checking or evidence.facts is None:
            return
        cell = evidence.cell
        recorded = self._recorded(cell.recipe)
        old = None if recorded is None else recorded.cells.get(Place.of(cell))
        command = record_with_cli(cell, self._settings)
        if old is None:
            if is_clean and (severity := self._severity(cell.recipe, "missing")):
                remedy = f"Record it, review what is recorded and commit it: {command}"
                message = _missing(cell, recorded)
                yield finding("baseline-missing", message, severity=severity, remedy=remedy, baseline_change="missing")
            return
        new = entry_of(evidence, evidence.facts, self._packages())
        if ignores_weights:
            new, old = without_values(new, weights=old), without_values(old, weights=old)
        changed = changes(old, new, self._settings.baseline_limits)
        packages = changed_versions(old, new)
        remedy = f"If the change is intended, record it, review the difference and commit it: {command}"
        for change in changed:
            if severity := self._severity(cell.recipe, change.kind, is_harmless=change.is_harmless):
                message = f"{change.text}; meanwhile {packages}" if packages else change.text
                yield finding("baseline-drift", message, severity=severity, remedy=remedy, baseline_change=change.kind)
        if packages and not changed and (severity := self._severity(cell.recipe, "versions")):
            message = f"{packages}, and nothing else changed"
            yield finding("baseline-drift", message, severity=severity, remedy=remedy, baseline_change="versions")

    def _severity(self, recipe: str, kind: str, *, is_harmless: bool = False) -> Severity | None:
        """The severity of a kind of change, which the project may have declared; ``None`` if it is ignored."""
        severity = self._settings.severities_for(recipe).get(f"baseline-{kind}", BASELINE_CHANGES[kind])
        return Severity.NOTE if is_harmless and severity else severity

    def record(self, results: Iterable[CellResult]) -> list[str]:
        """Record the results that passed, and return the changes, line by line. Raises ``ConfigurationError``."""
        by_recipe: dict[str, list[CellResult]] = {}
        for result in results:
            by_recipe.setdefault(result.cell.recipe, []).append(result)
        return [line for recipe in by_recipe for line in self._record(recipe, by_recipe[recipe])]

    def _record(self, recipe: str, results: Sequence[CellResult]) -> list[str]:
        accepted = [(result, result.facts) for result in results if result.status is Status.PASSED and result.facts is not None]
        bad = [result for result in results if result.status.is_bad]
        lines = [f"{recipe} {result.cell.label}: not recorded ({result.status.value})" for result in bad]
        if not accepted:
            return lines
        limits = self._settings.baseline_limits
        with self._folder.locked():
            before = self._folder.load(recipe)  # again, because another process may have written it
            recorded = {} if before is None else dict(before.cells)
            for result, facts in accepted:
                place = Place.of(result.cell)
                new, old = entry_of(result, facts, self._packages()), recorded.get(place, {})
                # A file changes only where a check reports a change, so many small steps add up until one does.
                kept = {line: old[line] for line in new if line in old and is_same(line, old, new, limits)}
                recorded[place] = {**new, **kept}
            after = Baseline(recipe=recipe, cells=_aligned(recorded, before, limits))
            if before is None or before.cells != after.cells:
                self._folder.store(after)
        self._loaded[recipe] = after
        changed = differences(before, after, limits)
        return [*lines, *(f"{recipe} {line}" for line in changed or [f"({count(len(accepted), 'cell')}): nothing changed"])]


def _missing(cell: Cell, recorded: Baseline | None) -> str:
    if recorded is None:
        return f"nothing is recorded for {cell.recipe!r}"
    sections = "; ".join(
        f"opset {format_opsets(entries)} ({exporter}, {target})" for (target, exporter), entries in recorded.sections().items()
    )
    return f"nothing is recorded at opset {cell.opset} ({cell.exporter}, {Place.of(cell).target}); recorded: {sections}"


def _aligned(cells: Mapping[Place, Entry], before: Baseline | None, limits: Limits) -> dict[Place, Entry]:
    """The cells with the numbers of a lower opset where they are almost the same, so that the opsets share a line."""
    narrow = {name: limit * _CLOSE for name, limit in limits.items()} | {"noise": 1.0, "counts": 0.0}
    aligned: dict[Place, Entry] = {}
    recorded = {} if before is None else before.cells
    for place in sorted(cells):
        entry = dict(cells[place])
        lower = [aligned[below] for below in aligned if (below.target, below.exporter) == (place.target, place.exporter)]
        for line, value in entry.items():
            if line[-1] != "drift" and recorded.get(place, {}).get(line) != value:  # recorded numbers stay
                alike = (other[line] for other in lower if line in other and is_same(line, other, cells[place], narrow))
                entry[line] = next(alike, value)
        aligned[place] = entry
    return aligned
