"""The project as it is now: what counts for every recipe, and what else the processes of a recipe have seen."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.baseline.folder import is_baseline
from onnx_ci.cache.folder import Contents, digest_of_text
from onnx_ci.cache.packages import INFORMATION, Packages, folders_of_packages, names_in
from onnx_ci.cache.places import Places
from onnx_ci.cache.snapshot import Snapshot, describe_file, describe_variable, machine
from onnx_ci.cache.variables import Variables, are_same
from onnx_ci.cache.watch import ABSENT, FOLDER, THERE, ReadSet, Search, entries_of, state_of
from onnx_ci.config.options import Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.owners import Owner, owner_of

_OF_TOOLS = re.compile(
    r"\.git|\.hg|\.svn|__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.tox|\.nox|\.hypothesis|node_modules|.*\.egg-info"
    r"|\.coverage.*|\.idea|\.vscode|\.ipynb_checkpoints|\.DS_Store"
)
"""Names of what tools write for themselves. They do not count among the entries of a folder that was listed."""
_MODULES = (".py", ".pyc", ".so", ".pyd")
_FOR_ALL = "conftest.py"
"""A Python file that counts for every recipe: pytest imports it, and what it does reaches their processes."""
_MAY_NAME_VARIABLES = (".py", ".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".env")
_LARGEST_TEXT = 2**20
"""In bytes. Larger files are not searched for names of variables."""


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What processes saw beyond the snapshot. Paths are names of :class:`~onnx_ci.cache.places.Places`."""

    files: Mapping[str, str]
    """The states of files that were opened, imported or looked for; see :func:`~onnx_ci.cache.watch.state_of`."""
    listed: Mapping[str, str]
    searches: tuple[Search, ...]
    modules: tuple[str, ...]
    """What each of ``searches`` finds; the files and folders with their names, in the order of the search."""
    variables: Mapping[str, str]
    """Digests of variables that do not count unless code names them, as this code does."""


class ChangedError(Exception):
    """A file changed while the processes ran, so it is not known what they read. The message names it."""


