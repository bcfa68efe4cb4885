"""Files that are opened while a recipe's cells are judged, after their key is known.

The key comes from a model that was built and run. What is opened only while the model is exported, or by the function of a
post-export stage, is not part of it, so the contents of these files are kept with the verdict. Only files that Python opens are
seen: compiled code may open others.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_ci.cache import import_closure, observed
from onnx_ci.cache.import_closure import NotCacheableError
from onnx_ci.environment.libraries import is_library_file
from onnx_ci.processes.scratch import is_scratch

ABSENT = "absent"
"""Stands for the content of a file that could not be opened because it did not exist."""

_MACHINE = ("/proc/", "/sys/", "/dev/")
_opened: dict[str, bool] = {}
"""Whether each file existed when this process first opened it to read it."""
_written: set[str] = set()
"""Files that this process has opened to create or overwrite them. Their content follows from the rest."""


def record() -> None:
    """Forget what this process has read, and note what it opens from now on. A fork inherits both."""
    _listen()
    _opened.clear()


@functools.cache
def _listen() -> None:
    sys.addaudithook(_hear)  # it cannot be removed


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and not isinstance(arguments[0], int):
        with contextlib.suppress(OSError, ValueError, TypeError):  # it is not a path, or the current directory is gone
            _note(os.fsdecode(arguments[0]), arguments[2], is_of_os=arguments[1] is None)


def _note(path: str, flags: int, *, is_of_os: bool) -> None:
    file = os.path.abspath(path)  # noqa: PTH100 (of every file that is opened)
    if flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        _written.add(file)
    elif file not in _opened:
        exists = os.path.exists(file)  # noqa: PTH110 - see above
        if exists or path == file or not is_of_os:  # else it may be in a folder that os.open was given by descriptor
            _opened[file] = exists


def contents(root: Path, cache: Path) -> dict[str, str]:
    """The SHA-256 of each file that was read since :func:`record`, or :data:`ABSENT`, by its name.

    Files of libraries do not count, because those count by version, nor do temporary files of the run.

    Args:
        root: the project's root. The names of files below it are relative to it.
        cache: the folder of the cache, whose files do not count.

    Raises:
        NotCacheableError: a file changed since this process started, so what was read is not known.
    """
    found = {}
    for opened, existed in sorted(_opened.items()):
        file = _source_of(opened)
        if file in _written or file.startswith(_MACHINE) or is_library_file(file) or Path(file).is_relative_to(cache):
            continue
        now = content(file)
        if now is None or (now == ABSENT and existed) or is_scratch(Path(file)):
            continue  # a folder, or a temporary file
        if now != ABSENT and (not existed or _is_new(file)):
            raise NotCacheableError(f"{file} changed after this process started")
        path = Path(file)
        found[path.relative_to(root).as_posix() if path.is_relative_to(root) else file] = now
    return found


def have_changed(contents: Mapping[str, str], root: Path) -> bool:
    """Whether one of the files has another content than :func:`contents` found.

    Args:
        root: the project's root, which may be another one than then.
    """
    for name in contents:
        observed.add_file(str(root / name))  # one that is absent is not opened to see that
    return any(content(str(root / name)) != then for name, then in contents.items())


def content(file: str) -> str | None:
    """The SHA-256 of a file's content, :data:`ABSENT`, or ``None`` for a folder and anything else that is not a file."""
    try:
        status = Path(file).stat()
        if not stat.S_ISREG(status.st_mode):
            return None
        return _digest(file, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except OSError:
        return ABSENT


@functools.lru_cache(maxsize=4096)
def _digest(file: str, *_: int) -> str:
    with Path(file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _is_new(file: str) -> bool:
    status = Path(file).stat()
    return max(status.st_mtime, status.st_ctime) >= import_closure.process_started()


def _source_of(file: str) -> str:
    """The source of a compiled module, else the file itself."""
    with contextlib.suppress(ValueError):  # a name that Python itself does not give
        return importlib.util.source_from_cache(file) if file.endswith(".pyc") else file
    return file
