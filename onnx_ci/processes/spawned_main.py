"""The main program of a spawned process. :mod:`~onnx_ci.processes.spawned` starts it."""

from __future__ import annotations

import functools
import json
import os
import pickle
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from onnx_ci.processes.child import Line, settle, work_to_the_end
from onnx_ci.processes.descriptors import point_at_devnull
from onnx_ci.processes.spawned import LENGTH, Task
from onnx_ci.processes.supervisor import BEGUN, Message, resident

_Sent = queue.SimpleQueue[bytes]


class _SpawnedInbox:
    def __init__(self, sent: _Sent) -> None:
        self._sent = sent

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield json.loads(self._sent.get())


def main() -> None:
    """Do the :class:`~onnx_ci.processes.spawned.Task` that arrives first."""
    folder = Path(os.environ["TMPDIR" if os.name != "nt" else "TEMP"])
    sent: _Sent = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(os.fdopen(os.dup(0), "rb"), sent), name="onnx-ci inbox", daemon=True).start()
    line = os.dup(1)
    point_at_devnull(0)
    settle(folder, os.dup(2))
    task: Task = pickle.loads(sent.get())
    to_supervisor = Line(line, task.token)
    work_to_the_end(to_supervisor, functools.partial(_do, task, to_supervisor, sent))


def _receive(requests: BinaryIO, sent: _Sent) -> None:
    """Put everything that arrives into the queue, and end this process when its sender ends."""
    while len(length := requests.read(LENGTH)) == LENGTH:
        sent.put(requests.read(int.from_bytes(length, "big")))
    os._exit(1)


def _do(task: Task, line: Line, sent: _Sent) -> None:
    os.environ.clear()
    os.environ.update(task.variables)
    os.chdir(task.folder)
    sys.argv[:] = task.arguments
    sys.path[:] = task.path
    warm_up = pickle.loads(task.warm_up)
    if warm_up is not None:
        warm_up()
    line.send({BEGUN: resident(os.getpid())})
    work = pickle.loads(task.work)
    if task.has_inbox:
        work(line.send, _SpawnedInbox(sent))
    else:
        work(line.send)
