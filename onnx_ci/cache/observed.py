"""What this process reads and does that the verdicts of a run may depend on, as Python's audit events tell.

Only what Python opens is seen; compiled code may open other files.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from onnx_ci.environment.libraries import file_of, is_library_file
from onnx_ci.processes.scratch import is_scratch

_INFLUENCES = {
    "subprocess.Popen": "starts another program",
    "os.system": "starts another program",
    "os.exec": "starts another program",
    "os.posix_spawn": "starts another program",
    "os.fork": "starts another process",
    "sqlite3.connect": "opens a database",
    "socket.connect": "connects to the network",
    "socket.getaddrinfo": "connects to the network",
}
"""What the project does on an audit event whose effect cannot be recorded."""
_OWN = str(Path(__file__).parents[1]) + os.sep
_MACHINE = ("/proc/", "/sys/", "/dev/")
_read: set[str] = set()
_written: set[str] = set()
"""Files that this process created or overwrote before it read them. Their content follows from the rest."""
_listed: set[str] = set()
_influences: set[str] = set()
_told: set[str] = set()
"""What :func:`news` leaves out; empty if this process is not observed."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What processes read, and what else they did that verdicts may depend on."""

    files: frozenset[str] = frozenset()
    """The absolute paths of all files that they tried to open, and those of imported modules."""
    folders: frozenset[str] = frozenset()
    """The absolute paths of folders that they listed, except those of libraries."""
    influences: frozenset[str] = frozenset()
    """In words: ``/project/onnx_recipes.py starts another program``."""

    def __or__(self, other: Self) -> Observation:
        return Observation(
            files=self.files | other.files,
            folders=self.folders | other.folders,
            influences=self.influences | other.influences,
        )

    def as_json(self) -> dict[str, list[str]]:
        """The observation as plain data, to be sent to another process."""
        return {name: sorted(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, data: dict[str, Iterable[str]]) -> Self:
        """The observation that :meth:`as_json` returned."""
        return cls(**{name: frozenset(value) for name, value in data.items()})


@functools.cache
def observe() -> None:
    """Observe this process from now on, and those that are forked from it. That cannot be ended."""
    sys.addaudithook(_hear)
    _told.add("")


def add_file(file: str) -> None:
    """Count a file, given by its absolute path, as one that this process has tried to open."""
    _read.add(file)


def is_observed() -> bool:
    """Whether this process is observed."""
    return bool(_told)


def observation() -> Observation:
    """What is known of this process; of the time before :func:`observe`, only which modules were imported."""
    return _of(_files())


def news() -> Observation:
    """What :func:`observation` has that neither this function has returned before nor :func:`mark_as_known` has marked."""
    new = _files() - _told
    _told.update(new)
    return _of(new)


def mark_as_known() -> None:
    """From now on, :func:`news` leaves out what this process has read so far, here and in processes forked from it."""
    _told.update(_files())


def _files() -> set[str]:
    modules = {file for each in list(sys.modules.values()) if (file := file_of(each)) is not None}
    return modules | (_read - _written)


def _of(files: Iterable[str]) -> Observation:
    sources = {_source_of(os.path.abspath(file)) for file in files}  # noqa: PTH100 (thousands of files)
    folders = (folder for folder in _listed if not is_library_file(folder + os.sep))
    return Observation(
        files=frozenset(file for file in sources if _counts(file)),
        folders=frozenset(folder for folder in folders if _counts(folder)),
        influences=frozenset(_influences),
    )


def _counts(file: str) -> bool:
    return not f"{file}{os.sep}".startswith(_MACHINE) and not is_scratch(Path(file, "_"))


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        if not isinstance(arguments[0], int):
            with contextlib.suppress(OSError, ValueError, TypeError):  # it is not a path, or the current directory is gone
                _note(os.path.abspath(os.fsdecode(arguments[0])), arguments[2])  # noqa: PTH100 (of every file that is opened)
    elif event in ("os.listdir", "os.scandir"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            _listed.add(os.path.abspath(os.fsdecode(arguments[0] or os.curdir)))  # noqa: PTH100 - see above
    elif event == "ctypes.dlopen":
        if isinstance(arguments[0], str) and os.path.isabs(arguments[0]):  # noqa: PTH117 - see above
            _read.add(arguments[0])
    elif event in _INFLUENCES:
        caller = _caller(sys._getframe(1))
        if caller is not None:
            _influences.add(f"{caller} {_INFLUENCES[event]}")


def _note(file: str, flags: int) -> None:
    if file not in _read and flags & (os.O_TRUNC | os.O_EXCL):
        _written.add(file)
    elif not flags & os.O_WRONLY:
        _read.add(file)


def _caller(frame: FrameType | None) -> str | None:
    """What is at work, in words; ``None`` if it is onnx-ci, or a library that is being imported."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN) and not file.startswith(f"{_OWN}recipes"):
            return None
        if not file.startswith("<") and not is_library_file(file):
            return file
        if frame.f_code.co_name == "<module>" and not file.startswith("<"):
            return None
        frame = frame.f_back
    return "a thread that the project or a library started"


def _source_of(file: str) -> str:
    with contextlib.suppress(ValueError):  # a name that Python itself does not give
        return importlib.util.source_from_cache(file) if file.endswith(".pyc") else file
    return file
