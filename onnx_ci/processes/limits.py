"""The limits of processes, and the memory of the machine."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import psutil

from onnx_ci.processes.control_groups import ControlGroups

MEMORY_SHARE = 0.8
"""The share of the machine's memory that one process may use if the settings name no limit."""
LONGEST_SILENCE = 300.0
"""Seconds after which something is told: CI systems end jobs that print nothing for ten minutes."""
MEMORY_OF_JOB = 2**30
"""Bytes of memory for each cell that runs at once. Containers often limit memory, but not cores."""


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """The limits of a process; ``None`` for no limit."""

    seconds: float | None = None
    memory: int | None = None
    """Bytes of resident memory, beyond what it inherited from the process that forked it."""


def process_limits(seconds: float, memory: int | None) -> ProcessLimits:
    """The limits of a process by the settings. The default memory limit is most of the machine's memory."""
    return ProcessLimits(seconds=seconds, memory=memory or int(MEMORY_SHARE * machine_memory()))


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
