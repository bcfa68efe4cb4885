"""Supervises child processes: what one does affects no other, and the reason of its end is known.

A process sends lines of JSON to its supervisor. It ends with the last one, whatever native code, threads or exit handlers are
still running. Every process has a deadline in every state. The subclasses of :class:`Processes`, in
:mod:`~onnx_ci.processes.forked` and :mod:`~onnx_ci.processes.spawned`, start processes.
"""

from __future__ import annotations

import abc
import contextlib
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import psutil

from onnx_ci.processes.capture import fill_standard_descriptors, last_of
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.limits import Limits, gib

Message = Mapping[str, Any]
"""A message from a process or to it: plain JSON data."""
Send = Callable[[Message], None]
Work = Callable[..., None]
"""The work of a process. Its arguments are a :data:`Send`, and an inbox if the process has one."""
OUTPUT_LIMIT = 64 * 2**20
WATCH = 0.05
"""Seconds between two checks of the time, memory and output of the processes."""
CHILDREN_WATCH = 1.0
"""Seconds between two checks of the memory of a process's own children, which take longer."""
_START_SECONDS = 120.0
"""Seconds that a new Python may take to import what its work needs."""
GRACE = 1.0
"""Seconds that a process may live on after it has closed its line."""
RAISED = "raised"
"""The key of the message that names the exception which ended a process."""
BEGUN = "begun"
"""The key of the message after which the limits of a process count. Its value is the memory that the process uses then."""
LAST = "last"
"""The key of the last message of a process, which has nothing more to do."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a process that did not finish its work."""

    cause: str
    """``crash``, ``timeout`` or ``out-of-memory``."""
    message: str
    """What happened to the process: "was killed by SIGSEGV"."""
    log: str


@dataclass(kw_only=True, eq=False)
class Child(abc.ABC):
    """A process: how to reach it, and the state of its supervision."""

    pid: int
    folder: Path
    """The folder for its files, which is removed with it."""
    output: IO[bytes]
    inherited: int | None = None
    """Bytes of memory that it used when its limits began to count; ``None`` before that."""
    limits: Limits = field(default_factory=Limits)
    seconds: float = math.inf
    """The time to its deadline when the deadline was set."""
    deadline: float = math.inf
    is_finished: bool = False
    cut_at: float | None = None
    """When it closed its line."""
    _raised: str | None = None
    _unread: bytearray = field(default_factory=bytearray)
    _arrived: list[Message] = field(default_factory=list)
    _children_memory: int = 0
    _children_measured_at: float = 0.0

    @abc.abstractmethod
    def read(self) -> bytes | None:
        """What has arrived from it; empty at the end of its line, ``None`` if nothing has arrived."""

    @abc.abstractmethod
    def post(self, message: Message) -> None:
        """Put a message into its inbox. Raises ``OSError`` if it is dead."""

    @abc.abstractmethod
    def exit_code(self) -> int | None:
        """Its exit code once it has ended, negative for a signal as in :mod:`subprocess`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close what leads to it. It has ended."""

    def give(self, seconds: float) -> None:
        """Set the deadline."""
        self.seconds, self.deadline = seconds, CLOCK.monotonic() + seconds

    def printed(self) -> str:
        """The end of what it has printed so far."""
        output = self.output.fileno()
        return last_of(output, 0, os.fstat(output).st_size)

    def messages(self) -> list[Message]:
        """The messages that have arrived since the last call."""
        self.receive()
        arrived, self._arrived = self._arrived, []
        self.is_finished = any(LAST in message for message in arrived)
        return arrived

    def receive(self) -> None:
        """Read the messages that have arrived."""
        while self.cut_at is None and (read := self.read()) is not None:
            if not read:
                self.cut_at = CLOCK.monotonic()
            self._unread += read
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            try:
                self.note(dict(json.loads(line)))
            except (ValueError, TypeError):  # code that closed a file twice has written to another one
                self._raised = self._raised or "an error: a message to its supervisor was damaged"

    def note(self, message: Message) -> None:
        """Note a message that has arrived."""
        if BEGUN in message:
            self.inherited = int(message[BEGUN])
            self.give(self.limits.seconds)
        elif RAISED in message:
            self._raised = message[RAISED]
        else:
            self._arrived.append(message)

    def death(self, code: int | None) -> Death | None:
        """How it died, or why it has to die; ``None`` while it works."""
        now = CLOCK.monotonic()
        cause = "crash"
        if self._raised is not None:
            message = f"raised {self._raised}"
        elif code is not None:
            message = how_it_ended(code)
        elif self.cut_at is not None and now > self.cut_at + GRACE:
            message = "closed its line to its supervisor"
        elif os.fstat(self.output.fileno()).st_size > OUTPUT_LIMIT:
            message = f"printed more than {OUTPUT_LIMIT // 2**20} MiB"
        elif now > self.deadline:
            cause, message = "timeout", f"did not end within {self.seconds:g} s"
        elif (used := self._used_memory()) > self.limits.memory:
            cause, message = "out-of-memory", f"used {gib(used)} of memory where {gib(self.limits.memory)} are allowed"
        else:
            return None
        return Death(cause=cause, message=message, log=self.printed())

    def _used_memory(self) -> int:
        """Bytes of memory that it and the processes that it has started use, beyond what it inherited."""
        if self.inherited is None or self.limits.memory == math.inf:
            return 0
        now = CLOCK.monotonic()
        if now > self._children_measured_at + CHILDREN_WATCH:
            self._children_measured_at = now
            self._children_memory = sum(map(_unshared, _children(self.pid)))
        used = resident(self.pid) - self.inherited + self._children_memory
        if used <= self.limits.memory:
            return used
        # The pages of a library count for a fork once it runs their code, although it shares them with its parent.
        return min(used, _unshared(self.pid) + self._children_memory)

    def clear(self) -> None:
        """Remove what it leaves behind, once it has ended: processes of its session, and files."""
        _kill_session(self.pid)
        self.output.close()
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_Child = TypeVar("_Child", bound=Child)
_T = TypeVar("_T")


