"""Files that are opened while a recipe's cells are judged, after their key is known.

The key comes from a model that was built and run. What is opened only while the model is exported, or by the function of a
post-export stage, is not part of it, so the contents of these files are kept with the verdict. Only files that Python opens are
seen: compiled code may open others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.cache import files_state, import_closure, observed
from onnx_ci.cache.files_state import is_new, is_of_machine, state_of
from onnx_ci.cache.import_closure import NotCacheableError
from onnx_ci.cache.observed import Observation
from onnx_ci.environment.libraries import is_library_file, source_of
from onnx_ci.processes.scratch import is_scratch

ABSENT = "absent"
"""Stands for the content of a file that could not be opened because it did not exist."""

_opened: dict[str, str] = {}
"""The state of each file when this process first opened it to read it."""
_written: set[str] = set()
"""Files that this process tried to create or overwrite. If it did, their content follows from the rest."""


@dataclass(frozen=True, kw_only=True)
class Noted:
    """What a process has noted, so that another one can take it over."""

    opened: Mapping[str, str]
    written: tuple[str, ...]


def noted() -> Noted:
    """What this process has noted."""
    return Noted(opened=dict(_opened), written=tuple(sorted(_written)))


def take_over(other: Noted) -> None:
    """Note what a process has noted that was forked from this one, or from the one that this one was forked from."""
    _written.update(other.written)
    for file, state in other.opened.items():
        if _opened.setdefault(file, state) != state:
            _opened[file] = "changing"  # a state that no file has: the two processes have found it in different ones


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
    file = source_of(os.path.abspath(path))  # noqa: PTH100 (of every file that is opened)
    if flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        _written.add(file)
    if not flags & os.O_WRONLY and file not in _opened and not os.path.isdir(file):  # noqa: PTH112 - see above
        state = state_of(file)
        if state != files_state.ABSENT or path == file or not is_of_os:  # else os.open may have been given its folder
            _opened[file] = state


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
    start = import_closure.process_started()
    for file, then in sorted(_opened.items()):
        path = Path(file)
        if is_of_machine(file) or is_library_file(file) or is_scratch(path) or path.is_relative_to(cache):
            continue
        now, state = content(file), state_of(file)
        is_temporary = now == ABSENT and is_new(then, start)
        is_written = file in _written and (now == ABSENT or is_new(state, start))
        if now is None or is_temporary or is_written:
            continue
        if state != then or is_new(state, start):
            raise NotCacheableError(f"{file} changed after this process started")
        found[path.relative_to(root).as_posix() if path.is_relative_to(root) else file] = now
    return found


def observation_of(contents: Mapping[str, str], root: Path) -> Observation:
    """What a process observes that asks :func:`have_changed` of these files."""
    return Observation(files={path: state_of(path) for path in (str(root / name) for name in contents)})


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
        return import_closure.content_digest(file, status)
    except OSError:
        return ABSENT
