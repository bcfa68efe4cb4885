"""The limits of processes, and the memory of the machine."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from dataclasses import dataclass
from typing import Protocol, Self

import psutil

from onnx_ci.processes.control_groups import ControlGroups

MEMORY_SHARE = 0.8
"""The share of the machine's memory that one process may use if the settings name no limit."""
LONGEST_SILENCE = 300.0
"""Seconds after which something is told: CI systems end jobs that print nothing for ten minutes."""
MEMORY_OF_JOB = 2**30
"""Bytes of memory for each cell that runs at once. Containers often limit memory, but not cores."""
_START_SECONDS = 120.0
"""Seconds that a new Python may take to import what its work needs."""
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

    def for_start(self) -> Self:
        """The limits of a new Python until its work begins."""
        return dataclasses.replace(self, seconds=self.seconds + _START_SECONDS)

    def for_import(self) -> Self:
        """The limits of the import of a recipe file."""
        return dataclasses.replace(self, seconds=min(max(self.seconds, _LEAST_FOR_IMPORT), _MOST_FOR_IMPORT))

    def seconds_for_search(self, others: float, spent: float) -> float:
        """How long the cause of a failure may be searched for: as long as all else took, less what the search has taken.

        The search must not end the cell, whose verdict is known by then: it gets a third of the time limit at most.

        Args:
            others: the seconds that all else took.
            spent: the seconds that the search has taken.
        """
        most = max(_LEAST_FOR_SEARCH, others)
        return min(most, self.seconds * _SHARE_OF_SEARCH, self.seconds - others - spent) - spent


@functools.cache
def machine_memory() -> int:
    """Bytes of memory that this machine, or the container around this process, has."""
    try:
        total = int(psutil.virtual_memory().total)
    except OSError:  # psutil reads /proc, which some sandboxes lack
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed = ControlGroups().memory()
    return total if allowed is None else min(total, allowed)


def default_jobs(cores: int, share: int = 1) -> int:
    """How many cells run at once if the settings do not say: one for each core, if there is memory for them.

    Args:
        cores: the number of cores that they may use.
        share: the number of processes that run cells and share the memory.
    """
    return max(1, min(cores, machine_memory() // share // MEMORY_OF_JOB))


def gib(size: float) -> str:
    """A size in words: ``1.5 GiB``."""
    return f"{size / 2**30:.3g} GiB"