class Starter:
    """A thread in which processes are started, and which does nothing else.

    On Linux, the system kills a process when the thread ends that started it, so this thread outlives its processes. And OpenMP
    ties its worker threads to the thread that first used them. A fork of that thread would wait for them forever.
    """

    def __init__(self) -> None:
        self._thread = _thread()

    def do(self, start: Callable[[], _T]) -> _T:
        """Call ``start`` in the thread and return its result. Raises ``OSError`` if there can be no thread."""
        try:
            started = self._thread.submit(start)
        except RuntimeError as error:
            self._thread = _thread()  # the old one would call it once it can be started
            raise OSError(str(error)) from error
        return started.result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="onnx-ci starter")


class Processes(abc.ABC, Generic[_Child]):
    """The processes that this process has started, each under a key that the caller chooses."""

    def __init__(self) -> None:
        self._starter = Starter()
        self._running: dict[object, _Child] = {}
        self._ending: list[_Child] = []
        self._last_look = CLOCK.monotonic()

    def start(
        self, key: object, work: Work, limits: Limits, *, warm_up: Callable[[], object] | None = None, has_inbox: bool = False
    ) -> None:
        """Start a process with a session of its own. If it is a fork, ``warm_up`` runs here before it. Raises ``OSError``."""
        fill_standard_descriptors()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        self._supervise(key, self._start(work, warm_up, has_inbox), limits)

    def _supervise(self, key: object, child: _Child, limits: Limits) -> None:
        """Supervise a process that has been started."""
        if not self._running:
            self._last_look = CLOCK.monotonic()
        self._running[key], child.limits = child, limits
        child.give(limits.seconds + (_START_SECONDS if child.inherited is None else 0.0))

    @abc.abstractmethod
    def _start(self, work: Work, warm_up: Callable[[], object] | None, has_inbox: bool) -> _Child:
        """Start a process."""

    @abc.abstractmethod
    def _await(self, seconds: float) -> bool:
        """Wait until something may have arrived. Returns whether :meth:`wait` has to end even if nothing has."""

    def post(self, key: object, message: Message) -> None:
        """Put a message into the inbox of a process. Raises ``OSError`` if it is dead."""
        self._alive(key).post(message)

    def _alive(self, key: object) -> _Child:
        """A process that has not ended as far as this process knows. Raises ``BrokenPipeError`` if it has."""
        if key not in self._running:
            raise BrokenPipeError("the process has ended")
        return self._running[key]

    def extend(self, key: object, seconds: float | None) -> None:
        """Give a process ``seconds`` from now on, or no deadline at all."""
        if key in self._running:
            self._running[key].give(math.inf if seconds is None else seconds)

    def printed(self, key: object) -> str:
        """The end of what a process has printed so far; empty once it has ended."""
        return self._running[key].printed() if key in self._running else ""

    def rename(self, key: object, new: object, limits: Limits) -> None:
        """Give an idle process another key, and new limits, which count from now on. Raises ``OSError`` if it is dead."""
        process = self._running[new] = self._alive(key)
        del self._running[key]
        process.limits = limits
        process.give(limits.seconds)

    def wait(self, seconds: float | None = None) -> list[tuple[object, Message | Death]]:
        """Messages and deaths of the processes as soon as there are any; nothing if ``seconds`` pass before that."""
        end = CLOCK.monotonic() + (math.inf if seconds is None else seconds)
        while True:
            is_called = self._await(max(0.0, min(WATCH, end - CLOCK.monotonic())))
            self._extend_deadlines()
            events = [event for key in list(self._running) for event in self._look(key)]
            self._reap()
            if events or is_called or CLOCK.monotonic() >= end:
                return events

    def _extend_deadlines(self) -> None:
        """Add the time in which this process did not look to all deadlines: others may have waited for it."""
        now = CLOCK.monotonic()
        absence = now - self._last_look
        if absence > GRACE:
            for process in self._running.values():
                process.deadline += absence
        self._last_look = now

    def stop(self, key: object) -> None:
        """Kill a process and everything that it has started."""
        process = self._running.pop(key, None)
        if process is not None:
            kill_tree(process.pid)
            self._ending.append(process)

    def close(self) -> None:
        """Kill all processes, wait for their ends, and remove their files."""
        for key in list(self._running):
            self.stop(key)
        while self._ending:
            self._reap()
            time.sleep(0.001)
        self._starter.close()

    def _look(self, key: object) -> list[tuple[object, Message | Death]]:
        """The messages of one process, and its death if it is dead."""
        process = self._running[key]
        code = process.exit_code()  # before its line is read, so that no message is lost
        events: list[tuple[object, Message | Death]] = [(key, message) for message in process.messages()]
        death = None if process.is_finished else process.death(code)
        if not process.is_finished and death is None:
            return events
        del self._running[key]
        if death is not None:
            events.append((key, death))
            if code is None:
                kill_tree(process.pid)
        if code is not None:
            process.clear()
        else:
            process.deadline = CLOCK.monotonic() + GRACE
            self._ending.append(process)
        return events

    def _reap(self) -> None:
        """Clean up after killed and finished processes that have ended by now."""
        for process in list(self._ending):
            if process.exit_code() is not None:
                self._ending.remove(process)
                process.clear()
            elif CLOCK.monotonic() > process.deadline:
                kill_tree(process.pid)


