"""Whether files are still the same, by what the file system says of them, without reading them."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.environment.libraries import is_installed

MOST_FILES = 20_000
"""Looking at more files takes longer than it saves."""
_SKIPPED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Folders of other tools. A file in one of them counts if Python opens it."""
_ENVIRONMENTS = frozenset({"pyvenv.cfg", "conda-meta"})
"""What folders contain in which Python is installed. Its libraries count by version, and by what is opened."""
_OPENED_BY_PYTHON_ONLY = (".py", ".pyi", ".md", ".rst")
"""Endings of files that no compiled code reads. Where nothing opened such a file, only its name counts."""


class TooManyFilesError(Exception):
    """There are more than :data:`MOST_FILES` files."""


@dataclass(frozen=True, kw_only=True)
class FilesState:
    """The state of files at one moment."""

    digest: str
    newest: float
    """The latest time at which one of them was changed, in seconds since the epoch."""


def state_below(folders: Iterable[Path], excluded: Collection[Path]) -> FilesState:
    """The state of all files below ``folders``, links followed.

    Args:
        folders: the folders.
        excluded: absolute paths of files and folders that do not count.

    Raises:
        TooManyFilesError: see there.
    """
    seen: set[str] = set()
    left_out = {os.path.realpath(path) for path in excluded}
    files = (file for folder in folders for file in _below(os.path.realpath(folder), left_out, seen))
    found = list(itertools.islice(files, MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise TooManyFilesError
    return _state(found)


def state_of(files: Iterable[str]) -> FilesState:
    """The state of files by their absolute paths; of a folder, which names it contains."""
    return _state((file, True) for file in sorted(files))


def _state(files: Iterable[tuple[str, bool]]) -> FilesState:
    hashed, newest = hashlib.sha256(), 0.0
    for file, counts in files:
        about = "named"
        if counts:
            about, changed = _about(file)
            newest = max(newest, changed)
        hashed.update(f"{len(file)} {file} {about}\n".encode("utf-8", "surrogateescape"))
    return FilesState(digest=hashed.hexdigest(), newest=newest)


def _about(file: str) -> tuple[str, float]:
    try:
        status = os.stat(file)  # noqa: PTH116 (thousands of files)
    except OSError:
        return "absent", 0.0
    if stat.S_ISDIR(status.st_mode):
        return hashlib.sha256(repr(_names(file)).encode("utf-8", "surrogateescape")).hexdigest(), 0.0
    changed = max(status.st_mtime_ns, status.st_ctime_ns) / 1e9
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}", changed


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (hundreds of folders)
    except OSError:
        return []


def _below(top: str, excluded: Collection[str], seen: set[str]) -> Iterator[tuple[str, bool]]:
    """Each file below a folder, always in the same order, and whether more than its name counts."""
    folders = [top]
    while folders:
        folder = folders.pop()
        if folder in seen or folder in excluded or is_installed(folder + os.sep):
            continue
        seen.add(folder)
        names = _names(folder)
        if _ENVIRONMENTS.intersection(names):
            continue
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - see above
            if path in excluded:
                continue
            if not os.path.isdir(path):  # noqa: PTH112 - see above
                yield path, not name.endswith(_OPENED_BY_PYTHON_ONLY)
            elif name not in _SKIPPED:
                folders.append(os.path.realpath(path))
