"""Supervised forks: what happens in one stays in it, and how it ends is known.

A fork has every import done already, so a process costs milliseconds. It sends lines of JSON to the process that started
it and ends with its last one, whatever native code, threads or handlers are still running.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import json
import os
import queue
import secrets
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar, cast

import psutil

from onnx_ci.processes.capture import keep_journal, last_of
from onnx_ci.processes.descriptors import Channel, fill_standard_descriptors
from onnx_ci.processes.endings import end_with_parent
from onnx_ci.processes.scratch import scratch_folder

Message = Mapping[str, Any]
"""A message of a process: plain JSON data."""
Send = Callable[[Message], None]
Key = TypeVar("Key")

OUTPUT_LIMIT = 64 * 2**20
"""How many bytes a process may print before it counts as a flood."""
WATCH = 0.05
"""Seconds between two checks of the time, memory and output of the processes."""
CHILDREN_WATCH = 1.0
"""Seconds between two checks of the memory of a process's own children, which takes longer."""
GRACE = 1.0
"""Seconds that a process may live on once it has closed its line."""
MEMORY_SHARE = 0.8
"""The share of the machine's memory that one process may use where the settings name no limit."""
RAISED = "raised"
"""The key of the message that names the exception which ended a process."""
LAST = "last"
"""The key of a message after which its process has nothing more to do."""


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """What a process may use; ``None`` where there is no limit."""

    seconds: float | None = None
    memory: int | None = None
    """Bytes of resident memory, beyond what it has from the process that it was forked from."""


def process_limits(seconds: float, memory: int | None) -> ProcessLimits:
    """The limits of a process by the settings; without a memory limit, most of the machine's memory."""
    return ProcessLimits(seconds=seconds, memory=memory or int(MEMORY_SHARE * machine_memory()))


@dataclass(frozen=True, kw_only=True)
class Death:
    """How a process ended that did not finish its work."""

    cause: str
    """``crash``, ``timeout`` or ``out-of-memory``."""
    message: str
    """What happened to the process: "was killed by SIGSEGV"."""
    log: str
    """What it printed last."""


@dataclass
class _Process:
    pid: int
    line: int
    """Where its messages come out."""
    journal: IO[bytes]
    folder: Path
    limits: ProcessLimits
    deadline: float
    allowed: float | None
    """The seconds to its deadline when that was set."""
    inherited: int
    """Bytes of memory that it has from the process that it was forked from."""
    token: bytes
    """What begins each of its messages. Anything else on its line comes from the code that it runs."""
    unread: bytearray = field(default_factory=bytearray)
    used_by_children: int = 0
    """Bytes of memory of the processes that it has started."""
    looked_at_children: float = 0.0
    cut_at: float | None = None
    finished: bool = False
    raised: str | None = None


