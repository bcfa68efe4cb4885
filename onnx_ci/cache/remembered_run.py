"""Runs that were answered from the cache as a whole, so that an unchanged project need not be imported to know that.

A run is remembered if each of its results came from the cache: two processes have then found the same keys, so these are
unlikely to depend on chance. It is recalled while the command, the environment, what is installed, the files of the project,
and every other file that Python opened in that run are the same. It is recalled as a whole or not at all, because one recipe
file can affect the recipes of another one.
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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from onnx_ci.cache.store import LARGEST_ENTRY, checksum, has_other_files
from onnx_ci.config.settings import Settings
from onnx_ci.environment.coverage import patches_of_coverage
from onnx_ci.environment.libraries import is_installed
from onnx_ci.errors import ConfigurationError
from onnx_ci.matrix.outline import FileOutline
from onnx_ci.results.files import write_text
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import CellResult, Exclusion

FOLDER = "runs"
"""The folder of remembered runs, below that of the cache."""
_SCHEMA = 2
_MOST_RUNS = 8
"""The oldest are removed beyond that many."""
_NAME = re.compile(r"[0-9a-f]{64}\.json")
_OF_THE_MOMENT = frozenset(
    {"_", "SHLVL", "OLDPWD", "TERM_SESSION_ID", "WINDOWID", "TMUX_PANE", "SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION"}
    | {"SSH_TTY", "XDG_SESSION_ID", "GIT_AUTHOR_DATE", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_NAME", "GIT_EDITOR", "GIT_EXEC_PATH"}
    | {"GIT_INDEX_FILE", "GIT_PREFIX", "GIT_REFLOG_ACTION"}
)
"""Environment variables that say from where a command was started, or in which commit; shells and git set them."""


@dataclass(frozen=True, kw_only=True)
class RememberedRun:
    """The results of a run, and what its front-end needs beside them."""

    results: tuple[CellResult, ...]
    exclusions: tuple[Exclusion, ...]
    files: tuple[FileOutline, ...]
    """The recipe files in the order in which they were imported, with the cells of all shards."""


class RunMemory:
    """The remembered runs of one command.

    Args:
        settings: the settings of the run, for which :func:`why_not_remembered` says nothing.
        request: what the front-end was asked for beside the settings, beginning with its own name: everything that the run
            depends on and that no file or environment variable holds. Runs with different requests share nothing.
        written: absolute paths of files that the run writes.
    """

    def __init__(self, settings: Settings, request: Sequence[str], written: Collection[Path]) -> None:
        cache = settings.cache_folder
        if cache is None:
            raise ValueError("there is no cache")
        report = settings.report and settings.report.absolute()
        own = [] if report is None else [report, report.with_name(f"{report.name}.journal")]
        self._excluded = [cache.absolute(), *written, *own]
        self._parts = {**_circumstances(settings, request), "installed": digest(_installed())}
        self._file = cache / FOLDER / f"{checksum(self._parts)}.json"
        self._folders = [settings.root, *_folders_of_path()]
        self._too_many = ""
        self._before: dict[str, str] = {}
        try:
            self._before = self._project(self._folders)
        except TooManyFilesError as error:
            self._too_many = str(error)

    def recall(self) -> RememberedRun | None:
        """The run that this one would repeat, or ``None``."""
        try:
            if self._file.stat().st_size > LARGEST_ENTRY:
                return None
            content = json.loads(self._file.read_bytes())
            claimed = content.pop("sha256")
            if claimed != checksum(content) or content["schema"] != _SCHEMA or content["parts"] != self._parts:
                return None
            if self._too_many:
                return None
            folders = [Path(folder) for folder in from_json(tuple[str, ...], content["folders"])]
            project = self._before if folders == self._folders else self._project(folders)
            opened = {path: state_of(path) for path in from_json(tuple[str, ...], content["opened"])}
            if (digest(project), digest(opened)) != (content["project"], content["opened state"]):
                return None
            os.utime(self._file)  # the oldest are removed
            return RememberedRun(
                results=tuple(CellResult.from_json(each) for each in content["cells"]),
                exclusions=tuple(from_json(Exclusion, each) for each in content["exclusions"]),
                files=from_json(tuple[FileOutline, ...], content["files"]),
            )
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, TooManyFilesError):
            return None  # damaged, foreign, or of a smaller project

    def forget(self) -> None:
        """Forget the run that :meth:`recall` returned."""
        with contextlib.suppress(OSError):
            self._file.unlink()

    def remember(self, run: RememberedRun, observed: Observation) -> str:
        """Remember a run, if all of its results came from the cache. Errors with the file are not raised.

        Args:
            run: the run, which is over.
            observed: what all of its processes read and did.

        Returns:
            Why it cannot be remembered; empty if it is, or if it need not be.
        """
        if not run.results or not all(result.cached or result.skip_cause is not None for result in run.results):
            return ""
        if not all(result.cached for result in run.results):
            return "why a cell is skipped is asked anew each time"
        if on_gpu := next((result.cell.device for result in run.results if result.cell.gpu is not None), None):
            return f"what {on_gpu} is can be told only by torch"
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
        self._write(run, folders, project, opened)
        return ""

    def _write(
        self, run: RememberedRun, folders: Sequence[Path], project: Mapping[str, str], opened: Mapping[str, str]
    ) -> None:
        content: Mapping[str, Any] = {
            "schema": _SCHEMA,
            "parts": self._parts,
            "folders": [str(folder) for folder in folders],
            "project": digest(project),
            "opened": sorted(opened),
            "opened state": digest(opened),
            "cells": [result.as_json() for result in run.results],
            "exclusions": to_json(run.exclusions),
            "files": to_json(run.files),
        }
        content = json.loads(json.dumps(content))  # the checksum must match what a reader sees
        text = json.dumps({**content, "sha256": checksum(content)})
        if len(text) > LARGEST_ENTRY:
            return
        with contextlib.suppress(ConfigurationError, OSError):  # the folder may be read-only
            write_text(text, self._file)
            for old in sorted(_remembered(self._file.parent), key=lambda file: file.stat().st_mtime)[:-_MOST_RUNS]:
                old.unlink()

    def _project(self, folders: Sequence[Path]) -> dict[str, str]:
        return states_below(folders, self._excluded)


def why_not_remembered(settings: Settings) -> str:
    """Why a command with these settings has no memory, or an empty text.

    Its cells have to run, or its recipe files to be imported, or not all of its files would count.
    """
    cache = settings.cache_folder
    if cache is None:
        return "there is no cache"
    if settings.artifacts is not None or settings.save_inputs is not None:
        return "cells run where files of them are kept"
    if settings.baseline == "update":
        return "cells run where baselines are updated"
    if patches_of_coverage() is not None:
        return "coverage is measured"
    if has_other_files(cache, {FOLDER}) or any(not _NAME.search(entry.name) for entry in _entries(cache / FOLDER)):
        return f"{cache} has files that are not of the cache"
    return ""


def forget_runs(cache: Path) -> None:
    """Remove all remembered runs from the folder of a cache."""
    for file in _remembered(cache / FOLDER):
        with contextlib.suppress(OSError):
            file.unlink()


def _is_below(file: str, places: Iterable[Path]) -> bool:
    return any(Path(file).is_relative_to(place) for place in places)


def _remembered(folder: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in _entries(folder) if _NAME.fullmatch(entry.name) and entry.is_file())


def _circumstances(settings: Settings, request: Sequence[str]) -> dict[str, str]:
    """Digests of what a run depends on beside the files that it reads. Values of variables may be secret, so none is kept."""
    shown = {name: to_json(value) for name, value in settings.shown().items()}
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _OF_THE_MOMENT)
    return {
        "command": _digest(repr((shown, list(request), str(Path.cwd()), str(settings.root)))),
        "durations": "" if settings.durations is None else state_of(str(settings.durations.absolute())),
        "variables": _digest(repr(variables)),
        "python": _digest(repr((sys.executable, sys.version, tuple(sys.flags), sys.path, sys.prefix, sys.warnoptions))),
        "machine": _digest(repr((platform.node(), platform.machine(), _usable_cores(), _system_files()))),
    }


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _system_files() -> list[str]:
    """What names the processor, its features and the GPU's driver, on Linux."""
    texts = []
    for file in ("/proc/cpuinfo", "/proc/driver/nvidia/version", "/etc/os-release"):
        with contextlib.suppress(OSError, UnicodeError):
            lines = Path(file).read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
            texts += [line for line in lines if "MHz" not in line and "bogomips" not in line]
    return texts


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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
