"""The cache of verdicts, as the process that decides sees it.

The evidence about a cell is kept with all on which it depends: a snapshot, which counts for every recipe, and what the cell's
processes saw beyond it. It is shown again while both are the same. Once a day, a kept verdict is judged again; if it differs,
all kept ones are discarded. Nothing is kept about recipes that a caller passes as objects, because its process may have changed
them. Entries are data from outside: each is validated completely before it is believed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

from onnx_ci.cache.folder import DAMAGE, LAST_RUN, RECIPES, VERDICT, Contents, Folder, LastRun, digest_of_data, digest_of_text
from onnx_ci.cache.present import ChangedError, Observations, Project
from onnx_ci.cache.snapshot import Snapshot, differences
from onnx_ci.cache.watch import ReadSet
from onnx_ci.config.options import Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Cell, CellEvidence, Severity
from onnx_ci.results.rules import DEATHS, RULES, finding
from onnx_ci.text import listed_shortly

SCHEMA = 3
"""The version of the layout and of the meaning of entries."""
NOT_RUN_BEFORE, CHECKED = "no verdict on it is kept", "its kept verdict is checked"
_APPLIED_LATER = frozenset({"rules", "strict"})
"""Settings that the verdict applies to the evidence in each run."""
_MOST_OF_A_CELL = 8
"""How many entries a cell has, for a user who switches between branches."""
_DAY = 24 * 60 * 60.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept, and what it depends on.

    It holds under the same snapshot and the same settings, as long as all that its processes saw beyond the snapshot is the
    same: the files, the folders, the modules that Python would find, and the variables that the code names.
    """

    about: str
    """The id of a cell, or a recipe file."""
    snapshot: str
    seen: str
    settings: Mapping[str, str]
    judged: float
    """When it was found out, in seconds since 1970."""
    model: str
    """A digest of the weights and the arguments; empty if they are not known."""
    data: Any


