"""The open files of this process, by their numbers."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A pipe or a socket of this process."""

    number: int
    device: int
    inode: int

    @property
    def is_open(self) -> bool:
        """Whether its number still is that of this pipe or socket: a closed one's is soon given to another file."""
        try:
            status = os.fstat(self.number)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


def open_channels() -> tuple[Channel, ...]:
    """The pipes and sockets of this process, but for its standard input and output; on Linux only.

    Before any recipe is imported, all of them belong to the program that started this process, such as pytest-xdist.
    """
    found = []
    with contextlib.suppress(OSError):
        for number in sorted(int(each.name) for each in Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError):  # that of the folder itself
                status = os.fstat(number)
                if number > 2 and (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
                    found.append(Channel(number=number, device=status.st_dev, inode=status.st_ino))
    return tuple(found)


def fill_standard_descriptors() -> None:
    """Open those of the first three descriptors that are closed: a new file with such a number would be printed to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
