"""Whether files are still the same, by what the file system says of them, without reading them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from onnx_ci.environment.libraries import is_installed

MOST_FILES = 20_000
"""Looking at more files takes longer than it saves."""
ABSENT = "absent"
BYTECODE = "__pycache__"
"""The folder of bytecode."""
NAMED = "named"
"""The state of a file of which only the name counts."""
_SKIPPED = frozenset(
    {".git", ".hg", ".svn", BYTECODE, "node_modules", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Folders of other tools. A file in one of them counts if Python opens it."""
_ENVIRONMENTS = frozenset({"pyvenv.cfg", "conda-meta"})
"""What folders contain in which Python is installed. Its libraries count by version, and by what is opened."""
_OPENED_BY_PYTHON_ONLY = (".py", ".pyi", ".md", ".rst")
"""Endings of files that no compiled code reads. Where nothing opened such a file, only its name counts."""
_MACHINE = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 (nothing is written there)


class TooManyFilesError(Exception):
    """There are more than :data:`MOST_FILES` files. The message says where."""


def is_of_machine(file: str) -> bool:
    """Whether an absolute path belongs to the system and its devices, which are no files."""
    path = f"{file}{os.sep}"
    return path.startswith(_MACHINE) and not path.startswith(_SHARED_MEMORY)


def states_below(folders: Iterable[Path], excluded: Collection[Path]) -> dict[str, str]:
    """The states of all files below ``folders``, links followed, by path; folders and links have one, too.

    Args:
        folders: the folders.
        excluded: absolute paths of files and folders that do not count.

    Raises:
        TooManyFilesError: see there.
    """
    left_out = {os.path.realpath(path) for path in excluded}
    states: dict[str, str] = {}
    seen: set[str] = set()
    for top in folders:
        for path, state in _below(os.path.realpath(top), left_out, seen):
            states[path] = state
            if len(states) > MOST_FILES:
                raise TooManyFilesError(f"{top} has more than {MOST_FILES:,} files")
    return states


def state_of(path: str, *, has_bytecode: bool = True) -> str:
    """The state of one file, links followed: its inode, size and times; or :data:`ABSENT`.

    That of a folder is which names it contains, and the states of the files among them.

    Args:
        path: the file or folder.
        has_bytecode: whether ``__pycache__`` counts, also in folders inside; Python and pytest write into it when they like.

    Raises:
        TooManyFilesError: see there.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 (thousands of files)
    except (OSError, ValueError):
        return ABSENT
    if not stat.S_ISDIR(status.st_mode):
        return _state_of_file(status)
    return _state_of_folder(path, has_bytecode=has_bytecode)


def digest(states: Mapping[str, str]) -> str:
    """A digest of the states of files by path."""
    hashed = hashlib.sha256()
    for path, state in sorted(states.items()):
        hashed.update(f"{len(path)} {path} {state}\n".encode("utf-8", "surrogateescape"))
    return hashed.hexdigest()


def changed_between(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """A path whose state is not the same, or ``None``."""
    return min((path for path in before.keys() | after.keys() if before.get(path) != after.get(path)), default=None)


def changed_since(states: Mapping[str, str], moment: float) -> str | None:
    """A file that was changed since ``moment``, in seconds since the epoch, or ``None``."""
    return min((path for path, state in states.items() if is_new(state, moment)), default=None)


def is_new(state: str, moment: float) -> bool:
    """Whether the file with this state was changed since ``moment``, in seconds since the epoch; a folder or nothing was not.

    The time at which its inode was last changed says that. The time of modification can be set to anything.
    """
    *words, changed = state.split(" ")
    return len(words) >= 3 and changed.isdigit() and int(changed) >= moment * 1e9


def _state_of_file(status: os.stat_result) -> str:
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _state_of_folder(folder: str, *, has_bytecode: bool) -> str:
    states = {}
    for entry in _entries(folder):
        if entry.name == BYTECODE and not has_bytecode:
            continue
        with contextlib.suppress(OSError):
            states[entry.name] = NAMED
            status = entry.stat()
            if not entry.is_dir():
                states[entry.name] = _state_of_file(status)
            elif has_bytecode:  # who looks for the newest folder reads this; a new __pycache__ inside changes it, too
                states[entry.name] = f"folder {status.st_mtime_ns}"
        if len(states) > MOST_FILES:
            raise TooManyFilesError(f"{folder} has more than {MOST_FILES:,} files")
    return f"folder {digest(states)}"


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []


def _below(top: str, excluded: Collection[str], seen: set[str]) -> Iterator[tuple[str, str]]:
    """Each path below a folder, and its state."""
    folders = [top]
    while folders:
        folder = folders.pop()
        if folder in seen or folder in excluded or is_installed(folder + os.sep):
            continue
        seen.add(folder)
        entries = _entries(folder)
        if any(entry.name in _ENVIRONMENTS for entry in entries):
            continue
        for entry in entries:
            path = entry.path
            if path in excluded:
                continue
            link = _target(path) if entry.is_symlink() else ""
            if not _is_folder(entry):
                counts = link or not path.endswith(_OPENED_BY_PYTHON_ONLY)
                yield path, f"{link}{state_of(path)}" if counts else NAMED
            elif entry.name not in _SKIPPED:
                yield path, f"{link}folder"
                folders.append(os.path.realpath(path) if link else path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _target(link: str) -> str:
    with contextlib.suppress(OSError):
        return f"to {os.readlink(link)} "  # noqa: PTH115 - see above
    return "to nothing "
