"""Entries of the cache, and whether one still holds.

An entry holds under the same snapshot. If only Python files differ, it holds as long as none of them is in the closure of the
recipe file's imports, or can take part otherwise. What its processes saw beyond the snapshot must be the same in any case.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onnx_ci.cache.imports import closure, package_root
from onnx_ci.cache.packages import top_level_modules
from onnx_ci.cache.project import Project, entries_of
from onnx_ci.cache.snapshot import Change, Snapshot, differences
from onnx_ci.cache.texts import NOTHING, Text
from onnx_ci.cache.watch import ABSENT, Seen, state_of
from onnx_ci.text import listed_shortly

_FOR_ALL = ("conftest.py", "sitecustomize.py", "usercustomize.py")
"""Python files that count for every recipe, whether or not it imports them."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept, and what it depends on. Paths are written as :class:`~onnx_ci.cache.places.Places` does."""

    about: str
    """The id of a cell, or a recipe file."""
    snapshot: str
    """The digest of the snapshot."""
    settings: Mapping[str, str]
    """The settings on which it depends, as they are shown."""
    python: tuple[str, ...]
    """The Python files of the project that the recipe file can reach."""
    beyond: Mapping[str, str]
    """The contents of files that were opened or looked for, and are not in the snapshot."""
    listed: Mapping[str, str]
    """Digests of the listings of folders."""
    missing_modules: tuple[str, ...]
    starts_programs: bool
    model: str
    """A digest of the weights and the arguments; empty if it is not known."""
    data: Any


class ChangedError(Exception):
    """Something changed while the processes ran, so it is not known what they read. The message says what."""


