"""Supervised child processes: what happens in one stays in it, and how it ends is known.

A process sends lines of JSON to the one that started it and ends with its last one, whatever native code, threads or handlers
are still running. How processes are started is up to the subclasses of :class:`Processes`, in
:mod:`~onnx_ci.processes.forked` and :mod:`~onnx_ci.processes.spawned`.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

import psutil

from onnx_ci.processes.capture import last_of
from onnx_ci.processes.descriptors import fill_standard_descriptors
from onnx_ci.processes.limits import ProcessLimits, gib

Message = Mapping[str, Any]
"""A message of a process, or to it: plain JSON data."""
Send = Callable[[Message], None]
Work = Callable[..., None]
"""What a process does. It is given a :data:`Send`, and its inbox if it has one."""

OUTPUT_LIMIT = 64 * 2**20
"""How many bytes a process may print before it counts as a flood."""
WATCH = 0.05
"""Seconds between two checks of the time, memory and output of the processes."""
CHILDREN_WATCH = 1.0
"""Seconds between two checks of the memory of a process's own children, which takes longer."""
GRACE = 1.0
"""Seconds that a process may live on once it has closed its line."""
START_SECONDS = 120.0
"""How much longer a process may take until its limits count."""
RAISED = "raised"
"""The key of the message that names the exception which ended a process."""
BEGUN = "begun"
"""The key of the message after which the limits of a process count; with the bytes of memory that it uses then."""
LAST = "last"
"""The key of a message after which its process has nothing more to do."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """How a process ended that did not finish its work."""

    cause: str
    """``crash``, ``timeout`` or ``out-of-memory``."""
    message: str
    """What happened to the process: "was killed by SIGSEGV"."""
    log: str
    """What it printed last."""


class Child(Protocol):
    """A process as the system knows it: how it is reached, and how it ended."""

    token: bytes
    """What begins each of its messages. Anything else on its line comes from the code that it runs."""
    folder: Path
    """For its files; goes with it."""
    output: IO[bytes]
    """What it has printed."""
    inherited: int | None
    """Bytes of memory that it has used before its limits count; ``None`` until they do."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def read(self) -> bytes | None:
        """What has arrived from it; nothing at the end of its line, and ``None`` if that is still open."""

    def post(self, message: Message) -> None:
        """Put a message into its inbox; raises ``OSError`` if it is dead."""

    def exit_code(self) -> int | None:
        """Its exit code, once it has ended: negative for a signal, as with :mod:`subprocess`."""

    def close(self) -> None:
        """Forget it: it has ended."""


_Child = TypeVar("_Child", bound=Child)


@dataclass(kw_only=True)
class _Process(Generic[_Child]):
    """A process, as far as it is supervised."""

    child: _Child
    limits: ProcessLimits
    deadline: float
    allowed: float | None
    """The seconds to its deadline when that was set."""
    unread: bytearray = field(default_factory=bytearray)
    used_by_children: int = 0
    """Bytes of memory of the processes that it has started."""
    looked_at_children: float = 0.0
    cut_at: float | None = None
    finished: bool = False
    raised: str | None = None


