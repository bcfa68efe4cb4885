"""The cache of verdicts, as the process that decides sees it.

The evidence about a cell is kept under a snapshot: the contents of the project, the installed versions, the environment and the
machine. If only Python files change, recipes run again that import one of them; if anything else changes, all recipes do. If in
doubt, a cell runs, and the reason is told in words.

What compiled code, ``stat`` and other programs read cannot be seen. So the whole project counts, and so do paths elsewhere that
it mentions; an audit hook notes what else is opened, looked for or listed (:mod:`~onnx_ci.cache.watch`). Recipes that are
objects of the caller are never kept, because nobody knows what the caller's process has done to them. Entries are data from
outside: each is validated completely before it is believed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Self

from onnx_ci.cache.contents import Contents
from onnx_ci.cache.entries import ChangedError, Entry, ProjectState
from onnx_ci.cache.folder import DAMAGE, LAST_RUN, RECIPES, VERDICT, Folder, LastRun
from onnx_ci.cache.machine import machine
from onnx_ci.cache.packages import Packages
from onnx_ci.cache.places import Places
from onnx_ci.cache.project import Project
from onnx_ci.cache.snapshot import Snapshot, differences
from onnx_ci.cache.variables import digests, variables
from onnx_ci.cache.watch import ReadSet
from onnx_ci.config.options import Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Cell, CellEvidence
from onnx_ci.results.rules import DEATHS, RULES

SCHEMA = 2
"""The version of the layout and of the meaning of entries."""
NOT_RUN_BEFORE = "no verdict on it is kept"
_APPLIED_LATER = frozenset({"rules", "strict"})
"""Settings that the verdict applies to the evidence in each run."""
_MOST_OF_A_CELL = 8
"""How many entries a cell has, for a user who switches between branches."""
_WRITE_EVERY = 2.0
"""Seconds between two writes. Each takes time, because it reads the state of the project again."""


class VerdictCache:
    """The cache during one run. :meth:`open` creates it. Its methods raise no errors: what they cannot do becomes a note."""

    def __init__(self, settings: Settings) -> None:
        self.notes: list[str] = []
        """Notes to the user, each once."""
        self._settings = settings
        self._folder = Folder(settings.root.absolute() / (settings.cache or ""))
        self._environment = dict(os.environ)
        self._path = tuple(sys.path)
        self._contents = Contents(self._folder)
        self._places = Places(os.path.realpath(settings.root), self._environment)
        self._project = Project(
            places=self._places, settings=settings, folder=os.path.realpath(os.curdir), contents=self._contents
        )
        self._variables = variables(self._environment, settings.cache_ignore_variables)
        self._snapshots: dict[str, Snapshot | None] = {}
        self._pending: dict[str, tuple[str, Entry]] = {}
        """The entries that are to be written, with their recipes, by the names of their files."""
        self._written: list[str] = []
        self._models: dict[str, str] = {}
        self._not_kept: set[str] = set()
        self._hits = 0
        self._ran: Counter[str] = Counter()
        self._last_write = time.monotonic()
        self._is_closed = False

    @classmethod
    def open(cls, settings: Settings) -> Self | None:
        """The cache for a run with these settings; ``None`` if every cell has to run.

        Every cell runs if the cache is off, if only the run of a cell writes a file that is wanted, and without isolation,
        because then the code of the project runs in the process that decides.
        """
        writes = settings.artifacts is not None or settings.save_inputs is not None
        return None if settings.cache is None or writes or settings.isolation == "none" else cls(settings)

    def recipes(self, source: str) -> Any | None:
        """The data that was kept for a recipe file, if it still holds. It is not validated.

        Args:
            source: the file, relative to the project's root, with forward slashes.
        """
        for name, entry in self._entries(source):
            if not self._why_not(entry, {}):
                self._folder.mark_used(name)
                return entry.data
        return None

    def keep_recipes(self, source: str, data: Any, seen: ReadSet) -> None:
        """Keep data about a recipe file.

        Args:
            source: as for :meth:`recipes`.
            data: plain JSON data.
            seen: what the process of the file saw.
        """
        name = f"recipes-{_short(source)}-{self._present.snapshot.digest}.json"
        self._keep(name, source, source, data, seen)

    def verdict(self, cell: Cell) -> CellEvidence | str:
        """The evidence that was kept for a cell, marked as cached, if it still holds; or in words why the cell has to run."""
        reasons = []
        settings = self._settings_for(cell)
        for name, entry in self._entries(cell.id):
            if (evidence := _evidence(entry, cell)) is None:
                continue
            reason = self._why_not(entry, settings)
            if not reason:
                self._folder.mark_used(name)
                self._hits += 1
                if entry.model and entry.snapshot == self._present.snapshot.digest:
                    self._models.setdefault(_recipe_of(cell), entry.model)
                return evidence
            reasons.append(reason)
        first_reason = reasons[0] if reasons else NOT_RUN_BEFORE
        self._ran[first_reason] += 1
        return first_reason

    def keep(self, evidence: CellEvidence, seen: ReadSet, model: str) -> None:
        """Keep the evidence about a cell, if it is reproducible.

        Args:
            evidence: the evidence.
            seen: what the processes of the cell saw.
            model: a digest of the weights and the arguments that were built for this cell; empty if they are not known.
        """
        cell, recipe = evidence.cell, _recipe_of(evidence.cell)
        if model and self._models.setdefault(recipe, model) != model:
            self._forget(recipe, f"{cell.source}::{cell.recipe}")
        if not is_storable(evidence):
            return
        values = {field.name: getattr(evidence, field.name) for field in dataclasses.fields(CellEvidence)}
        data = CellEvidence(**{**values, "artifact": None, "cached": False}).as_json()
        settings = self._settings_for(cell)
        key = _digest([SCHEMA, settings])[:8]
        name = f"{_short(cell.id)}-{_short(recipe)}-{self._present.snapshot.digest}-{key}.json"
        self._keep(name, cell.source, cell.id, data, seen, recipe=recipe, settings=settings, model=model)

    def write_due(self) -> None:
        """Write pending entries, unless that has just been done. A run that is killed does not lose what is written."""
        if time.monotonic() - self._last_write >= _WRITE_EVERY:
            self._write()

    def close(self) -> None:
        """Write pending entries, and remove those of this run if something was installed meanwhile."""
        if self._is_closed:
            return
        self._is_closed = True
        self._write()
        if self._written and (changes := differences(self._present.snapshot, self._take(files=self._present.snapshot.files))):
            for name in self._written:
                self._folder.remove(name)
            self._tell(f"verdicts are not kept: during the run, {changes[0].text}")
        with contextlib.suppress(OSError, ValueError):  # _write has told the user
            if self._written or self._folder.path.is_dir():  # a run without new verdicts needs no folder
                self._contents.save()
                self._folder.write(LAST_RUN, to_json(LastRun(cached=self._hits, ran=self._ran)))
                if self._written:
                    self._folder.keep_limit()

    # --- the present ------------------------------------------------------------------------------------------------------

    @cached_property
    def _present(self) -> ProjectState:
        return ProjectState(self._project, self._take(), self._path_of_modules)

    @cached_property
    def _path_of_modules(self) -> tuple[str, ...]:
        return tuple(os.path.normpath(os.path.join(self._project.folder, place)) for place in self._path)  # noqa: PTH118

    def _take(self, files: Mapping[str, str] | None = None) -> Snapshot:
        return Snapshot(
            files=self._project.files(self._variables) if files is None else files,
            packages=Packages(places=self._places, path=self._path_of_modules, contents=self._contents).digests(),
            machine=machine(self._places, self._project.folder, self._path),
            variables=digests(self._variables, self._places),
        )

    def _settings_for(self, cell: Cell) -> dict[str, str]:
        """The settings on which the evidence about a cell depends, as texts."""
        settings = self._settings
        texts = {}
        for option in options_with(Role.VERDICT):
            value = getattr(settings, option.field)
            if option.name not in _APPLIED_LATER and value not in (None, ()):
                texts[option.name] = option.kind.show(value)
        texts["weights"] = settings.weights_for(cell.recipe) or ""
        return {name: text for name, text in texts.items() if text}

    # --- entries ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> Mapping[str, list[str]]:
        """The names of entries by what they are about, the most recently used one first."""
        index: dict[str, list[str]] = {}
        for name in self._folder.files(VERDICT, RECIPES):
            index.setdefault(_about(name), []).append(name)
        return index

    def _entries(self, about: str) -> Iterator[tuple[str, Entry]]:
        """The entries for a cell or a recipe file with the names of their files, the most recently used one first."""
        _ = self._present  # takes the snapshot before a cell runs
        for name in self._index.get(_short(about), ()):
            with contextlib.suppress(*DAMAGE):
                data: Any = self._folder.read(name)
                entry: Entry = from_json(Entry, data)
                if data["schema"] == SCHEMA and entry.about == about and f"-{entry.snapshot}" in name:
                    yield name, entry

    def _why_not(self, entry: Entry, settings: Mapping[str, str]) -> str:
        then = self._snapshot_of(entry.snapshot)
        return NOT_RUN_BEFORE if then is None else self._present.why_not(entry, then, settings)

    def _snapshot_of(self, digest: str) -> Snapshot | None:
        if digest == self._present.snapshot.digest:
            return self._present.snapshot
        if digest not in self._snapshots:
            self._snapshots[digest] = None
            with contextlib.suppress(*DAMAGE):
                snapshot: Snapshot = from_json(Snapshot, self._folder.read(f"snapshot-{digest}.json"))
                self._snapshots[digest] = snapshot if snapshot.digest == digest else None
        return self._snapshots[digest]

    # --- keeping ----------------------------------------------------------------------------------------------------------

    def _keep(
        self,
        name: str,
        source: str,
        about: str,
        data: Any,
        seen: ReadSet,
        *,
        recipe: str = "",
        settings: Mapping[str, str] | None = None,
        model: str = "",
    ) -> None:
        if self._is_closed or recipe in self._not_kept:
            return
        if seen.not_kept:
            self._tell(f"the verdicts of {source} are not kept: {seen.not_kept}")
            return
        try:
            entry = self._present.entry(about, source, data, seen, settings=settings or {}, model=model)
        except ChangedError as error:
            self._tell(f"verdicts of {source} are not kept: {error}")
            return
        self._pending[name] = recipe, entry
        self.write_due()

    def _write(self) -> None:
        """Write the pending entries, if the project is unchanged."""
        self._last_write = time.monotonic()
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        snapshot = self._present.snapshot
        files = self._project.files(self._variables)
        if files != snapshot.files:
            changed = differences(snapshot, dataclasses.replace(snapshot, files=files))[0]
            self._tell(f"verdicts are not kept: during the run, {changed.text}")
            return
        try:
            self._folder.write(f"snapshot-{snapshot.digest}.json", to_json(snapshot))
            for name, (_, entry) in pending.items():
                self._folder.write(name, {"schema": SCHEMA, **to_json(entry)})
                self._written.append(name)
                for surplus in self._index.get(_about(name), [])[_MOST_OF_A_CELL:]:
                    self._folder.remove(surplus)
        except OSError as error:
            self._tell(f"verdicts are not kept: {self._folder.path} cannot be written: {error.strerror or error}")
        except ValueError as error:
            self._tell(f"verdicts are not kept: one cannot be written as JSON: {error}")

    def _forget(self, recipe: str, title: str) -> None:
        """Remove the verdicts of a recipe whose model differs from process to process, and keep no more of them."""
        self._not_kept.add(recipe)
        self._pending = {name: pending for name, pending in self._pending.items() if pending[0] != recipe}
        for name in self._folder.files(VERDICT):
            if name.split("-")[1] == _short(recipe):
                self._folder.remove(name)
        self._tell(f"the verdicts of {title} are not kept: its weights or arguments are others in each process")

    def _tell(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def is_storable(evidence: CellEvidence) -> bool:
    """Whether a cell was judged and its result is reproducible."""
    rules = {finding.rule for finding in evidence.findings}
    return evidence.skip_cause is None and not rules & DEATHS and not any(RULES[rule].leaves_unjudged for rule in rules)


def _evidence(entry: Entry, cell: Cell) -> CellEvidence | None:
    try:
        evidence = CellEvidence.from_json(entry.data)
        if evidence.cell != cell or not is_storable(evidence) or evidence.as_json() != entry.data:
            return None
    except DAMAGE:
        return None
    return dataclasses.replace(evidence, artifact=None, cached=True)


def _about(name: str) -> str:
    """The part of an entry's name that says what it is about."""
    return name.removeprefix("recipes-").partition("-")[0]


def _recipe_of(cell: Cell) -> str:
    """The name of the cells that have the same model."""
    return f"{cell.source}::{cell.recipe} on {cell.device}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