def how_it_ended(code: int) -> str:
    """The end of a process in words, by its exit code: that of :mod:`subprocess`, negative for a signal."""
    if code < 0:
        name = signal.Signals(-code).name if -code in {number.value for number in signal.Signals} else f"signal {-code}"
        # onnx-ci did not send the signal. The system kills processes when memory runs out.
        return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
    # On Windows, the exit code of a crash is that of the exception, which people know in hexadecimal digits.
    return f"ended by itself with exit code {code}" if code < 2**31 else f"crashed with exit code {code:#x}"


# --- memory and descendants ---------------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    """Bytes of resident memory of a process; 0 once it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _unshared(pid: int) -> int:
    """Bytes of memory that only this process uses. A fork shares most of its memory with its parent."""
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return 0


def _children(pid: int) -> list[int]:
    """The processes that a process has started and that run in its session. Each cell of a worker has a session of its own."""
    if hasattr(os, "getsid"):  # it is faster than to read the parent of each process of the machine
        return [each for each in psutil.pids() if each != pid and _session_of(each) == pid]
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def _session_of(pid: int) -> int | None:
    """The session of a process; ``None`` if it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def kill_tree(pid: int) -> None:
    """Kill a process, its session, and every descendant that the system still knows as one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for victim in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.Error):
                victim.kill()
    _kill_session(pid)


def _kill_session(pid: int) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
