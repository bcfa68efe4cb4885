"""Entries of the cache, and whether one still holds.

An entry holds under the same snapshot. If only Python files differ, it holds as long as the recipe file imports none of them,
directly or indirectly, and none can take part otherwise. In any case, what its processes saw beyond the snapshot must be the
same.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onnx_ci.cache.imports import closure
from onnx_ci.cache.packages import top_level_modules
from onnx_ci.cache.project import ABSENT, Project, entries_of
from onnx_ci.cache.snapshot import Change, Snapshot, differences, file_in_words
from onnx_ci.cache.watch import ReadSet, state_of
from onnx_ci.text import listed_shortly

_FOR_ALL = ("conftest.py", "sitecustomize.py", "usercustomize.py")
"""Python files that count for every recipe, whether or not it imports them."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept, and what it depends on. Paths are names of :class:`~onnx_ci.cache.places.Places`."""

    about: str
    """The id of a cell, or a recipe file."""
    snapshot: str
    """The digest of the snapshot."""
    settings: Mapping[str, str]
    """The settings on which it depends, as texts."""
    python: tuple[str, ...]
    """The Python files of the project that the recipe file can reach."""
    beyond: Mapping[str, str]
    """The states of other files that were opened or looked for, and of other folders that were listed."""
    missing_modules: tuple[str, ...]
    model: str
    """A digest of the weights and the arguments; empty if they are not known."""
    data: Any


class ChangedError(Exception):
    """A file changed while the processes ran, so it is not known what they read. The message names it."""


class ProjectState:
    """The present state of everything that counts.

    Args:
        project: the project.
        snapshot: its snapshot.
        path: ``sys.path``.
    """

    def __init__(self, project: Project, snapshot: Snapshot, path: tuple[str, ...]) -> None:
        self._project, self.snapshot, self._path = project, snapshot, path
        self._state = functools.cache(project.state)
        self._words = functools.cache(self._read_words)
        self._changes: dict[str, tuple[Change, ...]] = {}

    def entry(
        self, about: str, source: str, data: Any, seen: ReadSet, *, settings: Mapping[str, str], model: str = ""
    ) -> Entry:
        """An entry for data that was found out under the snapshot.

        Args:
            about: the id of a cell, or a recipe file.
            source: the recipe file.
            data: what is kept.
            seen: what the processes saw.
            settings: the settings on which the data depends.
            model: a digest of the weights and the arguments; empty if they are not known.

        Raises:
            ChangedError: see there.
        """
        places = self._project.places
        python = {places.name(path) for path in seen.python if places.is_inside(path)} | self._closure(source)
        return Entry(
            about=about,
            snapshot=self.snapshot.digest,
            settings=dict(settings),
            python=tuple(sorted(python)),
            beyond=dict(sorted([*self._opened(seen), *self._listed(seen)])),
            missing_modules=seen.missing_modules,
            model=model,
            data=data,
        )

    def _opened(self, seen: ReadSet) -> Iterator[tuple[str, str]]:
        for path, then in seen.opened.items():
            name = self._project.places.name(path)
            if name in self.snapshot.files or self._project.is_own(name):
                continue
            now = state_of(path)
            if now == ABSENT and then != ABSENT and self._was_temporary(path):
                continue
            if now != then:
                raise ChangedError(f"{name} changed during the run")
            yield name, self._project.state(name)

    def _listed(self, seen: ReadSet) -> Iterator[tuple[str, str]]:
        for path, entries in seen.listed.items():
            name = self._project.places.name(path)
            if state_of(path) == ABSENT and self._was_temporary(path):
                continue
            then, now = (self._project.listing(path, names) for names in (entries, entries_of(path)))
            if now != then:
                raise ChangedError(f"the files in {name} changed during the run")
            yield f"{name}/", now

    def _was_temporary(self, path: str) -> bool:
        return path.startswith(f"{tempfile.gettempdir()}/") and not self._project.places.is_inside(path)

    def _closure(self, source: str) -> frozenset[str]:
        """The files that the import statements of a recipe file reach."""
        project, files = self._project, self.snapshot.files
        folders = (project.places.name(path) for path in self._path if project.places.is_inside(path))
        roots = ("" if folder == "." else folder for folder in (*folders, "src"))
        return closure(source, files.keys(), [*roots], lambda name: project.text(name, files[name]).imports)

    # --- whether an entry holds -------------------------------------------------------------------------------------------

    def why_not(self, entry: Entry, then: Snapshot, settings: Mapping[str, str]) -> str:
        """Why an entry does not hold, in words; empty if it holds.

        Args:
            entry: the entry.
            then: the snapshot of the entry.
            settings: the present settings on which it depends.
        """
        reasons = [*dict.fromkeys(self._reasons(entry, then, settings))]
        return listed_shortly(reasons) if reasons else ""

    def _reasons(self, entry: Entry, then: Snapshot, settings: Mapping[str, str]) -> Iterator[str]:
        for name in sorted(entry.settings.keys() | settings.keys()):
            before, after = entry.settings.get(name) or "none", settings.get(name) or "none"
            if before != after:
                yield f"{name} {before} → {after}"
        if entry.snapshot not in self._changes:
            self._changes[entry.snapshot] = differences(then, self.snapshot)
        changes = self._changes[entry.snapshot]
        yield from (change.text for change in changes if not change.is_python)
        yield from (change.text for change in changes if change.is_python and self._takes_part(change, entry))
        for name, before in entry.beyond.items():
            if (after := self._state(name)) != before:
                yield file_in_words(name, None if before == ABSENT else before, None if after == ABSENT else after)

    def _takes_part(self, change: Change, entry: Entry) -> bool:
        """Whether a changed Python file can affect a recipe."""
        words = self._words(entry.python)
        file = change.name.rpartition("/")[2]
        if file in _FOR_ALL or file in words or change.name in entry.python:
            return True
        module = change.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        name = module.rpartition(".")[2]
        was_missing = any(f".{missing}." in f".{module}." for missing in entry.missing_modules)
        return change.is_new_or_gone and (name in words or name in self._installed or was_missing)

    def _read_words(self, python: tuple[str, ...]) -> frozenset[str]:
        """The words in Python files of the project."""
        files = self.snapshot.files
        return frozenset(word for name in python if name in files for word in self._project.text(name, files[name]).words)

    @functools.cached_property
    def _installed(self) -> frozenset[str]:
        """The modules that a file of the project with the same name can hide."""
        elsewhere = (path for path in self._path if not self._project.places.is_inside(path))
        return sys.stdlib_module_names | top_level_modules(elsewhere)
