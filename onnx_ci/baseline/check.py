"""What becomes of results where a project keeps baselines: held against what is recorded, or recorded.

Neither is part of a verdict that the cache keeps: a baseline may change while the cell does not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from onnx_ci.baseline.changes import Change, Limits, changes, is_same, moved_versions
from onnx_ci.baseline.differences import differences
from onnx_ci.baseline.entry import Entry, entry_of
from onnx_ci.baseline.file import Baseline, Place
from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.config import Settings
from onnx_ci.environment import versions
from onnx_ci.errors import ConfigurationError
from onnx_ci.opsets import format_opsets
from onnx_ci.records import Cell, CellResult, Finding, Severity, Status
from onnx_ci.report.repeat import record_with_cli
from onnx_ci.rules import finding

_CLOSE = 0.25
"""Which share of the limits two opsets' numbers must keep to be written down as one."""


class Baselines:
    """The baselines of a run.

    Args:
        settings: those of the run; they say whether results are checked, recorded, or neither.
        packages: the versions of what takes part.
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
    def is_recording(self) -> bool:
        """Whether the run is to record what it finds."""
        return self._settings.baseline == "update"

    def open(self, recipes: Iterable[str]) -> None:
        """Read what is recorded of ``recipes``, so that whatever is wrong with it is told before the work.

        Raises:
            ConfigurationError: a baseline cannot be used, or those of the run cannot be written.
        """
        if self._settings.baseline == "off":
            return
        if self.is_recording:
            if self._settings.origins["baseline"].startswith("["):
                raise ConfigurationError(
                    "[tool.onnx-ci] baseline: update would record every run; say check there, and run onnx-ci baseline update"
                )
            self._folder.check_writable()
        for recipe in recipes:
            self._recorded(recipe)

    def strangers(self, recipes: Iterable[str]) -> list[Path]:
        """The files of baselines that belong to none of ``recipes``, where results are checked."""
        if self._settings.baseline != "check":
            return []
        own = {self._folder.file_of(recipe) for recipe in recipes}
        return [path for path in self._folder.files() if path not in own]

    def _recorded(self, recipe: str) -> Baseline | None:
        if recipe not in self._known:
            self._known[recipe] = self._folder.load(recipe)
        return self._known[recipe]

    # --- checking

    def judge(self, result: CellResult, allow: Collection[str] = ()) -> CellResult:
        """``result`` with what its baseline has to say about it; as it is where nothing is checked.

        Args:
            allow: rules whose findings the recipe takes as notes.
        """
        if self._settings.baseline != "check" or result.facts is None:
            return result
        if result.status not in (Status.PASSED, Status.FAILED):
            return result
        found = [
            dataclasses.replace(each, severity=Severity.NOTE) if each.rule in allow else each for each in self._findings(result)
        ]
        failed = result.status is Status.PASSED and any(each.severity is Severity.ERROR for each in found)
        return dataclasses.replace(
            result, status=Status.FAILED if failed else result.status, findings=(*result.findings, *found)
        )

    def _findings(self, result: CellResult) -> Iterable[Finding]:
        cell = result.cell
        recorded = self._recorded(cell.recipe)
        old = None if recorded is None else recorded.cells.get(Place.of(cell))
        command = record_with_cli(cell, self._settings)
        if old is None:
            if result.status is Status.PASSED and (severity := self._severity("missing")):
                remedy = f"Record it, read what is recorded and commit it: {command}"
                yield finding("baseline-missing", _missing(cell, recorded), severity=severity, remedy=remedy)
            return
        new = entry_of(result, self._packages)
        moved = changes(old, new, self._settings.baseline_limits)
        packages = moved_versions(old, new)
        remedy = f"If the change is meant, record it, read the difference and commit it: {command}"
        for change in moved:
            if severity := self._severity(change.kind, change):
                said = f"{change.words}; meanwhile {packages}" if packages else change.words
                yield finding("baseline-drift", said, severity=severity, remedy=remedy, change=change.kind)
        if packages and not moved and (severity := self._severity("versions")):
            said = f"{packages}, and nothing else moved"
            yield finding("baseline-drift", said, severity=severity, remedy=remedy, change="versions")

    def _severity(self, kind: str, change: Change | None = None) -> Severity | None:
        policy = self._settings.baseline_policy[kind]
        if policy == "ignore":
            return None
        return Severity.NOTE if change is not None and change.is_harmless else Severity(policy)

    # --- recording

    def record(self, results: Iterable[CellResult]) -> list[str]:
        """Record the results that passed, and say what that changes, line by line.

        Cells that did not run, or did not pass, keep what is recorded of them.

        Raises:
            ConfigurationError: a baseline cannot be read or written. Those before it are written, this one stays.
        """
        by_recipe: dict[str, list[CellResult]] = {}
        for result in results:
            by_recipe.setdefault(result.cell.recipe, []).append(result)
        lines = []
        for recipe, each in by_recipe.items():
            lines += self._record(recipe, each)
        return lines

    def _record(self, recipe: str, results: Iterable[CellResult]) -> list[str]:
        accepted = [each for each in results if each.status is Status.PASSED and each.facts is not None]
        bad = [each for each in results if each.status.is_bad]
        lines = [f"{recipe} {each.cell.label}: not recorded, for it {each.status.value}" for each in bad]
        if not accepted:
            return lines
        limits = self._settings.baseline_limits
        with self._folder.locked():
            before = self._folder.load(recipe)  # anew: another process may have written since
            recorded = {} if before is None else dict(before.cells)
            for result in accepted:
                place = Place.of(result.cell)
                new, old = entry_of(result, self._packages), recorded.get(place)
                recorded[place] = new if old is None else _kept(old, new, limits)
            after = Baseline(recipe=recipe, cells=_aligned(recorded, before, limits))
            if before is None or before.cells != after.cells:
                self._folder.store(after)
        self._known[recipe] = after
        moved = differences(before, after, limits)
        return [*lines, *(f"{recipe} {line}" for line in moved or [f"({_count(len(accepted))}): nothing moved"])]


def _count(cells: int) -> str:
    return f"{cells} cell{'s' * (cells != 1)}"


def _missing(cell: Cell, recorded: Baseline | None) -> str:
    if recorded is None:
        return f"nothing is recorded for {cell.recipe!r}"
    known = {f"{exporter}, {device}": format_opsets(entries) for (device, exporter), entries in recorded.sections().items()}
    listed = "; ".join(f"opset {opsets} ({where})" for where, opsets in known.items())
    return f"nothing is recorded at opset {cell.opset} ({cell.exporter}, {cell.device}); what is, is {listed}"


def _kept(old: Entry, new: Entry, limits: Limits) -> Entry:
    """``new``, with the numbers of ``old`` where they are the same for all that a check says.

    So a file changes where something moved, and nowhere else. What is kept is what was accepted, so small steps add up and
    are seen in the end.
    """
    return {line: old[line] if line in old and is_same(line, old, new, limits) else value for line, value in new.items()}


def _aligned(cells: Mapping[Place, Entry], before: Baseline | None, limits: Limits) -> dict[Place, Entry]:
    """The cells, each with the numbers of the opset before it where they are almost the same, so that they are one line."""
    narrow = {name: limit * _CLOSE for name, limit in limits.items()} | {"noise": 1.0, "counts": 0.0}
    aligned: dict[Place, Entry] = {}
    known = {} if before is None else before.cells
    for place in sorted(cells):
        entry = dict(cells[place])
        earlier = [each for at, each in aligned.items() if (at.device, at.exporter) == (place.device, place.exporter)]
        for line, value in entry.items():
            if line[-1] != "drift" and known.get(place, {}).get(line) != value:  # what stood there stays
                entry[line] = next((e[line] for e in earlier if line in e and is_same(line, e, cells[place], narrow)), value)
        aligned[place] = entry
    return aligned
