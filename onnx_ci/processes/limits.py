"""What a process may use, and what the machine has."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

MEMORY_SHARE = 0.8
"""The share of the machine's memory that one process may use where the settings name no limit."""


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """What a process may use; ``None`` where there is no limit."""

    seconds: float | None = None
    spent: float = 0.0
    """How many of these seconds another process has spent on its work."""
    memory: int | None = None
    """Bytes of resident memory, beyond what it has from the process that it was forked from."""


def process_limits(seconds: float, memory: int | None) -> ProcessLimits:
    """The limits of a process by the settings; without a memory limit, most of the machine's memory."""
    return ProcessLimits(seconds=seconds, memory=memory or int(MEMORY_SHARE * machine_memory()))


@functools.cache
def machine_memory() -> int:
    """Bytes of memory that this machine, or the container around this process, has."""
    sizes = [psutil.virtual_memory().total]
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            sizes.append(int(file.read_text()))
    return min(sizes)


def _limit_files() -> Iterator[Path]:
    """The files in which Linux may state the memory limits of this process's control groups (versions 1 and 2)."""
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = entry.split(":", 2)
            if controllers in ("", "memory"):
                root, name = ("", "memory.max") if not controllers else ("memory", "memory.limit_in_bytes")
                path = Path("/sys/fs/cgroup", root)
                for folder in (path / group.lstrip("/"), *(path / group.lstrip("/")).parents):
                    if folder.is_relative_to(path):
                        yield folder / name


def gib(size: float) -> str:
    """A size in words: ``1.5 GiB``."""
    return f"{size / 2**30:.3g} GiB"
