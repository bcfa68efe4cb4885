"""Writes files whole: a reader finds the old content or the new one, never a part of it.

Nothing waits for the disk. If the machine loses its power, a file may be incomplete, and its reader refuses it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable
from pathlib import Path

UNFINISHED = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.tmp")
"""The names of files that are being written, with the names that they get."""
ABANDONED_AFTER = 3600.0
"""Seconds after which an unfinished file is taken for that of a dead process."""


def write_whole(path: Path, pieces: Iterable[bytes], *, is_new: bool = False) -> None:
    """Write ``pieces`` to ``path`` in a folder that exists, without keeping them in memory.

    Whatever is there is replaced, also a pipe; with ``is_new``, an existing file is an error.

    Raises:
        OSError: the file cannot be written; an existing one is kept.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with unfinished.open("xb") as file:
            file.writelines(pieces)
        if is_new:
            path.hardlink_to(unfinished)
        else:
            unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):  # it has its new name, or could not be created
            unfinished.unlink()


def read_regular(path: Path, largest: int) -> bytes:
    """The content of a regular file, or of one that ``path`` links to.

    Reading a pipe could last forever, and a device has no end.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is larger than ``largest`` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if status.st_size > largest:
            raise OSError(errno.EFBIG, "it is too large")
        return file.read(largest)


def remove_unfinished(folder: Path, name: str | None = None, *, seconds: float = ABANDONED_AFTER) -> None:
    """Remove the unfinished files in a folder, or those of ``name`` alone, of processes that were killed.

    Another process may still be writing a file that is younger than ``seconds``.
    """
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            unfinished = UNFINISHED.fullmatch(file.name)
            if unfinished is not None and name in (None, unfinished["name"]):
                with contextlib.suppress(OSError):
                    if file.stat().st_mtime <= time.time() - seconds:
                        file.unlink()