class Processes(abc.ABC, Generic[_Child]):
    """The processes that this one has started, each under a key of the caller's choice."""

    def __init__(self) -> None:
        self._running: dict[object, _Process[_Child]] = {}
        self._ending: list[_Process[_Child]] = []
        self._looked = time.monotonic()

    def start(
        self,
        key: object,
        work: Work,
        limits: ProcessLimits,
        *,
        warm_up: Callable[[], object] | None = None,
        has_inbox: bool = False,
    ) -> None:
        """Start a process that does ``work``, which is given a function to send messages. It has a session of its own.

        Args:
            key: what its messages come under.
            work: the function.
            limits: what it may use.
            warm_up: imports what the work needs, before its limits count; where processes are forked, in this process.
            has_inbox: whether the work is also given an inbox, for :meth:`post`.

        Raises:
            OSError: its files cannot be created, the system refuses another process, or the work cannot be sent to it.
        """
        fill_standard_descriptors()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        self._supervise(key, self._start(work, warm_up, has_inbox), limits)

    def _supervise(self, key: object, child: _Child, limits: ProcessLimits) -> None:
        """Watch a process that has been started."""
        if not self._running:
            self._looked = time.monotonic()
        allowed = limits.seconds
        if child.inherited is None and allowed is not None:
            allowed += START_SECONDS
        deadline = _deadline(allowed)
        self._running[key] = _Process(child=child, limits=limits, deadline=deadline, allowed=allowed)

    @abc.abstractmethod
    def _start(self, work: Work, warm_up: Callable[[], object] | None, has_inbox: bool) -> _Child:
        """Start a process."""

    @abc.abstractmethod
    def _await(self, seconds: float) -> bool:
        """Wait until something may have arrived; whether the waiting has to end even if nothing has."""

    @property
    def _children(self) -> list[_Child]:
        """The processes that are watched."""
        return [process.child for process in self._running.values()]

    def post(self, key: object, message: Message) -> None:
        """Put a message into the inbox of a process.

        Raises:
            OSError: it is dead.
        """
        self._alive(key).child.post(message)

    def _alive(self, key: object) -> _Process[_Child]:
        """A process that has not ended as far as this one knows.

        Raises:
            BrokenPipeError: it has.
        """
        if key not in self._running:
            raise BrokenPipeError("the process has ended")
        return self._running[key]

    def extend(self, key: object, seconds: float | None) -> None:
        """Give a process ``seconds`` from now on, or no deadline at all."""
        if key in self._running:
            self._running[key].deadline, self._running[key].allowed = _deadline(seconds), seconds

    def printed(self, key: object) -> str:
        """What a process has printed so far, or the end of it; nothing once it has ended."""
        if key not in self._running:
            return ""
        output = self._running[key].child.output.fileno()
        return last_of(output, 0, os.fstat(output).st_size)

    def rename(self, key: object, new: object, limits: ProcessLimits) -> None:
        """Give a process that waits for something to do another key, and limits from now on.

        Raises:
            OSError: it is dead.
        """
        process = self._running[new] = self._alive(key)
        del self._running[key]
        process.limits = limits
        process.deadline, process.allowed = _deadline(limits.seconds), limits.seconds

    def wait(self, seconds: float | None = None) -> list[tuple[object, Message | Death]]:
        """Messages and deaths of the processes, as soon as there are any; nothing if ``seconds`` pass before."""
        end = _deadline(seconds)
        while True:
            is_called = self._await(max(0.0, min(WATCH, end - time.monotonic())))
            self._extend_deadlines()
            events = [event for key in list(self._running) for event in self._look(key)]
            self._reap()
            if events or is_called or time.monotonic() >= end:
                return events

    def _extend_deadlines(self) -> None:
        """Add the time in which this process did not watch to all deadlines: the others may have waited for it."""
        now = time.monotonic()
        absent = now - self._looked
        if absent > GRACE:
            for process in self._running.values():
                process.deadline += absent
        self._looked = now

    def stop(self, key: object) -> None:
        """End a process and everything that it has started."""
        process = self._running.pop(key, None)
        if process is not None:
            self._end(process)

    def _end(self, process: _Process[_Child]) -> None:
        kill_tree(process.child.pid)
        self._ending.append(process)

    def close(self) -> None:
        """End all processes, wait for their ends, and remove their files."""
        for key in list(self._running):
            self.stop(key)
        while self._ending:
            self._reap()
            time.sleep(0.001)

    def _look(self, key: object) -> list[tuple[object, Message | Death]]:
        """The messages of one process, and how it ended if it did."""
        process = self._running[key]
        # Check whether it has ended before reading its line, so that no message is lost.
        code = process.child.exit_code()
        events: list[tuple[object, Message | Death]] = [(key, message) for message in self._read(process)]
        death = None if process.finished else self._death(process, code)
        if not process.finished and death is None:
            return events
        del self._running[key]
        if death is not None:
            events.append((key, death))
            if code is None:
                kill_tree(process.child.pid)
        if code is not None:
            clear(process.child)
        else:
            process.deadline = time.monotonic() + GRACE
            self._ending.append(process)
        return events

    def _read(self, process: _Process[_Child]) -> list[Message]:
        while process.cut_at is None and (read := process.child.read()) is not None:
            if not read:
                process.cut_at = time.monotonic()
            process.unread += read
        *whole, rest = process.unread.split(b"\n")
        process.unread = bytearray(rest)
        messages: list[Message] = []
        for text in whole:
            _, is_message, content = text.partition(process.child.token)
            try:
                messages += [dict(json.loads(content))] if is_message else []
            except (ValueError, TypeError):  # something else was written in the middle of it
                process.raised = "an error: a message to its supervisor was damaged"
        if begun := [message[BEGUN] for message in messages if BEGUN in message]:
            process.child.inherited = int(begun[0])
            process.deadline, process.allowed = _deadline(process.limits.seconds), process.limits.seconds
        process.finished = any(LAST in message for message in messages)
        process.raised = next((message[RAISED] for message in messages if RAISED in message), process.raised)
        return [message for message in messages if RAISED not in message and BEGUN not in message]

    def _death(self, process: _Process[_Child], code: int | None) -> Death | None:
        now = time.monotonic()
        output = process.child.output.fileno()
        size = os.fstat(output).st_size
        cause = "crash"
        if process.raised is not None:
            message = f"raised {process.raised}"
        elif code is not None:
            message = how_it_ended(code)
        elif process.cut_at is not None and now > process.cut_at + GRACE:
            message = "closed its line to its supervisor"
        elif size > OUTPUT_LIMIT:
            message = f"printed more than {OUTPUT_LIMIT // 2**20} MiB"
        elif now > process.deadline:
            cause, message = "timeout", f"did not end within {process.allowed:g} s"
        elif process.limits.memory is not None and (used := _used(process)) > process.limits.memory:
            cause, message = "out-of-memory", f"used {gib(used)} of memory where {gib(process.limits.memory)} are allowed"
        else:
            return None
        return Death(cause=cause, message=message, log=last_of(output, 0, size))

    def _reap(self) -> None:
        """Clean up after processes that have ended in the meantime."""
        for process in list(self._ending):
            if process.child.exit_code() is not None:
                self._ending.remove(process)
                clear(process.child)
            elif time.monotonic() > process.deadline:
                kill_tree(process.child.pid)


