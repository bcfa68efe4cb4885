"""Compares results with the baselines of a project, or records them.

Neither is part of a cached verdict: a baseline can change while the cell does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

from onnx_ci.baseline.changes import Change, Limits, changed_versions, changes, is_same
from onnx_ci.baseline.changes_by_opset import differences
from onnx_ci.baseline.entry import Entry, entry_of, without_values
from onnx_ci.baseline.file import Baseline, Place
from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.config.reproduce import record_with_cli
from onnx_ci.config.settings import Settings
from onnx_ci.environment.versions import versions
from onnx_ci.errors import ConfigurationError
from onnx_ci.opsets import format_opsets
from onnx_ci.results.records import Cell, CellEvidence, CellResult, ExportFacts, Finding, SettingSource, Severity, Status
from onnx_ci.results.rules import finding
from onnx_ci.text import count

_CLOSE = 0.25
"""The share of the limits within which the numbers of two opsets are recorded as one."""


class Baselines:
    """The baselines of a run.

    Args:
        settings: the settings of the run, which choose between checking, recording and neither.
        packages: the versions of the packages involved.
    """

    def __init__(self, settings: Settings, packages: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._given_packages = packages
        self._folder = BaselineFolder(settings.root / settings.baseline_folder)
        self._known: dict[str, Baseline | None] = {}

    @functools.cached_property
    def _packages(self) -> Mapping[str, str]:
        return versions() if self._given_packages is None else self._given_packages

    @property
    def is_checking(self) -> bool:
        """Whether the run compares results with the recorded ones."""
        return self._settings.baseline == "check"

    @property
    def is_recording(self) -> bool:
        """Whether the run records its results."""
        return self._settings.baseline == "update"

    def open(self, recipes: Iterable[str]) -> None:
        """Read the baselines of ``recipes``, so that errors in them are reported before any cell runs.

        Raises:
            ConfigurationError: a baseline cannot be used or, when recording, written.
        """
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
        own = {self._folder.file_of(recipe) for recipe in recipes}
        return [path for path in self._folder.files() if path not in own]

    def _recorded(self, recipe: str) -> Baseline | None:
        if recipe not in self._known:
            self._known[recipe] = self._folder.load(recipe)
        return self._known[recipe]

    # --- checking

    def findings(self, evidence: CellEvidence, *, is_clean: bool = True, ignores_weights: bool = False) -> list[Finding]:
        """The differences of a cell from its baseline; none if results are not checked.

        Args:
            evidence: everything else that was found out about the cell.
            is_clean: whether nothing else fails the cell; only then is a missing baseline a finding.
            ignores_weights: leave out what depends on the values of the weights, because the file has different weights from
                the recorded one.
        """
        if not self.is_checking or evidence.facts is None:
            return []
        return list(self._findings(evidence, evidence.facts, is_clean, ignores_weights))

    def _findings(self, evidence: CellEvidence, facts: ExportFacts, is_clean: bool, ignores_weights: bool) -> Iterable[Finding]:
        cell = evidence.cell
        recorded = self._recorded(cell.recipe)
        old = None if recorded is None else recorded.cells.get(Place.of(cell))
        command = record_with_cli(cell, self._settings)
        if old is None:
            if is_clean and (severity := self._severity("missing")):
                remedy = f"Record it, review what is recorded and commit it: {command}"
                message = _missing(cell, recorded)
                yield finding("baseline-missing", message, severity=severity, remedy=remedy, baseline_change="missing")
            return
        new = entry_of(evidence, facts, self._packages)
        if ignores_weights:
            new, old = without_values(new, weights=old), without_values(old, weights=old)
        changed = changes(old, new, self._settings.baseline_limits)
        packages = changed_versions(old, new)
        remedy = f"If the change is intended, record it, review the difference and commit it: {command}"
        for change in changed:
            if severity := self._severity(change.kind, change):
                message = f"{change.words}; meanwhile {packages}" if packages else change.words
                yield finding("baseline-drift", message, severity=severity, remedy=remedy, baseline_change=change.kind)
        if packages and not changed and (severity := self._severity("versions")):
            message = f"{packages}, and nothing else changed"
            yield finding("baseline-drift", message, severity=severity, remedy=remedy, baseline_change="versions")

    def _severity(self, kind: str, change: Change | None = None) -> Severity | None:
        policy = self._settings.baseline_policy[kind]
        if policy == "ignore":
            return None
        return Severity.NOTE if change is not None and change.is_harmless else Severity(policy)

    # --- recording

    def record(self, results: Iterable[CellResult]) -> list[str]:
        """Record the results that passed, and return what that changes, line by line.

        What is recorded for cells that did not run or did not pass is kept.

        Raises:
            ConfigurationError: a baseline cannot be read or written. Those before it have been written.
        """
        by_recipe: dict[str, list[CellResult]] = {}
        for result in results:
            by_recipe.setdefault(result.cell.recipe, []).append(result)
        lines = []
        for recipe, each in by_recipe.items():
            lines += self._record(recipe, each)
        return lines

    def _record(self, recipe: str, results: Iterable[CellResult]) -> list[str]:
        results = tuple(results)
        accepted = [(each, each.facts) for each in results if each.status is Status.PASSED and each.facts is not None]
        bad = [each for each in results if each.status.is_bad and each.cell.stage is None]
        lines = [f"{recipe} {each.cell.label}: not recorded ({each.status.value})" for each in bad]
        if not accepted:
            return lines
        limits = self._settings.baseline_limits
        with self._folder.locked():
            before = self._folder.load(recipe)  # again, because another process may have written it
            recorded = {} if before is None else dict(before.cells)
            for result, facts in accepted:
                place = Place.of(result.cell)
                new, old = entry_of(result, facts, self._packages), recorded.get(place)
                recorded[place] = new if old is None else _kept(old, new, limits)
            after = Baseline(recipe=recipe, cells=_aligned(recorded, before, limits))
            if before is None or before.cells != after.cells:
                self._folder.store(after)
        self._known[recipe] = after
        changed = differences(before, after, limits)
        return [*lines, *(f"{recipe} {line}" for line in changed or [f"({count(len(accepted), 'cell')}): nothing changed"])]


def _missing(cell: Cell, recorded: Baseline | None) -> str:
    if recorded is None:
        return f"nothing is recorded for {cell.recipe!r}"
    known = {f"{exporter}, {device}": format_opsets(entries) for (device, exporter), entries in recorded.sections().items()}
    listed = "; ".join(f"opset {opsets} ({where})" for where, opsets in known.items())
    return f"nothing is recorded at opset {cell.opset} ({cell.exporter}, {cell.device}); recorded: {listed}"


def _kept(old: Entry, new: Entry, limits: Limits) -> Entry:
    """``new``, with the numbers of ``old`` where a check reports no difference.

    So a file changes only where something changed. Because the accepted numbers are kept, many small steps add up and are
    eventually detected.
    """
    return {line: old[line] if line in old and is_same(line, old, new, limits) else value for line, value in new.items()}


def _aligned(cells: Mapping[Place, Entry], before: Baseline | None, limits: Limits) -> dict[Place, Entry]:
    """The cells, with the numbers of a lower opset where they are almost the same, so that they share one line."""
    narrow = {name: limit * _CLOSE for name, limit in limits.items()} | {"noise": 1.0, "counts": 0.0}
    aligned: dict[Place, Entry] = {}
    known = {} if before is None else before.cells
    for place in sorted(cells):
        entry = dict(cells[place])
        earlier = [each for at, each in aligned.items() if (at.device, at.exporter) == (place.device, place.exporter)]
        for line, value in entry.items():
            if line[-1] != "drift" and known.get(place, {}).get(line) != value:  # recorded numbers are kept
                entry[line] = next((e[line] for e in earlier if line in e and is_same(line, e, cells[place], narrow)), value)
        aligned[place] = entry
    return aligned
