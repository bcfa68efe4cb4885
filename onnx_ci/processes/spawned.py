"""Spawned processes, for every platform. Each is a new Python that imports what it needs, which takes seconds.

Its program is :mod:`~onnx_ci.processes.spawned_main`. Its work is pickled with :mod:`cloudpickle`, which also sends functions
of a script or a notebook, so scripts need no guard. Limits count once libraries are imported. Nothing here needs Unix.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from onnx_ci.processes.child import new_python, temporary_folder
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.pickling import pickled
from onnx_ci.processes.starter import start_thread
from onnx_ci.processes.supervisor import GRACE, Message, Processes, Work, new_token

LENGTH = 8
"""The number of bytes before a message that give its length."""
_MOST_UNREAD = 2**24
"""The number of unread bytes from a process after which the process has to wait."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of a process, and what it has in common with the process that sends it."""

    token: bytes
    variables: Mapping[str, str]
    folder: str
    arguments: list[str]
    path: list[str]
    warm_up: bytes
    """Pickled: ``None`` or a function."""
    work: bytes
    """Pickled."""
    has_inbox: bool


class SpawnedProcesses(Processes["_SpawnedChild"]):
    """Spawned processes.

    Args:
        scratch: a folder for their files. Each has its own folder in it, which is removed with the process.
    """

    def __init__(self, scratch: Path) -> None:
        super().__init__()
        self._scratch = scratch
        self._arrived = threading.Event()

    def _start(self, work: Work, warm_up: Callable[[], object] | None, has_inbox: bool) -> _SpawnedChild:
        pickled_warm_up, pickled_work = pickled(warm_up), pickled(work)
        child = self._starter.do(functools.partial(_spawn, self._scratch, self._arrived))
        task = Task(
            token=child.token,
            variables={**os.environ, **temporary_folder(child.folder)},
            folder=str(Path.cwd()),
            arguments=sys.argv,
            path=sys.path,
            warm_up=pickled_warm_up,
            work=pickled_work,
            has_inbox=has_inbox,
        )
        child.send(pickle.dumps(task))
        return child

    def _await(self, seconds: float) -> bool:
        self._arrived.wait(seconds)
        self._arrived.clear()
        return False


def _spawn(scratch: Path, arrived: threading.Event) -> _SpawnedChild:
    """Start a process that waits for a :class:`Task`."""
    folder = scratch / new_token().decode()
    folder.mkdir()
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        with (folder / "output").open("ab+") as output:
            process = subprocess.Popen(
                new_python("onnx_ci.processes.spawned_main"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **temporary_folder(folder)},
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # Ctrl-C in the console is not for it
            )
        undo.enter_context(process)  # closes its pipes, and waits for its end
        undo.callback(process.kill)
        printed = undo.enter_context((folder / "output").open("rb"))
        child = _SpawnedChild(process=process, folder=folder, output=printed, arrived=arrived)
        undo.pop_all()
    return child


@dataclass(kw_only=True)
class _SpawnedChild:
    process: subprocess.Popen[bytes]
    folder: Path
    output: IO[bytes]
    arrived: threading.Event
    """Set when something arrives from any process."""
    token: bytes = field(default_factory=new_token, init=False)
    inherited: int | None = None
    _received: bytearray = field(default_factory=bytearray, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    """Guards the received bytes."""
    _is_cut: bool = field(default=False, init=False)
    """Whether nothing more can arrive."""
    _is_closed: bool = field(default=False, init=False)
    _to_send: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue, init=False)
    _ended_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for target in (self._receive, self._write):  # the supervisor must not wait for a process that has stopped
            start_thread(threading.Thread(target=target, name=f"onnx-ci {target.__name__} {self.pid}", daemon=True))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def read(self) -> bytes | None:
        with self._changed:
            if not self._received:
                return b"" if self._is_cut else None
            read = bytes(self._received)
            self._received.clear()
            self._changed.notify()
            return read

    def post(self, message: Message) -> None:
        if self.process.poll() is not None:
            raise BrokenPipeError
        self.send(json.dumps(message).encode())

    def send(self, content: bytes) -> None:
        """Send the process a :class:`Task`, or a message of a running one."""
        self._to_send.put(len(content).to_bytes(LENGTH, "big") + content)

    def exit_code(self) -> int | None:
        code = self.process.poll()
        if code is None or self._is_cut:
            return code
        # Its last message may be on its way. But if another process keeps the line open, the end never comes.
        self._ended_at = self._ended_at or CLOCK.monotonic()
        return code if CLOCK.monotonic() > self._ended_at + GRACE else None

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._to_send.put(None)

    def _receive(self) -> None:
        with cast("IO[bytes]", self.process.stdout) as line:
            while read := os.read(line.fileno(), 2**16):
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or len(self._received) < _MOST_UNREAD)
                    if self._is_closed:
                        return
                    self._received += read
                self.arrived.set()
        with self._changed:
            self._is_cut = True
        self.arrived.set()

    def _write(self) -> None:
        inbox = cast("IO[bytes]", self.process.stdin)
        with contextlib.suppress(OSError), inbox:  # a dead process is noticed elsewhere
            while (content := self._to_send.get()) is not None:
                inbox.write(content)
                inbox.flush()
