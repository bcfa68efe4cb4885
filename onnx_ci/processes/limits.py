"""The limits of processes, and the memory and the cores of the machine. Linux keeps those of a container in control groups."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import psutil

MEMORY_SHARE = 0.8
"""The share of the machine's memory that one process may use if the settings name no limit."""
MEMORY_OF_JOB = 2**30
"""Bytes of memory for each cell that runs at once. Containers often limit memory, but not cores."""
_LEAST_FOR_IMPORT, _MOST_FOR_IMPORT = 60.0, 1e6
"""Seconds: libraries can take long to import, and the system takes no larger number."""
_LEAST_FOR_SEARCH, _SHARE_OF_SEARCH = 5.0, 1 / 3
"""Seconds for a search, however little time all else took, and the largest share of the time limit."""


class _Chosen(Protocol):
    """Settings, or what follows from them for a cell."""

    @property
    def timeout(self) -> float: ...
    @property
    def memory_limit(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may use; infinite without a limit."""

    seconds: float = math.inf
    memory: float = math.inf
    """Bytes of resident memory, beyond what it inherited from the process that forked it."""

    @classmethod
    def of(cls, chosen: _Chosen) -> Self:
        """The limits that settings or a cell name. The default memory limit is most of the machine's memory."""
        return cls(seconds=chosen.timeout, memory=chosen.memory_limit or int(MEMORY_SHARE * machine_memory()))

    def times(self, factor: float) -> Self:
        """More or less time, and the same memory."""
        return dataclasses.replace(self, seconds=factor * self.seconds)

    def for_import(self) -> Self:
        """The limits of the import of a recipe file."""
        return dataclasses.replace(self, seconds=min(max(self.seconds, _LEAST_FOR_IMPORT), _MOST_FOR_IMPORT))

    def seconds_for_search(self, others: float, spent: float) -> float:
        """How long the cause of a failure may be searched for: as long as all else took, less what the search has taken.

        The search must not end the cell, whose verdict is known by then: it gets a third of the time limit at most.
        """
        most = max(_LEAST_FOR_SEARCH, others)
        return min(most, self.seconds * _SHARE_OF_SEARCH, self.seconds - others - spent) - spent


def gib(size: float) -> str:
    """A size in words: ``1.5 GiB``."""
    return f"{size / 2**30:.3g} GiB"


@functools.cache
def machine_memory() -> int:
    """Bytes of memory that this machine, or the container around this process, has."""
    try:
        total = int(psutil.virtual_memory().total)
    except OSError:  # psutil reads /proc, which some sandboxes lack
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed = ControlGroups().memory()
    return total if allowed is None else min(total, allowed)


def usable_cores(groups: ControlGroups | None = None) -> int:
    """The number of cores that this process may use at once, by its processor affinity and its processor time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = (groups or ControlGroups()).cores()
    return count if allowed is None else max(1, min(count, math.ceil(allowed)))


def default_jobs(cores: int | None = None, share: int = 1) -> int:
    """How many cells run at once: one per core for which there is memory, which ``share`` processes share."""
    return max(1, min(cores or usable_cores(), machine_memory() // share // MEMORY_OF_JOB))


# --- control groups ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ControlGroups:
    """The control groups of this process, of versions 1 and 2. Elsewhere than on Linux, there are none."""

    membership: Path = Path("/proc/self/cgroup")
    hierarchies: Path = Path("/sys/fs/cgroup")

    def memory(self) -> int | None:
        """The bytes of memory that they allow; ``None`` without a limit."""
        return min((limit for limit in map(_memory_of, self._folders("memory")) if limit > 0), default=None)

    def cores(self) -> float | None:
        """The number of cores that equals the processor time that they allow; ``None`` without a limit."""
        return min((limit for limit in map(_cores_of, self._folders("cpu")) if limit > 0), default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """The folders that may hold limits: those of this process's group and of the groups that contain it."""
        with contextlib.suppress(OSError):
            for entry in self.membership.read_text(errors="surrogateescape").split("\n"):
                _, *rest = entry.split(":", 2)
                if len(rest) < 2:
                    continue
                controllers, group = rest
                if controllers and controller not in controllers.split(","):
                    continue
                # In version 1, controllers may share a hierarchy, which is named after all or one of them. The hierarchy of
                # version 2 has no name, or the name "unified" beside version 1.
                for root in {self.hierarchies / name for name in (controllers and controller, controllers or "unified")}:
                    folder = root / group.lstrip("/")
                    # A container may see its own group as the root.
                    yield from (place for place in (folder, *folder.parents) if place.is_relative_to(root))


def _memory_of(folder: Path) -> int:
    """The bytes of memory that a group allows; not above 0 without a limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            return int((folder / name).read_text())
    return 0


def _cores_of(folder: Path) -> float:
    """The cores that a group allows; not above 0 without a limit."""
    with contextlib.suppress(OSError, ValueError, ArithmeticError):  # no such file, or "max 100000"
        quota, period = map(int, (folder / "cpu.max").read_text().split())
        return quota / period
    with contextlib.suppress(OSError, ValueError, ArithmeticError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period
    return 0.0
