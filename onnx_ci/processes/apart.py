"""Runs work in processes of the kind that the setting ``isolation`` names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from onnx_ci.processes.descriptors import Channel
from onnx_ci.processes.limits import ProcessLimits
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Message, Processes, Work

_Key = TypeVar("_Key")


def processes_of(isolation: str, scratch: Path, channels: Iterable[Channel] = ()) -> Processes[Any]:
    """The supervisor of processes of one kind.

    Args:
        isolation: ``fork`` or ``spawn``.
        scratch: a folder for their files.
        channels: pipes and sockets of this process that a fork must not reach. Spawned processes do not inherit them.
    """
    if isolation == "fork":
        from onnx_ci.processes.forked import ForkedProcesses

        return ForkedProcesses(scratch, channels)
    from onnx_ci.processes.spawned import SpawnedProcesses

    return SpawnedProcesses(scratch)


def run_apart(
    works: Mapping[_Key, Work],
    limits: ProcessLimits,
    isolation: str,
    *,
    warm_up: Callable[[], object] | None = None,
    jobs: int = 1,
) -> Iterator[tuple[_Key, Message | Death]]:
    """Do each of ``works`` in a process of its own, ``jobs`` of them at once, and yield their messages and deaths.

    The last message of each has the key :data:`~onnx_ci.processes.supervisor.LAST`.

    Args:
        works: the functions, by keys.
        limits: the limits of each process.
        isolation: ``fork`` or ``spawn``.
        warm_up: imports what the works need, before their limits count.
        jobs: how many processes run at once.

    Raises:
        OSError: a process could not be started.
    """
    waiting = list(works.items())
    running = 0
    with scratch_folder() as scratch, contextlib.closing(processes_of(isolation, scratch)) as processes:
        while waiting or running:
            while waiting and running < jobs:
                processes.start(*waiting.pop(0), limits, warm_up=warm_up)
                running += 1
            for key, event in processes.wait():
                running -= isinstance(event, Death) or LAST in event
                yield cast("_Key", key), event
