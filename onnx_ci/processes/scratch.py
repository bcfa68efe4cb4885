"""Folders for temporary files. If a process is killed, the next one that needs such a folder removes that of the dead one.

Beside each folder lies a file, ``onnx-ci-….lock``, which is locked while its process or a fork of that lives. Process ids would
not do: several containers can share a folder of temporary files. The file also says which folder is meant, and a folder of
which none says that is somebody else's, whatever its name is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnx_ci.processes.capture import fill_standard_descriptors
from onnx_ci.whole_files import read_regular

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
_PREFIX = "onnx-ci-"
_LOCK = ".lock"
_NAME = re.compile(r"onnx-ci-[a-z0-9_]{8}(\.lock)?")
"""How :mod:`tempfile` completes the prefix."""
_removed: set[Path] = set()
"""The folders of dead processes that this process has removed."""


def lock(descriptor: int, *, waits: bool = True) -> bool:
    """Lock an open file or folder, and return whether it is locked. Some platforms and file systems have no locks.

    The system releases the lock when the last process that inherited it ends. Those of filelock end with the process that took
    them, even if forks of it live on, and it cannot lock a folder.
    """
    with contextlib.suppress(OSError, AttributeError):
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is removed at the end of the block. Raises ``OSError`` if it cannot be created."""
    fill_standard_descriptors()
    _remove_abandoned(tempfile.gettempdir())
    with contextlib.ExitStack() as undo:
        descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_LOCK)
        undo.callback(Path(name).unlink, missing_ok=True)
        undo.callback(os.close, descriptor)
        lock(descriptor)
        folder = Path(name).with_suffix("")
        folder.mkdir(mode=0o700)
        os.write(descriptor, _mark(folder))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def is_scratch(path: Path) -> bool:
    """Whether a path is such a folder, lies in one, or is its lock.

    The folder exists for a live process, or this process has removed it after its owner had died.
    """
    scratch = (place for place in (path, *path.parents) if _NAME.fullmatch(place.name))
    return any(place.suffix == _LOCK or place in _removed or place.with_suffix(_LOCK).exists() for place in scratch)


def _mark(folder: Path) -> bytes:
    """What the lock of a folder contains: the folder's number in its file system."""
    return b"onnx-ci made the folder %d\n" % folder.lstat().st_ino


def _is_lock_of(file: Path, folder: Path) -> bool:
    """Whether a file is the lock of a folder, which may be gone. Raises ``OSError`` if it cannot be read."""
    mark = read_regular(file, largest=100)
    is_mark = re.fullmatch(rb"onnx-ci made the folder \d+\n", mark) is not None
    return is_mark and not file.is_symlink() and (not os.path.lexists(folder) or mark == _mark(folder))


@functools.cache
def _remove_abandoned(temporary: str) -> None:
    """Remove the folders of dead processes."""
    for file in Path(temporary).glob(f"{_PREFIX}*{_LOCK}"):
        folder = file.with_suffix("")
        with contextlib.suppress(OSError):
            if not _is_lock_of(file, folder):
                continue
            with _owner_is_dead(file) as is_dead:
                if not is_dead:
                    continue
                _removed.add(folder)
                shutil.rmtree(folder, ignore_errors=True)
                file.unlink()


@contextlib.contextmanager
def _owner_is_dead(file: Path) -> Iterator[bool]:
    """Whether the process of a lock is dead, and this user's. If so, this process holds the lock within the block."""
    if not HAS_LOCKS:
        file.unlink()  # Windows refuses that while a process has it open
        file.touch()
        yield True
        return
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield os.fstat(descriptor).st_uid == os.getuid() and lock(descriptor, waits=False)
    finally:
        os.close(descriptor)
