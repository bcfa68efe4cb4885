"""What a process may use, and what the machine has."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import psutil

from onnx_ci.processes.control_groups import ControlGroups

MEMORY_SHARE = 0.8
"""The share of the machine's memory that one process may use where the settings name no limit."""
MEMORY_OF_JOB = 2**30
"""Bytes of memory for each cell that runs at once. In a container, cores are often not limited, but memory is."""


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """What a process may use; ``None`` where there is no limit."""

    seconds: float | None = None
    memory: int | None = None
    """Bytes of resident memory, beyond what it has from the process that it was forked from."""


def process_limits(seconds: float, memory: int | None) -> ProcessLimits:
    """The limits of a process by the settings; without a memory limit, most of the machine's memory."""
    return ProcessLimits(seconds=seconds, memory=memory or int(MEMORY_SHARE * machine_memory()))


@functools.cache
def machine_memory() -> int:
    """Bytes of memory that this machine, or the container around this process, has."""
    total, allowed = int(psutil.virtual_memory().total), ControlGroups().memory()
    return total if allowed is None else min(total, allowed)


def default_jobs(cores: int, share: int = 1) -> int:
    """How many cells run at once where the settings do not say: one per core, if there is memory for it.

    Args:
        cores: how many cores they may use.
        share: how many processes that run cells share the memory.
    """
    return max(1, min(cores, machine_memory() // share // MEMORY_OF_JOB))


def gib(size: float) -> str:
    """A size in words: ``1.5 GiB``."""
    return f"{size / 2**30:.3g} GiB"