class Processes:
    """The processes that this one has started, each under a key of the caller's choice.

    Args:
        scratch: a folder for their files: each has its own below it, which goes with the process.
        channels: pipes and sockets of this process that none of them may reach.
    """

    def __init__(self, scratch: Path, channels: Iterable[Channel] = ()) -> None:
        self._scratch, self._channels = scratch, tuple(channels)
        self._running: dict[object, _Process] = {}
        self._ending: list[_Process] = []
        self._forks = _Forks()
        self._looked = time.monotonic()

    def start(self, key: object, work: Callable[[Send], None], limits: ProcessLimits, channels: Iterable[int] = ()) -> None:
        """Fork a process that does ``work``, which is given a function to send messages. It has a session of its own.

        Args:
            key: what its messages come under.
            work: the function.
            limits: what it may use.
            channels: more descriptors of this process that it must not reach.

        Raises:
            OSError: its files cannot be created, or the system refuses another process.
        """
        fill_standard_descriptors()
        if not self._running:
            self._looked = time.monotonic()
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            journal: IO[bytes] = undo.enter_context(tempfile.TemporaryFile("ab+", dir=folder, buffering=0))
            line, other_end = os.pipe()
            token = secrets.token_hex(8).encode()
            undo.callback(os.close, line)
            undo.callback(os.close, other_end)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            parent = os.getpid()
            siblings = (each for process in self._running.values() for each in (process.line, process.journal.fileno()))
            life = _Life(
                work=work,
                line=other_end,
                token=token,
                journal=journal.fileno(),
                folder=folder,
                parent=parent,
                foreign=(line, *siblings, *(each.number for each in self._channels if each.is_open), *channels),
            )
            pid = self._forks.fork(life.live)
            undo.pop_all()
        os.close(other_end)
        os.set_blocking(line, False)
        self._running[key] = _Process(
            pid=pid,
            line=line,
            journal=journal,
            folder=folder,
            limits=limits,
            deadline=_deadline(limits.seconds),
            allowed=limits.seconds,
            token=token,
            inherited=_resident(pid),
        )

    def extend(self, key: object, seconds: float | None) -> None:
        """Give a process ``seconds`` from now on, or no deadline at all."""
        if key in self._running:
            self._running[key].deadline, self._running[key].allowed = _deadline(seconds), seconds

    def wait(self, seconds: float | None = None, *, also: int | None = None) -> list[tuple[object, Message | Death]]:
        """Messages and deaths of the processes, as soon as there are any; nothing if ``seconds`` pass before.

        Args:
            also: a file descriptor that also ends the waiting, once it can be read.
        """
        end = _deadline(seconds)
        while True:
            lines = select.poll()
            for line in [process.line for process in self._running.values() if process.cut_at is None]:
                lines.register(line, select.POLLIN)
            if also is not None:
                lines.register(also, select.POLLIN)
            ready = [line for line, _ in lines.poll(1000 * max(0.0, min(WATCH, end - time.monotonic())))]
            self._extend_deadlines()
            events = [event for key in list(self._running) for event in self._look(key)]
            self._reap()
            if events or also in ready or time.monotonic() >= end:
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
            _kill_tree(process.pid)
            self._ending.append(process)

    def close(self) -> None:
        """End all processes, wait for their ends, and remove their files."""
        for key in list(self._running):
            self.stop(key)
        while self._ending:
            self._reap()
            time.sleep(0.001)
        self._forks.close()

    def _look(self, key: object) -> list[tuple[object, Message | Death]]:
        """The messages of one process, and how it ended if it did."""
        process = self._running[key]
        # Check whether it has ended before reading its line, so that no message is lost.
        status = _ended(process.pid)
        events: list[tuple[object, Message | Death]] = [(key, message) for message in self._read(process)]
        death = None if process.finished else self._death(process, status)
        if not process.finished and death is None:
            return events
        del self._running[key]
        if death is not None:
            events.append((key, death))
            if status is None:
                _kill_tree(process.pid)
        if status is None:
            process.deadline = time.monotonic() + GRACE
            self._ending.append(process)
        else:
            self._clear(process)
        return events

    def _read(self, process: _Process) -> list[Message]:
        while process.cut_at is None:
            try:
                read = os.read(process.line, 2**16)
            except BlockingIOError:
                break
            if not read:
                process.cut_at = time.monotonic()
            process.unread += read
        *whole, rest = process.unread.split(b"\n")
        process.unread = bytearray(rest)
        messages: list[Message] = []
        for text in whole:
            _, is_message, content = text.partition(process.token)
            try:
                messages += [json.loads(content)] if is_message else []
            except ValueError:  # something else was written in the middle of it
                process.raised = "an error: a message to its supervisor was damaged"
        process.finished = any(LAST in message for message in messages)
        process.raised = next((message[RAISED] for message in messages if RAISED in message), process.raised)
        return [message for message in messages if RAISED not in message]

    def _death(self, process: _Process, status: int | None) -> Death | None:
        now = time.monotonic()
        size = os.fstat(process.journal.fileno()).st_size
        cause = "crash"
        if process.raised is not None:
            message = f"raised {process.raised}"
        elif status is not None:
            message = how_it_ended(os.waitstatus_to_exitcode(status))
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
        return Death(cause=cause, message=message, log=last_of(process.journal.fileno(), 0, size))

    def _reap(self) -> None:
        """Clean up after processes that have ended in the meantime."""
        for process in list(self._ending):
            if _ended(process.pid) is not None:
                self._ending.remove(process)
                self._clear(process)
            elif time.monotonic() > process.deadline:
                _kill_tree(process.pid)

    def _clear(self, process: _Process) -> None:
        """Remove what a process leaves behind: children of its session, and files."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        os.close(process.line)
        process.journal.close()
        shutil.rmtree(process.folder, ignore_errors=True)


def run_apart(
    works: Mapping[Key, Callable[[Send], None]], limits: ProcessLimits, *, jobs: int = 1
) -> Iterator[tuple[Key, Message | Death]]:
    """Do each of ``works`` in a process of its own, ``jobs`` of them at once, and yield their messages and deaths.

    A work ends with a message that has the key :data:`LAST`.

    Raises:
        OSError: a process could not be started.
    """
    waiting = list(works.items())
    running = 0
    with (
        scratch_folder() as scratch,
        contextlib.closing(Processes(scratch)) as processes,
    ):
        while waiting or running:
            while waiting and running < jobs:
                processes.start(*waiting.pop(0), limits)
                running += 1
            for key, event in processes.wait():
                running -= isinstance(event, Death) or LAST in event
                yield cast("Key", key), event


@functools.cache
def machine_memory() -> int:
    """Bytes of memory that this machine, or the container around this process, has."""
    sizes = [psutil.virtual_memory().total]
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            sizes.append(int(file.read_text()))
    return min(sizes)


def _limit_files() -> Iterator[Path]:
    """The files in which Linux may state the memory limits of this process's control groups (versions 1 and 2)."""
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = entry.split(":", 2)
            if controllers in ("", "memory"):
                root, name = ("", "memory.max") if not controllers else ("memory", "memory.limit_in_bytes")
                path = Path("/sys/fs/cgroup", root)
                for folder in (path / group.lstrip("/"), *(path / group.lstrip("/")).parents):
                    if folder.is_relative_to(path):
                        yield folder / name


