"""What a command found out, kept as long as nothing has changed that it depends on, so that it can be shown without an import.

It is recalled while the environment, what is installed, the files of the project, and every other file that Python opened are
the same. What else must be the same is for the two kinds of memory to say: :mod:`onnx_ci.cache.remembered_run` and
:mod:`onnx_ci.cache.remembered_recipes`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import site
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.cache.files_state import (
    ABSENT,
    BYTECODE,
    TooManyFilesError,
    changed_between,
    changed_since,
    digest,
    state_of,
    states_below,
)
from onnx_ci.cache.import_closure import process_started
from onnx_ci.cache.observed import Observation
from onnx_ci.cache.store import checksum, has_other_files, make_folder
from onnx_ci.config.settings import Settings
from onnx_ci.environment.coverage import patches_of_coverage
from onnx_ci.environment.libraries import is_installed
from onnx_ci.errors import ConfigurationError
from onnx_ci.processes.control_groups import usable_cores
from onnx_ci.results.files import write_text
from onnx_ci.results.json_data import from_json, to_json

RUNS, RECIPES = "runs", "recipes"
"""The folders of what is remembered, below that of the cache."""
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading data raises that has another form than it should."""
_SCHEMA = 3
_MOST = 8
"""The oldest files of a folder are removed beyond that many."""
MOST_BYTES = 128 * 2**20
"""They are also removed beyond this size of all of them: twice that of a run of 9,000 small cells. More is not remembered."""
_NAME = re.compile(r"[0-9a-f]{64}\.json")
_GPU = re.compile(r"nvidia\d+|kfd")
_FIRST_LINE = re.compile(rb'\["(?P<sha256>[0-9a-f]{64})",\n')
_OF_THE_MOMENT = frozenset(
    {"_", "SHLVL", "OLDPWD", "TERM_SESSION_ID", "WINDOWID", "TMUX_PANE", "SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION"}
    | {"SSH_TTY", "XDG_SESSION_ID", "GIT_AUTHOR_DATE", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_NAME", "GIT_EDITOR", "GIT_EXEC_PATH"}
    | {"GIT_INDEX_FILE", "GIT_PREFIX", "GIT_REFLOG_ACTION"}
)
"""Environment variables that say from where a command was started, or in which commit; shells and git set them."""


class Memory:
    """What is remembered under the same circumstances.

    Args:
        settings: the settings, for which :func:`why_no_memory` says nothing.
        folder: one of the folders of this module.
        request: what was asked for: everything that the answer depends on and that no file or environment variable holds.
        written: absolute paths of files that the command writes, and that do not count.
    """

    def __init__(self, settings: Settings, folder: str, request: Mapping[str, str], written: Collection[Path] = ()) -> None:
        cache = settings.cache_folder
        if cache is None:
            raise ValueError("there is no cache")
        self._cache = cache
        self._excluded = [cache.absolute(), *written]
        self._parts = {**_circumstances(), **request, "installed": digest(_installed())}
        self._file = cache / folder / f"{checksum(self._parts)}.json"
        self._folders = [settings.root, *_folders_of_path()]
        self._too_many = ""
        self._before: dict[str, str] = {}
        try:
            self._before = self._project(self._folders)
        except TooManyFilesError as error:
            self._too_many = str(error)

    def recall(self) -> Any:
        """What was remembered, as plain data that is to be validated, or ``None``."""
        try:
            if self._file.stat().st_size > MOST_BYTES:
                return None
            content = self._file.read_bytes()
            first = _FIRST_LINE.match(content)
            if first is None or first["sha256"].decode() != hashlib.sha256(memoryview(content)[first.end() :]).hexdigest():
                return None
            end = content.index(b",\n", first.end())
            state = from_json(_State, json.loads(content[first.end() : end]))
            if state.schema != _SCHEMA or state.parts != self._parts or self._too_many:
                return None
            folders = [Path(folder) for folder in state.folders]
            project = self._before if folders == self._folders else self._project(folders)
            opened = {path: state_of(path) for path in state.opened}
            if (digest(project), digest(opened)) != (state.project, state.opened_state):
                return None
            os.utime(self._file)  # the oldest are removed
            return json.loads(content)[-1]
        except (OSError, *DAMAGE, TooManyFilesError):
            return None  # damaged, foreign, or of a smaller project

    def forget(self) -> None:
        """Forget what :meth:`recall` returns."""
        with contextlib.suppress(OSError):
            self._file.unlink()

    def remember(self, found: Any, observed: Observation) -> str:
        """Remember what was found. Errors with the file are not raised.

        Args:
            found: plain data.
            observed: what all processes read and did that took part in that.

        Returns:
            Why it cannot be remembered, or an empty text.
        """
        if observed.influences:
            return min(observed.influences)
        if self._too_many:
            return self._too_many
        folders = list(dict.fromkeys([*self._folders, *_folders_of_path()]))
        try:
            project = self._project(folders)
            after = project if folders == self._folders else self._project(self._folders)
            walked = {*project, *(os.path.realpath(folder) for folder in folders)}
            listed = {path: state for path, state in observed.folders.items() if os.path.realpath(path) not in walked}
            seen = {**observed.files, **listed}.items()
            then = {path: state for path, state in seen if not _is_below(path, self._excluded)}
            opened = {path: state_of(path) for path in then}
        except TooManyFilesError as error:
            return str(error)
        for path in observed.fresh:
            if opened.get(path) == ABSENT:
                del opened[path], then[path]
        start = process_started()
        changed = changed_between(then, opened) or changed_between(self._before, after)
        changed = changed or changed_since(opened, start) or changed_since(project, start)
        if changed is not None:
            return f"{changed} changed during the run"
        state = _State(
            schema=_SCHEMA,
            parts=self._parts,
            folders=tuple(map(str, folders)),
            project=digest(project),
            opened=tuple(sorted(opened)),
            opened_state=digest(opened),
        )
        return self._write(f"{json.dumps(to_json(state))},\n{json.dumps(found)}]\n")

    def _write(self, text: str) -> str:
        if len(text) > MOST_BYTES:
            return f"the results take more than {MOST_BYTES // 2**20} MiB"
        with contextlib.suppress(ConfigurationError, OSError):  # the folder may be read-only
            make_folder(self._cache)
            write_text([f'["{hashlib.sha256(text.encode()).hexdigest()}",\n', text], self._file)
            self._remove_oldest()
        return ""

    def _remove_oldest(self) -> None:
        files = [(file.stat(), file) for file in _remembered(self._file.parent)]
        total = 0
        for number, (status, file) in enumerate(sorted(files, key=lambda each: -each[0].st_mtime_ns), start=1):
            total += status.st_size
            if number > _MOST or total > MOST_BYTES:
                file.unlink()

    def _project(self, folders: Iterable[Path]) -> dict[str, str]:
        return states_below(folders, self._excluded)


@dataclass(frozen=True, kw_only=True)
class _State:
    """What must be the same."""

    schema: int
    parts: Mapping[str, str]
    folders: tuple[str, ...]
    """Those whose files all count."""
    project: str
    """The digest of their states."""
    opened: tuple[str, ...]
    """Other files and folders."""
    opened_state: str
    """The digest of their states."""


def why_no_memory(settings: Settings) -> str:
    """Why nothing is remembered with these settings, or an empty text."""
    cache = settings.cache_folder
    if cache is None:
        return "there is no cache"
    if patches_of_coverage() is not None:
        return "coverage is measured"
    own = (RUNS, RECIPES)
    if has_other_files(cache, own) or any(not _NAME.search(entry.name) for name in own for entry in _entries(cache / name)):
        return f"{cache} has files that are not of the cache"
    return ""


def forget_all(cache: Path) -> None:
    """Remove everything that is remembered in the folder of a cache."""
    for folder in (RUNS, RECIPES):
        for file in _remembered(cache / folder):
            with contextlib.suppress(OSError):
                file.unlink()


def digest_of(value: object) -> str:
    """A digest of the representation of a value, which may be secret."""
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()


def _is_below(file: str, places: Iterable[Path]) -> bool:
    return any(Path(file).is_relative_to(place) for place in places)


def _remembered(folder: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in _entries(folder) if _NAME.fullmatch(entry.name) and entry.is_file())


def _circumstances() -> dict[str, str]:
    """Digests of what every command depends on beside the files that it reads."""
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _OF_THE_MOMENT)
    return {
        "variables": digest_of(variables),
        "python": digest_of((sys.executable, sys.version, tuple(sys.flags), sys.path, sys.prefix, sys.warnoptions)),
        "machine": digest_of((platform.node(), platform.machine(), usable_cores(), _system_files(), _gpus())),
    }


