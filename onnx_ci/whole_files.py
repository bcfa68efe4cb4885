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
    """Write ``pieces`` to ``path``. What is there is replaced, also a pipe, or an error if ``is_new``. Raises ``OSError``."""
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
    """The content of a regular file of at most ``largest`` bytes: a pipe or a device has no end. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if status.st_size > largest:
            raise OSError(errno.EFBIG, "it is too large")
        return file.read(largest)


def remove_unfinished(folder: Path, name: str | None = None, *, seconds: float = ABANDONED_AFTER) -> None:
    """Remove unfinished files, of one ``name`` or of all, that are so old: a younger one may be that of a live process."""
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            unfinished = UNFINISHED.fullmatch(file.name)
            if unfinished is not None and name in (None, unfinished["name"]):
                with contextlib.suppress(OSError):
                    if file.stat().st_mtime <= time.time() - seconds:
                        file.unlink()
