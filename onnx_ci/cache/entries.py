"""Entries of the cache, and whether one still holds.

An entry holds under the same snapshot and the same settings, as long as all that its processes saw beyond the snapshot is the
same: the files, the folders, the modules that Python would find, and the variables that the code names.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.cache.project import Project
from onnx_ci.cache.snapshot import Snapshot, describe_file, describe_variable, differences
from onnx_ci.cache.variables import Variables, are_same
from onnx_ci.cache.watch import ABSENT, FOLDER, ReadSet, Search, state_of
from onnx_ci.owners import Owner, owner_of

_MAY_NAME_VARIABLES = (".py", ".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".env")
_LARGEST_TEXT = 2**20
"""In bytes. Larger files are not searched for names of variables."""


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What processes saw beyond the snapshot. Paths are names of :class:`~onnx_ci.cache.places.Places`."""

    files: Mapping[str, str]
    """The states of files that were opened, imported or looked for; see :meth:`~onnx_ci.cache.project.Project.state`."""
    listed: Mapping[str, str]
    """Digests of the entries of folders."""
    searches: tuple[Search, ...]
    modules: tuple[str, ...]
    """What each of ``searches`` finds; see :meth:`~onnx_ci.cache.project.Project.modules`."""
    variables: Mapping[str, str]
    """Digests of variables that do not count unless code names them, as this code does."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept, and what it depends on."""

    about: str
    """The id of a cell, or a recipe file."""
    snapshot: str
    """The digest of the snapshot."""
    seen: str
    """The digest of the observations."""
    settings: Mapping[str, str]
    """The settings on which it depends, as texts."""
    judged: float
    """When it was found out, in seconds since 1970."""
    model: str
    """A digest of the weights and the arguments; empty if they are not known."""
    data: Any


class ChangedError(Exception):
    """A file changed while the processes ran, so it is not known what they read. The message names it."""


class ProjectState:
    """The present state of everything that counts.

    Args:
        project: the project.
        variables: the environment variables.
        snapshot: the snapshot of the project.
    """

    def __init__(self, project: Project, variables: Variables, snapshot: Snapshot) -> None:
        self._project, self._variables, self.snapshot = project, variables, snapshot
        self._state, self._listing = functools.cache(project.state), functools.cache(project.present_listing)

    def observations(self, seen: ReadSet) -> Observations:
        """What processes saw, in a form that can be compared with another moment, on another machine.

        Raises:
            ChangedError: see there.
        """
        name = self._project.places.name
        files = dict(sorted(self._files(seen)))
        places = {tuple(map(name, each.folders)): each.names for each in seen.searches}
        searches = tuple(Search(folders=folders, names=places[folders]) for folders in sorted(places))
        named = {variable for path in seen.files for variable in self._variables_named_in(path)}
        return Observations(
            files=files,
            listed={name(path): self._project.listing(entries) for path, entries in sorted(seen.listed.items())},
            searches=searches,
            modules=tuple(map(self._project.modules, searches)),
            variables={each: self._variables.digest(each) for each in sorted(named)},
        )

    def _files(self, seen: ReadSet) -> Iterator[tuple[str, str]]:
        places = self._project.places
        for path, then in seen.files.items():
            if then == ABSENT:  # what is there now was made by the recipe, or came later
                yield places.name_of_absent(path), ABSENT
            elif then == FOLDER and places.is_above(path):
                continue
            elif state_of(path) != then:
                raise ChangedError(f"{places.name(path)} changed during the run")
            else:
                yield places.name(path), self._project.state(places.name(path))

    def _variables_named_in(self, path: str) -> set[str]:
        with contextlib.suppress(OSError):
            is_text = path.endswith(_MAY_NAME_VARIABLES) and owner_of(path) is Owner.PROJECT
            if is_text and (file := Path(path)).stat().st_size <= _LARGEST_TEXT:
                return self._variables.named_in(file.read_text(encoding="utf-8", errors="replace"))
        return set()

    # --- whether an entry holds -------------------------------------------------------------------------------------------

    def changes_since(self, then: Snapshot) -> Iterator[str]:
        """The changes since a snapshot, in words."""
        yield from differences(then, self.snapshot)

    def changes_of(self, seen: Observations) -> Iterator[str]:
        """The changes of what processes saw, in words."""
        for name, before in seen.files.items():
            if (now := self._state(name)) != before:
                yield describe_file(name, before, now)
        for name, before in seen.listed.items():
            if self._listing(name) != before:
                yield f"the files in {'the project' if name == '.' else name} changed"
        for search, before in zip(seen.searches, seen.modules, strict=True):
            yield from self._new_modules(search, before)
        for name, before in seen.variables.items():
            if not are_same(before, now := self._variables.digest(name)):
                yield describe_variable(name, before, now) or ""

    def _new_modules(self, search: Search, before: str) -> Iterator[str]:
        """The modules that appeared or disappeared where others were looked for."""
        then, now = before.splitlines(), self._project.modules(search).splitlines()
        for line in sorted({*then} ^ {*now}):
            place, _, entry = line.partition(" ")
            name = self._project.places.name(os.path.join(self._project.places.path(search.folders[int(place)]), entry))  # noqa: PTH118
            yield f"{name} is {'new' if line in now else 'gone'}"