def _system_files() -> list[str]:
    """What names the processor, its features and the GPU's driver, on Linux."""
    texts = []
    for file in ("/proc/cpuinfo", "/proc/driver/nvidia/version", "/etc/os-release"):
        with contextlib.suppress(OSError, UnicodeError):
            lines = Path(file).read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
            texts += [line for line in lines if "MHz" not in line and "bogomips" not in line]
    return texts


def _gpus() -> list[str]:
    """The GPUs that this machine or container has, on Linux: recipe files ask torch for them when they are imported."""
    return sorted(entry.name for entry in _entries(Path("/dev")) if _GPU.fullmatch(entry.name))


def _installed() -> dict[str, str]:
    """The states of what says which distributions are installed, and from where."""
    places = [Path(place or os.curdir).absolute() for place in sys.path]
    folders = [place for place in places if _is_library(place) or not place.is_dir()]  # archives, and what does not exist yet
    named = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    states: dict[str, str] = {}
    for folder in dict.fromkeys([*named, *map(str, folders)]):
        found = _entries(Path(folder))
        if not found:
            states[folder] = state_of(folder)
        for entry in found:
            if entry.name == BYTECODE:
                continue
            states[entry.path] = state_of(entry.path, has_bytecode=False)
            if entry.name.endswith((".dist-info", ".egg-info")):
                states[f"{entry.path}/RECORD"] = state_of(f"{entry.path}/RECORD")
    return states


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _folders_of_path() -> list[Path]:
    """The folders of ``sys.path`` that belong to no library."""
    folders = [Path(place or os.curdir).absolute() for place in sys.path]
    scripts = Path(sysconfig.get_path("scripts"))
    own = (folder for folder in dict.fromkeys(folders) if folder != scripts and not _is_library(folder))
    return [folder for folder in own if os.path.isdir(folder)]  # noqa: PTH112 (which never raises)


def _is_library(folder: Path) -> bool:
    return is_installed(f"{folder}{os.sep}")
