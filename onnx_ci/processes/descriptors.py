"""The open files of this process, by their numbers."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def open_channels() -> tuple[int, ...]:
    """The pipes and sockets of this process, but for its standard input and output; on Linux only.

    Those that are open before any recipe is imported belong to whoever started this process, such as pytest-xdist.
    """
    found = []
    with contextlib.suppress(OSError):
        for descriptor in sorted(int(each.name) for each in Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError):  # that of the folder itself
                mode = os.fstat(descriptor).st_mode
                found += [descriptor] if descriptor > 2 and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) else []
    return tuple(found)


def fill_standard_descriptors() -> None:
    """Open those of the first three descriptors that are closed: a new file with such a number would be printed to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
