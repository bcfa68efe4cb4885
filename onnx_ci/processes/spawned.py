"""Spawned processes, for every platform. Each is a new Python that imports what it needs, which takes seconds.

Its work is pickled with :mod:`cloudpickle`, which also sends functions of a script or a notebook, so scripts need no guard.
Limits count once libraries are imported. Nothing here needs Unix.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, cast

from onnx_ci.processes.child import Inbox, Task, start_python, write_message
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.pickling import pickled
from onnx_ci.processes.supervisor import GRACE, Child, Message, Processes, Send, Work


class SpawnedInbox:
    """The messages to a spawned process, which ends when no more can arrive, because its supervisor has ended."""

    def __init__(self, descriptor: int) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._receive, args=(os.fdopen(descriptor, "rb"),), name="onnx-ci inbox", daemon=True).start()

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield json.loads(self._lines.get())

    def _receive(self, lines: BinaryIO) -> None:
        for line in lines:
            self._lines.put(line)
        os._exit(1)


class SpawnedProcesses(Processes["_SpawnedChild"]):
    """Spawned processes. Each has its own folder in ``scratch``, which is removed with the process."""

    def __init__(self, scratch: Path) -> None:
        super().__init__()
        self._scratch = scratch
        self._arrived = threading.Event()

    def _start(self, work: Work, warm_up: Callable[[], object] | None, has_inbox: bool) -> _SpawnedChild:
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            task = Task(
                arguments=sys.argv,
                warm_up=pickled(warm_up),
                work=pickled(work if has_inbox else functools.partial(_without_inbox, work)),
                channel=SpawnedInbox,
            )
            pipe = subprocess.PIPE
            with (folder / "output").open("ab+") as output:
                start = functools.partial(start_python, task, folder, stdin=pipe, stdout=pipe, output=output)
                process = self._starter.do(start)
            undo.enter_context(process)  # closes its pipes, and waits for its end
            undo.callback(process.kill)
            printed = undo.enter_context((folder / "output").open("rb"))
            child = _SpawnedChild(pid=process.pid, process=process, folder=folder, output=printed, arrived=self._arrived)
            undo.pop_all()
        return child

    def _await(self, seconds: float) -> bool:
        self._arrived.wait(seconds)
        self._arrived.clear()
        return False


def _without_inbox(work: Work, send: Send, inbox: Inbox) -> None:
    work(send)


@dataclass(kw_only=True, eq=False)
class _SpawnedChild(Child):
    process: subprocess.Popen[bytes]
    arrived: threading.Event
    """Set when something arrives from any process."""
    _received: queue.SimpleQueue[bytes] = field(default_factory=queue.SimpleQueue)
    _ended_at: float | None = None

    def __post_init__(self) -> None:
        try:
            threading.Thread(target=self._read_to_the_end, name=f"onnx-ci messages of {self.pid}", daemon=True).start()
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def read(self) -> bytes | None:
        with contextlib.suppress(queue.Empty):
            return self._received.get_nowait()
        return None

    def post(self, message: Message) -> None:
        write_message(cast("IO[bytes]", self.process.stdin).fileno(), message)

    def exit_code(self) -> int | None:
        code = self.process.poll()
        if code is None:
            return None
        # Its last message may be on its way. But if another process keeps the line open, the end never comes.
        self.receive()
        self._ended_at = self._ended_at or CLOCK.monotonic()
        return code if self.cut_at is not None or CLOCK.monotonic() > self._ended_at + GRACE else None

    def close(self) -> None:
        cast("IO[bytes]", self.process.stdin).close()

    def _read_to_the_end(self) -> None:
        with cast("IO[bytes]", self.process.stdout) as line:
            while read := os.read(line.fileno(), 2**16):
                self._received.put(read)
                self.arrived.set()
        self._received.put(b"")
        self.arrived.set()