class Present:
    """What counts now.

    Args:
        project: the project.
        snapshot: its snapshot.
        path: ``sys.path``.
    """

    def __init__(self, project: Project, snapshot: Snapshot, path: tuple[str, ...]) -> None:
        self._project, self.snapshot, self._path = project, snapshot, path
        self._changes: dict[str, list[Change]] = {}
        self._contents: dict[str, str] = {}
        self._listings: dict[str, str] = {}
        self._closures: dict[str, frozenset[str]] = {}

    # --- what an entry depends on -----------------------------------------------------------------------------------------

    def entry(self, about: str, source: str, data: Any, seen: Seen, *, settings: Mapping[str, str], model: str = "") -> Entry:
        """An entry for what was found out under the snapshot.

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
            beyond=dict(sorted(self._beyond(python, seen))),
            listed=dict(sorted(self._listed(seen))),
            missing_modules=seen.missing_modules,
            starts_programs=seen.starts_programs,
            model=model,
            data=data,
        )

    def _beyond(self, python: set[str], seen: Seen) -> Iterator[tuple[str, str]]:
        places = self._project.places
        for path, then in {**{places.path(name): "" for name in python}, **seen.opened}.items():
            name = places.name(path)
            if name in self.snapshot.files or self._project.is_own(name):
                continue
            now = state_of(path)
            if now == ABSENT != then and self._project.is_temporary(path):
                continue
            if then and now != then:
                raise ChangedError(f"{name} changed during the run")
            yield name, self._project.content(path)

    def _listed(self, seen: Seen) -> Iterator[tuple[str, str]]:
        for path, entries in seen.listed.items():
            digest = self._project.listing(path, entries)
            if digest != self._project.listing(path, entries_of(path)):
                if not os.path.isdir(path) and self._project.is_temporary(path):  # noqa: PTH112
                    continue
                raise ChangedError(f"the files in {self._project.places.name(path)} changed during the run")
            yield self._project.places.name(path), digest

    # --- whether it holds -------------------------------------------------------------------------------------------------

    def why_not(self, entry: Entry, source: str, then: Snapshot, settings: Mapping[str, str]) -> str:
        """Why an entry does not hold, in words; empty if it does.

        Args:
            entry: the entry.
            source: the recipe file.
            then: the snapshot that it was kept under.
            settings: the settings on which it depends, as they are now.
        """
        reasons = list(dict.fromkeys(self._reasons(entry, source, then, settings)))
        return listed_shortly(reasons) if reasons else ""

    def _reasons(self, entry: Entry, source: str, then: Snapshot, settings: Mapping[str, str]) -> Iterator[str]:
        for name in sorted(entry.settings.keys() | settings.keys()):
            before, after = entry.settings.get(name) or "none", settings.get(name) or "none"
            if before != after:
                yield f"{name} {before} → {after}"
        if entry.snapshot not in self._changes:
            self._changes[entry.snapshot] = differences(then, self.snapshot)
        changes = self._changes[entry.snapshot]
        yield from (change.text for change in changes if not change.is_python)
        python = [change for change in changes if change.is_python]
        relevant = [change.text for change in python if self._takes_part(change, entry, source, then)]
        yield from relevant
        if python and not relevant:
            yield from (f"{name} is imported now" for name in sorted(self._closure(source) - set(entry.python)))
        for name, content in entry.beyond.items():
            if (now := self._content(name)) != content:
                yield f"{name} {'is gone' if now == ABSENT else 'is new' if content == ABSENT else 'changed'}"
        for name, digest in entry.listed.items():
            if self._listing(name) != digest:
                yield f"the files in {'the project' if name == '.' else name} are others"

    def _takes_part(self, change: Change, entry: Entry, source: str, then: Snapshot) -> bool:
        """Whether a changed Python file can have an effect on a recipe."""
        folder, _, file = change.name.rpartition("/")
        words = self._words(entry)
        if file in _FOR_ALL or entry.starts_programs or change.name in entry.python or file in words:
            return True
        if not (change.is_new or change.is_gone):
            return False
        module = [*folder.split("/"), file.removesuffix(".py")] if folder else [file.removesuffix(".py")]
        if module[-1] == "__init__":
            module.pop()
        return (
            (module or [""])[-1] in words
            or any(_contains(module, missing.split(".")) for missing in entry.missing_modules)
            or any(self._shadows(change.name, root, then) for root in {*self._roots, package_root(source, self.snapshot.files)})
        )

    def _words(self, entry: Entry) -> frozenset[str]:
        if entry.python not in self._words_of:
            self._words_of[entry.python] = frozenset(word for name in entry.python for word in self._text(name).words)
        return self._words_of[entry.python]

    @cached_property
    def _words_of(self) -> dict[tuple[str, ...], frozenset[str]]:
        return {}

    def _shadows(self, name: str, root: str, then: Snapshot) -> bool:
        """Whether a file is the first of a module that Python would find instead of an installed one, or was until now."""
        prefix = f"{root}/" if root else ""
        if not name.startswith(prefix):
            return False
        top = name[len(prefix) :].partition("/")[0]
        if top.removesuffix(".py") not in self._installed:
            return False
        return not any(f"{each}/".startswith(f"{prefix}{top}/") for each in then.files.keys() & self.snapshot.files.keys())

    @cached_property
    def _installed(self) -> frozenset[str]:
        places = self._project.places
        return sys.stdlib_module_names | top_level_modules(path for path in self._path if not places.is_inside(path))

    @cached_property
    def _roots(self) -> tuple[str, ...]:
        places = self._project.places
        names = (places.name(path) for path in self._path if places.is_inside(path))
        return tuple(dict.fromkeys("" if name == "." else name for name in (*names, "src")))

    def _closure(self, source: str) -> frozenset[str]:
        if source not in self._closures:
            self._closures[source] = closure(source, self.snapshot.files.keys(), self._roots, self._imports_of)
        return self._closures[source]

    def _imports_of(self, name: str) -> tuple[str, ...]:
        state = self.snapshot.files.get(name)
        return () if state is None else self._project.imports(name, state)

    def _text(self, name: str) -> Text:
        state = self.snapshot.files.get(name)
        return NOTHING if state is None else self._project.text(name, state)

    def _content(self, name: str) -> str:
        if name not in self._contents:
            self._contents[name] = self._project.content(self._project.places.path(name))
        return self._contents[name]

    def _listing(self, name: str) -> str:
        if name not in self._listings:
            path = self._project.places.path(name)
            self._listings[name] = self._project.listing(path, entries_of(path))
        return self._listings[name]


def _contains(module: list[str], parts: list[str]) -> bool:
    """Whether the name of a module, or its end, leads through a file: ``["src", "a", "b"]`` through ``["a"]``."""
    return any(module[start : start + len(parts)] == parts for start in range(len(module)))