class VerdictCache:
    """The cache during one run. :meth:`open` creates it. Its methods raise no errors: what they cannot do becomes a note."""

    def __init__(self, settings: Settings) -> None:
        self.notes: list[str] = []
        """Notes to the user, each once."""
        self._settings = settings
        self._folder = Folder(settings.root.absolute() / (settings.cache or ""))
        self._contents = Contents(self._folder)
        self._changes_since = functools.cache(self._read_changes_since)
        self._hits: dict[str, tuple[float, CellEvidence]] = {}
        """When the kept verdicts were found out with which this run answers, and their evidence, by cell."""
        self._written: set[str] = set()
        self._models: dict[str, str] = {}
        self._not_kept: set[str] = set()
        self._ran: Counter[str] = Counter()
        self._is_checked = self._is_closed = False

    @classmethod
    def open(cls, settings: Settings) -> Self | None:
        """The cache for a run with these settings; ``None`` if every cell has to run.

        Every cell runs if the cache is off, if only the run of a cell writes a file that is wanted, and without isolation,
        because then the code of the project runs in the process that decides.
        """
        writes = settings.artifacts is not None or settings.save_inputs is not None
        return None if settings.cache is None or writes or settings.isolation == "none" else cls(settings)

    def recipes(self, source: str) -> Any | None:
        """The data that was kept for a recipe file, if it still holds. It is not validated."""
        for name, entry in self._entries(source):
            if not self._why_not(entry, {}):
                self._folder.mark_used(name)
                return entry.data
        return None

    def keep_recipes(self, source: str, data: Any, seen: ReadSet) -> None:
        """Keep data about a recipe file."""
        self._keep(f"recipes-{_short(source)}", source, data, seen)

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
                self._hits[cell.id] = entry.judged, evidence
                if entry.model and entry.snapshot == self._present.digest:
                    self._models.setdefault(_recipe_of(cell), entry.model)
                return evidence
            reasons.append(reason)
        first_reason = reasons[0] if reasons else NOT_RUN_BEFORE
        self._ran[first_reason] += 1
        return first_reason

    def keep(self, evidence: CellEvidence, seen: ReadSet, model: str) -> None:
        """Keep the evidence about a cell, if it is reproducible. It is written at once.

        Args:
            model: a digest of the weights and the arguments that were built for this cell; empty if they are not known.
        """
        cell, recipe = evidence.cell, _recipe_of(evidence.cell)
        if model and self._models.setdefault(recipe, model) != model:
            self._forget(recipe, f"{cell.source}::{cell.recipe}")
        if is_storable(evidence) and recipe not in self._not_kept:
            name = f"{_short(cell.id)}-{_short(recipe)}"
            self._keep(name, cell.id, evidence.as_json(), seen, self._settings_for(cell), model)

    # --- whether kept verdicts are still right ----------------------------------------------------------------------------

    def due(self) -> list[str]:
        """The ids of cells to judge although a kept verdict answers: all with ``audit``, else the oldest one, after a day."""
        if self._settings.cache_audit:
            return [*self._hits]
        oldest = min(self._hits, key=lambda cell: self._hits[cell][0], default=None)
        if oldest is None or self._is_checked or time.time() - self._hits[oldest][0] <= _DAY:
            return []
        self._is_checked = True
        return [oldest]

    def check(self, evidence: CellEvidence) -> CellEvidence:
        """Compare fresh evidence with the kept one. If they differ, no kept verdict is believed, and a finding says so."""
        judged, kept = self._hits.pop(evidence.cell.id, (0.0, None))
        if kept is None:
            return evidence
        self._ran[CHECKED] += 1
        if not is_storable(evidence) or _errors(kept) == _errors(evidence):
            return evidence
        for name in {*self._folder.files(VERDICT, RECIPES)} - self._written:
            self._folder.remove(name)
        self._index.clear()
        before, now = (", ".join(_errors(each)) or "no error" for each in (kept, evidence))
        then = datetime.fromtimestamp(judged, UTC).date().isoformat()
        message = f"nothing that the cache sees has changed since {then}, but then there was {before}, and now there is {now}"
        return dataclasses.replace(evidence, findings=(*evidence.findings, finding("stale-verdict", message)))

    def close(self) -> None:
        """Remove the entries of this run if something that counts for all was changed meanwhile."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._written and (changes := differences(self._present, self._project.snapshot())):
            for name in self._written:
                self._folder.remove(name)
            self._tell(f"verdicts are not kept: during the run, {changes[0]}")
        with contextlib.suppress(OSError, ValueError):  # _keep has told the user
            if self._written or self._folder.path.is_dir():  # a run without new verdicts needs no folder
                self._contents.save()
                if self._hits or self._ran:  # not a command that only lists cells
                    self._folder.write(LAST_RUN, to_json(LastRun(cached=len(self._hits), ran=self._ran)))
                if self._written:
                    self._folder.keep_limit()

    @cached_property
    def _project(self) -> Project:  # as it is when first asked about: by then, a conftest.py has set variables
        return Project(self._settings, self._contents)

    @cached_property
    def _present(self) -> Snapshot:
        return self._project.snapshot()

    def _read_changes_since(self, kind: type[Snapshot | Observations], file: str, digest: str) -> tuple[str, ...]:
        """The changes since a snapshot or observations, in words; that there is none if the file is lost."""
        then = None
        with contextlib.suppress(*DAMAGE):
            then = from_json(kind, self._folder.read(f"{file}-{digest}.json"))
        if then is None or digest_of_data(to_json(then)) != digest:
            return (NOT_RUN_BEFORE,)
        return differences(then, self._present) if isinstance(then, Snapshot) else tuple(self._project.changes_of(then))

    def _settings_for(self, cell: Cell) -> dict[str, str]:
        """The settings on which the evidence about a cell depends, as texts."""
        settings = self._settings
        options = [option for option in options_with(Role.VERDICT) if option.name not in _APPLIED_LATER]
        values = [(option, getattr(settings, option.field)) for option in options]
        texts = {option.name: option.kind.show(value) for option, value in values if value not in (None, ())}
        texts["weights"] = settings.weights_for(cell.recipe) or ""
        return {name: text for name, text in texts.items() if text}

    # --- entries ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> dict[str, list[str]]:
        """The names of entries by what they are about, which is in the names; the most recently used one first."""
        index: dict[str, list[str]] = {}
        for name in self._folder.files(VERDICT, RECIPES):
            index.setdefault(name.removeprefix("recipes-").partition("-")[0], []).append(name)
        return index

    def _entries(self, about: str) -> Iterator[tuple[str, Entry]]:
        """The entries for a cell or a recipe file with the names of their files, the most recently used one first."""
        _ = self._present  # takes the snapshot before a cell runs
        for name in self._index.get(_short(about), ()):
            with contextlib.suppress(*DAMAGE):
                data: Any = self._folder.read(name)
                entry: Entry = from_json(Entry, data)
                if data["schema"] == SCHEMA and entry.about == about and f"-{entry.snapshot}-{entry.seen}" in name:
                    yield name, entry

    def _why_not(self, entry: Entry, settings: Mapping[str, str]) -> str:
        """Why an entry does not hold, in words; empty if it holds."""
        before, days = entry.settings, (time.time() - entry.judged) / _DAY
        changed = [name for name in sorted(before.keys() | settings.keys()) if before.get(name) != settings.get(name)]
        reasons = [
            *(f"{name} {before.get(name) or 'none'} → {settings.get(name) or 'none'}" for name in changed),
            *(() if entry.snapshot == self._present.digest else self._changes_since(Snapshot, "snapshot", entry.snapshot)),
            *self._changes_since(Observations, "seen", entry.seen),
            *([f"it was judged {days:.0f} days ago"] if days > self._settings.cache_days else []),
        ]
        return listed_shortly([*dict.fromkeys(reasons)]) if reasons else ""

    def _keep(
        self, name: str, about: str, data: Any, seen: ReadSet, settings: Mapping[str, str] | None = None, model: str = ""
    ) -> None:
        source = about.partition("::")[0]
        if seen.not_kept:
            self._tell(f"the verdicts of {source} are not kept: {seen.not_kept}")
            return
        try:
            observations = to_json(self._project.observations(seen))
            entry = Entry(
                about=about, snapshot=self._present.digest, seen=digest_of_data(observations), settings=settings or {},
                judged=time.time(), model=model, data=data,
            )  # fmt: skip
            name = f"{name}-{entry.snapshot}-{entry.seen}{'' if settings is None else f'-{digest_of_data(settings)[:8]}'}.json"
            shared = {f"snapshot-{entry.snapshot}.json": to_json(self._present), f"seen-{entry.seen}.json": observations}
            for file, content in shared.items():
                if self._folder.read(file) is None:
                    self._folder.write(file, content)
            self._folder.write(name, {"schema": SCHEMA, **to_json(entry)})
            self._written.add(name)
            for surplus in self._index.get(_short(about), [])[_MOST_OF_A_CELL:]:
                self._folder.remove(surplus)
        except ChangedError as error:
            self._tell(f"verdicts of {source} are not kept: {error}")
        except OSError as error:
            self._tell(f"verdicts are not kept: {self._folder.path} cannot be written: {error.strerror or error}")
        except ValueError as error:
            self._tell(f"verdicts are not kept: one cannot be written as JSON: {error}")

    def _forget(self, recipe: str, title: str) -> None:
        """Remove the verdicts of a recipe whose model differs from process to process, and keep no more of them."""
        self._not_kept.add(recipe)
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
    with contextlib.suppress(*DAMAGE):
        evidence = CellEvidence.from_json(entry.data)
        if evidence.cell == cell and is_storable(evidence) and evidence.as_json() == entry.data:
            return dataclasses.replace(evidence, cached=True)
    return None


def _errors(evidence: CellEvidence) -> list[str]:
    """The rules that a cell breaks."""
    return sorted({each.rule for each in evidence.findings if each.severity is Severity.ERROR})


def _recipe_of(cell: Cell) -> str:
    """The name of the cells that have the same model."""
    return f"{cell.source}::{cell.recipe} on {cell.device}"


def _short(text: str) -> str:
    return digest_of_text(text)[:16]