def clear(child: Child) -> None:
    """Remove what a process that has ended leaves behind: children of its session, and files."""
    _kill_session(child.pid)
    child.output.close()
    child.close()
    shutil.rmtree(child.folder, ignore_errors=True)


def new_token() -> bytes:
    """What a process begins its messages with."""
    return secrets.token_hex(8).encode()


def _deadline(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds


def how_it_ended(code: int) -> str:
    """The end of a process in words, by its exit code: that of :mod:`subprocess`, negative for a signal."""
    if code < 0:
        name = signal.Signals(-code).name if -code in {each.value for each in signal.Signals} else f"signal {-code}"
        # onnx-ci did not send it: the system kills processes when memory runs out.
        return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
    # Windows ends a process that crashes with the code of the exception, which is known in hexadecimal digits.
    return f"ended by itself with exit code {code}" if code < 2**31 else f"crashed with exit code {code:#x}"


# --- memory and descendants ---------------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    """Bytes of resident memory of a process; 0 once it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _used(process: _Process[Any]) -> int:
    """Bytes of memory that a process uses, with those that it has started, but not those that it has forked as it was."""
    inherited = process.child.inherited
    if inherited is None:
        return 0
    now = time.monotonic()
    if now > process.looked_at_children + CHILDREN_WATCH:
        process.looked_at_children = now
        process.used_by_children = sum(map(_unshared, _children(process.child.pid)))
    own = resident(process.child.pid) - int(inherited)
    if process.limits.memory is not None and own + process.used_by_children > process.limits.memory:
        # A fork begins to count the pages of a library when it first runs its code, but shares them with its parent.
        own = min(own, _unshared(process.child.pid))
    return own + process.used_by_children


def _unshared(pid: int) -> int:
    """Bytes of memory that only this process uses: a fork shares most of its memory with its parent."""
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return 0


def _children(pid: int) -> list[int]:
    """The processes that a process has started and that run in its session; each cell of a host has its own."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in found if _session_of(child.pid) in (pid, None)]
    return []


def _session_of(pid: int) -> int | None:
    """The session of a process; ``None`` where there are no sessions, and for one that has ended."""
    try:
        return os.getsid(pid) if hasattr(os, "getsid") else None
    except OSError:
        return None


def kill_tree(pid: int) -> None:
    """Kill a process, its session, and every descendant that the system still knows as one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.Error):
                each.kill()
    _kill_session(pid)


def _kill_session(pid: int) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
