"""The file descriptors of this process."""

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
        """Whether it is open. The number of a closed pipe or socket soon belongs to another file."""
        try:
            status = os.fstat(self.number)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


def open_channels() -> tuple[Channel, ...]:
    """The pipes and sockets of this process except its standard input and output; on Linux only.

    Before any recipe is imported, all of them belong to the program that started this process, such as pytest-xdist.
    """
    channels = []
    with contextlib.suppress(OSError):
        for number in sorted(int(link.name) for link in Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError):  # the folder itself is closed by now
                status = os.fstat(number)
                if number > 2 and (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
                    channels.append(Channel(number=number, device=status.st_dev, inode=status.st_ino))
    return tuple(channels)


def fill_standard_descriptors() -> None:
    """Open those of the first three descriptors that are closed. A new file with such a number would get what is printed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def point_at_devnull(*descriptors: int) -> None:
    """Replace open files by the null device. If they were closed, their numbers would soon belong to other files."""
    with Path(os.devnull).open("r+b", buffering=0) as nothing:
        for descriptor in descriptors:
            os.dup2(nothing.fileno(), descriptor)
