"""Folders for temporary files, which are removed even if their process is killed: by the next one that needs such a folder."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnx_ci.processes.descriptors import fill_standard_descriptors

try:
    import fcntl
except ImportError:  # on Windows, an open file cannot be removed, so it needs no lock
    fcntl = None  # type: ignore[assignment]

_PREFIX = "onnx-ci-"
_LOCK = ".lock"
_NAME = re.compile(r"onnx-ci-[a-z0-9_]{8}(\.lock)?")
"""How :mod:`tempfile` completes the prefix."""
_removed: set[Path] = set()
"""The folders of dead processes that this process has removed."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is removed at the end of the block.

    A file beside it, ``onnx-ci-….lock``, stays locked as long as this process or one that it forked lives. The ids of processes
    would not do: those of several containers can share the folder of temporary files.

    Raises:
        OSError: it cannot be created.
    """
    fill_standard_descriptors()
    _remove_abandoned(tempfile.gettempdir())
    with contextlib.ExitStack() as undo:
        handle, lock = tempfile.mkstemp(prefix=_PREFIX, suffix=_LOCK)
        undo.callback(_remove_file, Path(lock))
        undo.callback(os.close, handle)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some file systems have no locks; then nothing is ever removed there
                fcntl.flock(handle, fcntl.LOCK_EX)
        folder = _folder_of(Path(lock))
        folder.mkdir(mode=0o700)
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def is_scratch(path: Path) -> bool:
    """Whether a path is such a folder or lies in one, or is the lock of one.

    The folder is that of a process that lives, or of a dead one whose folder this process has removed.
    """
    own = (each for each in (path, *path.parents) if _NAME.fullmatch(each.name))
    return any(each.suffix == _LOCK or each in _removed or each.with_suffix(_LOCK).exists() for each in own)


def _folder_of(lock: Path) -> Path:
    return lock.with_suffix("")


@functools.cache
def _remove_abandoned(temporary: str) -> None:
    """Remove the folders of dead processes."""
    for lock in Path(temporary).glob(f"{_PREFIX}*{_LOCK}"):
        with contextlib.suppress(OSError), _locked(lock):
            _removed.add(_folder_of(lock))
            shutil.rmtree(_folder_of(lock), ignore_errors=True)
            lock.unlink()


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Within the block, the lock of a dead process is held; raises ``OSError`` if its process lives, or is another user's."""
    if fcntl is None:
        lock.unlink()  # not possible while it is open
        lock.touch()
        yield
        return
    handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