def gib(size: float) -> str:
    """A size in words: ``1.5 GiB``."""
    return f"{size / 2**30:.3g} GiB"


def _deadline(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds


def _ended(pid: int) -> int | None:
    """The exit status of a child, as :func:`os.waitpid` gives it, once it has ended."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # another handler was faster
        return 0
    return status if found else None


def how_it_ended(code: int) -> str:
    """The end of a process in words, by its exit code: that of :mod:`subprocess`, negative for a signal."""
    if code < 0:
        name = signal.Signals(-code).name if -code in {each.value for each in signal.Signals} else f"signal {-code}"
        # onnx-ci did not send it: the system kills processes when memory runs out.
        return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
    return f"ended by itself with exit code {code}"


def _resident(pid: int) -> int:
    """Bytes of resident memory of a process; 0 once it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _used(process: _Process) -> int:
    """Bytes of memory that a process uses, with those that it has started, but not those that it has forked as it was."""
    now = time.monotonic()
    if now > process.looked_at_children + CHILDREN_WATCH:
        process.looked_at_children = now
        process.used_by_children = sum(map(_unshared, _children(process.pid)))
    return _resident(process.pid) - process.inherited + process.used_by_children


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
        return [child.pid for child in found if _session_of(child.pid) == pid]
    return []


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended
        return None


def _kill_tree(pid: int) -> None:
    """Kill a process, its session, and every descendant that the system still knows as one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                each.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# --- the fork -------------------------------------------------------------------------------------------------------


class _Forks:
    """Forks from a thread that does nothing else.

    OpenMP ties its worker threads to the thread that first used them; a fork from that one would wait for them forever.
    And the system kills a child when the thread that forked it ends, so this thread has to outlive its children.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def fork(self, child: Callable[[], None]) -> int:
        """The process id of a new process that runs ``child``, which must not return."""
        if self._thread is None:
            _share_one_heap()
            self._thread = threading.Thread(target=self._serve, name="onnx-ci forks", daemon=True)
            self._thread.start()
        self._asked.put(child)
        answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while (child := self._asked.get()) is not None:
            try:
                with warnings.catch_warnings():
                    # Python warns of forks beside threads, which may hold locks; a child that waits for one times out.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    pid = os.fork()
            except Exception as error:  # the caller must not wait forever
                self._answers.put(error)
                continue
            if pid == 0:
                child()
            self._answers.put(pid)


# --- memory ---------------------------------------------------------------------------------------------------------

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # malloc.h of glibc


def release_memory() -> None:
    """Return free memory to the system, so that a fork gets new pages instead of copying old ones."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _share_one_heap() -> None:
    """Let threads that start from now on use the main heap: heaps of their own return large blocks to the system."""
    _set_malloc(_M_ARENA_MAX, 1)


def _keep_memory() -> None:
    """Take large blocks from the heap as well, and reuse them instead of returning them to the system.

    Exporting copies the weights a dozen times. In a new process each copy would need new pages, and the system takes
    longer to provide them than the exporter takes to fill them.
    """
    _set_malloc(_M_MMAP_MAX, 0)
    _set_malloc(_M_TRIM_THRESHOLD, 2**31 - 1)


def _set_malloc(parameter: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(parameter, value)


# --- the life of a process ------------------------------------------------------------------------------------------

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True, kw_only=True)
class _Life:
    """The whole life of a forked process."""

    work: Callable[[Send], None]
    line: int
    """Where its messages go in."""
    token: bytes
    journal: int
    folder: Path
    parent: int
    foreign: tuple[int, ...]
    """Descriptors of other processes, which the code that it runs must not reach."""

    def live(self) -> NoReturn:
        """Do the work. It never returns into the code that it was forked from."""
        code = 1
        try:
            gc.freeze()  # a collection would write to every page that is still shared
            os.setsid()
            end_with_parent(signal.SIGKILL)
            if os.getppid() != self.parent:
                os._exit(1)  # it died before the request took effect
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that what its children leave behind can still be found
            for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(name, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides when it ends
            with Path(os.devnull).open("r+b", buffering=0) as nothing:
                for descriptor in (0, *self.foreign):
                    os.dup2(nothing.fileno(), descriptor)  # closed, its number would soon be that of another file
            _keep_memory()
            keep_journal(self.journal)
            faulthandler.enable(file=self.journal)
            tempfile.tempdir = str(self.folder)
            os.environ["TMPDIR"] = str(self.folder)
            self.work(self._send)
            code = 0
        except BaseException as error:  # its supervisor reports it
            with contextlib.suppress(BaseException):
                traceback.print_exc()
                sys.stderr.flush()
                self._send({RAISED: type(error).__name__})
        finally:
            os._exit(code)

    def _send(self, message: Message) -> None:
        text = self.token + json.dumps(message).encode() + b"\n"
        while text:
            text = text[os.write(self.line, text) :]