class Project:
    """The project."""

    def __init__(self, settings: Settings, contents: Contents) -> None:
        environment = dict(os.environ)
        self._settings, self._contents = settings, contents
        self._folder, self._path = os.path.realpath(os.curdir), tuple(sys.path)
        self._folders_of_packages = {*map(os.path.abspath, folders_of_packages(self._path))}
        self._places = Places(os.path.realpath(settings.root), environment)
        self._variables = Variables(environment, settings.cache_ignore_variables, self._places)
        self._state_then = functools.cache(self._state)
        self._listing_then = functools.cache(lambda name: self._listing(entries_of(self._places.path(name))))
        """Both as they were when a kept verdict was first compared with the present."""

    def snapshot(self) -> Snapshot:
        """The present state of everything that counts for every recipe."""
        path = tuple(os.path.join(self._folder, place) for place in self._path)  # noqa: PTH118
        return Snapshot(
            files=self._files(),
            packages=Packages(places=self._places, path=path, contents=self._contents).digests(),
            machine=machine(self._places, self._folder, self._path),
            variables=self._variables.digests,
        )

    def _files(self) -> dict[str, str]:
        """The states of the files that count for all recipes: tracked ones but not Python, and those that settings name."""
        settings, name_of, root = self._settings, self._places.name, self._places.root
        paths = [os.path.join(self._folder, path) for path in (*settings.weights.values(), *settings.inputs)]  # noqa: PTH118
        named = {name_of(os.path.normpath(file)) for path in paths for file in glob.glob(path, recursive=True)}  # noqa: PTH207
        written = [path for option in options_with(Role.OUTPUT) if (path := getattr(settings, option.field)) is not None]
        own = {name_of(os.path.normpath(Path(self._folder, path))) for path in written}
        baselines = name_of(os.path.normpath(Path(root, settings.baseline_folder)))
        ignored = re.compile("|".join(map(_as_pattern, settings.cache_ignore)) or r"(?!)", re.DOTALL)
        for name in _tracked_by_git(root):
            folder, _, file = name.rpartition("/")
            is_used = name.endswith((".py", ".pyc")) and file != _FOR_ALL  # Python rewrites bytecode, even if git tracks it
            is_accepted = (folder or ".") == baselines and is_baseline(Path(root, name))  # compared outside the cache
            if not (is_used or is_accepted or name in own or ignored.match(name)):
                named.add(name)
        return {name: state for name in sorted(named) if (state := self._state(name)) != ABSENT}

    def _state(self, name: str) -> str:
        """The present state of a file, as :func:`~onnx_ci.cache.watch.state_of` gives it, with a digest of its content."""
        path = self._places.path(name)

        def content(status: os.stat_result) -> str:
            return f"{self._contents.digest(path) or 'no file'}{' x' if status.st_mode & stat.S_IXUSR else ''}"

        return self._places.normalized(state_of(path, content))

    def _listing(self, entries: Iterable[str]) -> str:
        """A digest of those of a folder's entries that count, as :func:`~onnx_ci.cache.watch.entries_of` gives them."""
        cache = Path(self._settings.cache or "").name
        names = {entry: entry.partition("\0")[0] for entry in entries}
        counted = sorted(entry for entry, name in names.items() if name != cache and not _OF_TOOLS.fullmatch(name))
        return digest_of_text(self._places.normalized("\n".join(counted)))

    def _modules(self, search: Search) -> str:
        """What a search for modules would find now: the files and folders with their names, in the order of the search."""
        names = set(search.names)
        return "\n".join(
            f"{place} {entry}"
            for place, folder in enumerate(map(self._places.path, search.folders))
            for entry in names_in(folder)
            if (entry.partition(".")[0] in names and ("." not in entry or entry.endswith(_MODULES)))
            or (INFORMATION.fullmatch(entry) and folder not in self._folders_of_packages)
        )

    def observations(self, seen: ReadSet) -> Observations:
        """What processes saw, to be compared with another moment, on another machine. Raises :class:`ChangedError`."""
        name = self._places.name
        places = {tuple(map(name, each.folders)): each.names for each in seen.searches}
        searches = tuple(Search(folders=folders, names=places[folders]) for folders in sorted(places))
        named = {variable for path in seen.files for variable in self._variables_named_in(path)}
        return Observations(
            files=dict(sorted(self._states(seen))),
            listed={name(path): self._listing(entries) for path, entries in sorted(seen.listed.items())},
            searches=searches,
            modules=tuple(map(self._modules, searches)),
            variables={each: self._variables.digest(each) for each in sorted(named)},
        )

    def _states(self, seen: ReadSet) -> Iterator[tuple[str, str]]:
        places = self._places
        for path, then in seen.files.items():
            if then in (ABSENT, THERE):  # what is there now was made by the recipe, or came later
                yield places.name_of_absent(path) if then == ABSENT else places.name(path), then
            elif then == FOLDER and places.is_above(path):
                continue
            elif state_of(path) != then:
                raise ChangedError(f"{places.name(path)} changed during the run")
            else:
                yield places.name(path), self._state(places.name(path))

    def _variables_named_in(self, path: str) -> set[str]:
        with contextlib.suppress(OSError):
            is_text = path.endswith(_MAY_NAME_VARIABLES) and owner_of(path) is Owner.PROJECT
            if is_text and (file := Path(path)).stat().st_size <= _LARGEST_TEXT:
                return self._variables.named_in(file.read_text(encoding="utf-8", errors="replace"))
        return set()

    def changes_of(self, seen: Observations) -> Iterator[str]:
        """The changes of what processes saw, in words."""
        for name, before in seen.files.items():
            if (now := self._state_then(name)) != before and not (before == THERE and now != ABSENT):
                yield describe_file(name, before, now)
        for name, before in seen.listed.items():
            if self._listing_then(name) != before:
                yield f"the files in {'the project' if name == '.' else name} changed"
        for search, before in zip(seen.searches, seen.modules, strict=True):
            yield from self._new_modules(search, before)
        for name, before in seen.variables.items():
            if not are_same(before, now := self._variables.digest(name)):
                yield describe_variable(name, before, now) or ""

    def _new_modules(self, search: Search, before: str) -> Iterator[str]:
        """The modules that appeared or disappeared where others were looked for."""
        then, now = before.splitlines(), self._modules(search).splitlines()
        for line in sorted({*then} ^ {*now}):
            place, _, entry = line.partition(" ")
            name = self._places.name(os.path.join(self._places.path(search.folders[int(place)]), entry))  # noqa: PTH118
            yield f"{name} is {'new' if line in now else 'gone'}"


def _as_pattern(pattern: str) -> str:
    """A regular expression for the names that a pattern of ``cache-ignore`` matches, as in a .gitignore."""
    if "/" not in pattern.rstrip("/"):
        return rf"(?:.*/)?{fnmatch.translate(pattern.rstrip('/'))[:-2]}(?:/.*)?\Z"
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip("/"))
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return rf"(?:{''.join(words.get(part, re.escape(part)) for part in parts)})(?:/.*)?\Z"


def _tracked_by_git(root: str) -> list[str]:
    """The names of the files below a folder that git tracks, also those of submodules; none without git."""
    # A container's checkout often has another owner. A monitor of the file system would be a program of the user.
    options = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        listed = subprocess.run(
            ["git", *options, "ls-files", "-z", "--recurse-submodules"],
            cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return []
    return [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
