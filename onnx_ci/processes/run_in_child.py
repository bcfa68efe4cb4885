"""Runs work in processes of the kind that the setting ``isolation`` names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Message, Processes, Work


def processes_of(isolation: str, scratch: Path) -> Processes[Any]:
    """The supervisor of processes of one kind."""
    if isolation == "fork":
        from onnx_ci.processes.forked import ForkedProcesses

        return ForkedProcesses(scratch)
    from onnx_ci.processes.spawned import SpawnedProcesses

    return SpawnedProcesses(scratch)


def run_in_child(
    work: Work, limits: Limits, isolation: str, *, warm_up: Callable[[], object] | None = None
) -> Iterator[Message | Death]:
    """Do ``work`` in a process of its own, and yield its messages and its death. Without isolation, it is done in this process.

    The last message has the key :data:`~onnx_ci.processes.supervisor.LAST`. ``warm_up`` imports what the work needs.
    """
    if isolation == "none":
        yield from messages_of(work)
        return
    with must_start(), scratch_folder() as scratch, contextlib.closing(processes_of(isolation, scratch)) as processes:
        processes.start(work, work, limits, warm_up=warm_up)
        is_over = False
        while not is_over:
            for _, event in processes.wait():
                is_over = isinstance(event, Death) or LAST in event
                yield event


@contextlib.contextmanager
def must_start() -> Iterator[None]:
    """Within the block, say what to do if no process can be started."""
    try:
        yield
    except OSError as error:
        raise EnvironmentLacksError(f"no process could be started: {error}; use --isolation=none") from error


def messages_of(work: Work) -> list[Message]:
    """The messages of a work that is done in this process."""
    messages: list[Message] = []
    work(messages.append)
    return messages
