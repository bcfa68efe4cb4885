"""Forked processes that are watched: what happens in one stays in it, and how it ends is known.

A fork has every import done already, so a process costs milliseconds. It speaks to whoever started it in lines of JSON,
and it ends with its last one, whatever native code, threads or handlers are still about.
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
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from onnx_ci.capture import keep_journal, last_of

Message = Mapping[str, Any]
"""What a process says: plain JSON data."""
Send = Callable[[Message], None]
Key = TypeVar("Key")

OUTPUT_LIMIT = 64 * 2**20
"""How many bytes a process may print before it counts as a flood."""
WATCH = 0.05
"""Seconds between two looks at time, memory and output of the processes."""
GRACE = 1.0
"""Seconds that a process may go on living once its line is cut."""
MEMORY_SHARE = 0.8
"""The share of the machine's memory that one process may use where the settings name no limit."""
RAISED = "raised"
"""The key of the message that names the exception which ended a process."""
LAST = "last"
"""The key of a message after which its process has nothing more to do."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may use; ``None`` where there is no limit."""

    seconds: float | None = None
    memory: int | None = None
    """Bytes of resident memory, beyond what it has from the process that it was forked from."""


def limits_of(seconds: float, memory: int | None) -> Limits:
    """What a process may use by the settings: so many seconds, and so much memory, or most of the machine's."""
    return Limits(seconds=seconds, memory=memory or int(MEMORY_SHARE * machine_memory()))


@dataclass(frozen=True, kw_only=True)
class Death:
    """How a process ended that did not finish."""

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
    limits: Limits
    deadline: float
    inherited: int
    """Bytes of memory that it has from the process that it was forked from."""
    unread: bytearray = field(default_factory=bytearray)
    cut_at: float | None = None
    finished: bool = False
    raised: str | None = None


class Processes:
    """The processes that this one has started, each under a key of the caller's choice.

    Args:
        scratch: a folder for their files: each has its own below it, which goes with the process.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._running: dict[object, _Process] = {}
        self._ending: list[_Process] = []
        self._forks = _Forks()
        self._looked = time.monotonic()

    def start(self, key: object, work: Callable[[Send], None], limits: Limits) -> None:
        """Fork a process that does ``work``, which gets the means to send messages. It has a session of its own.

        Raises:
            OSError: there is no room for its files, or no place for another process.
        """
        _fill_standard_descriptors()
        if not self._running:
            self._looked = time.monotonic()
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            journal: IO[bytes] = undo.enter_context(tempfile.TemporaryFile("ab+", dir=folder, buffering=0))
            line, other_end = os.pipe()
            undo.callback(os.close, line)
            undo.callback(os.close, other_end)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            parent = os.getpid()
            pid = self._forks.fork(lambda: _live(work, other_end, journal.fileno(), folder, parent))
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
            inherited=_resident(pid),
        )

    def extend(self, key: object, seconds: float | None) -> None:
        """Give a process ``seconds`` from now on, or as long as it likes."""
        if key in self._running:
            self._running[key].deadline = _deadline(seconds)

    def wait(self, seconds: float | None = None, *, also: int | None = None) -> list[tuple[object, Message | Death]]:
        """What the processes said, and who died, as soon as there is anything; nothing if ``seconds`` pass before.

        Args:
            also: a file descriptor that ends the waiting, too, when it can be read.
        """
        end = _deadline(seconds)
        while True:
            lines = select.poll()
            for line in [process.line for process in self._running.values() if process.cut_at is None]:
                lines.register(line, select.POLLIN)
            if also is not None:
                lines.register(also, select.POLLIN)
            ready = [line for line, _ in lines.poll(1000 * max(0.0, min(WATCH, end - time.monotonic())))]
            self._forgive_absence()
            events = [event for key in list(self._running) for event in self._look(key)]
            self._bury()
            if events or also in ready or time.monotonic() >= end:
                return events

    def _forgive_absence(self) -> None:
        """Add the time that nobody was watching to all deadlines: a process may have waited to be heard."""
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
            self._bury()
            time.sleep(0.001)
        self._forks.close()

    def _look(self, key: object) -> list[tuple[object, Message | Death]]:
        """What one process said, and how it ended if it did."""
        process = self._running[key]
        # Whether it has ended is asked before its line is read, so that nothing it said is lost.
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
        messages = [json.loads(text) for text in whole]
        process.finished = any(LAST in message for message in messages)
        process.raised = next((message[RAISED] for message in messages if RAISED in message), process.raised)
        return [message for message in messages if RAISED not in message]

    def _death(self, process: _Process, status: int | None) -> Death | None:
        now = time.monotonic()
        size = os.fstat(process.journal.fileno()).st_size
        cause = "crash"
        if process.raised is not None:
            said = f"raised {process.raised}"
        elif status is not None:
            said = how_it_ended(os.waitstatus_to_exitcode(status))
        elif process.cut_at is not None and now > process.cut_at + GRACE:
            said = "closed its line to the process that watches it"
        elif size > OUTPUT_LIMIT:
            said = f"printed more than {OUTPUT_LIMIT // 2**20} MiB"
        elif now > process.deadline:
            cause, said = "timeout", f"did not end within {process.limits.seconds:g} s"
        elif process.limits.memory is not None and (used := _resident(process.pid) - process.inherited) > process.limits.memory:
            cause, said = "out-of-memory", f"used {gib(used)} of memory where {gib(process.limits.memory)} are allowed"
        else:
            return None
        return Death(cause=cause, message=said, log=last_of(process.journal.fileno(), 0, size))

    def _bury(self) -> None:
        """Clear up after those that have ended in the meantime."""
        for process in list(self._ending):
            if _ended(process.pid) is not None:
                self._ending.remove(process)
                self._clear(process)
            elif time.monotonic() > process.deadline:
                _kill_tree(process.pid)

    def _clear(self, process: _Process) -> None:
        """What a process leaves behind: children of its session, and files."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        os.close(process.line)
        process.journal.close()
        shutil.rmtree(process.folder, ignore_errors=True)


def run_apart(
    works: Mapping[Key, Callable[[Send], None]], limits: Limits, *, jobs: int = 1
) -> Iterator[tuple[Key, Message | Death]]:
    """Do each of ``works`` in a process of its own, ``jobs`` of them at once, and give what they say and how they die.

    A work ends with a message that has the key :data:`LAST`.

    Raises:
        OSError: a process could not be started.
    """
    waiting = list(works.items())
    running = 0
    with (
        tempfile.TemporaryDirectory(prefix="onnx-ci-") as scratch,
        contextlib.closing(Processes(Path(scratch))) as processes,
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
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            sizes.append(int(file.read_text()))
    return min(sizes)


def _limit_files() -> Iterator[Path]:
    """Where Linux may tell how much memory this process's control groups have (versions 1 and 2)."""
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


def _fill_standard_descriptors() -> None:
    """Open what somebody closed of the first three descriptors: a new file that took such a number would be printed to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _deadline(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds


def _ended(pid: int) -> int | None:
    """The exit status of a child, as :func:`os.waitpid` gives it, once it has ended."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else's handler was faster
        return 0
    return status if found else None


def how_it_ended(code: int) -> str:
    """The end of a process in words, by its exit code: that of :mod:`subprocess`, negative for a signal."""
    if code < 0:
        name = signal.Signals(-code).name if -code in {each.value for each in signal.Signals} else f"signal {-code}"
        # One that nobody here sent: the system's own remedy where memory runs out.
        return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
    return f"ended by itself with exit code {code}"


def _resident(pid: int) -> int:
    """Bytes of resident memory of a process; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _kill_tree(pid: int) -> None:
    """Kill a process, its session, and every descendant that the system still knows as one."""
    for each in (*_descendants(pid), pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, ()))
    for each in found:
        found += children.get(each, ())
    return found


# --- the fork -------------------------------------------------------------------------------------------------------


class _Forks:
    """Forks from a thread that does nothing else.

    OpenMP keeps its threads by the thread that first asked for them; a fork from that one would wait for them for ever.
    And the system kills a child when the thread that forked it ends, so the thread has to outlive its children.
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
                    # Python warns of forks beside threads: they may hold locks. Whoever waits for one runs into its limit.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    pid = os.fork()
            except Exception as error:  # whoever asked must not wait for ever
                self._answers.put(error)
                continue
            if pid == 0:
                child()
            self._answers.put(pid)


# --- memory ---------------------------------------------------------------------------------------------------------

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # malloc.h of glibc


def release_memory() -> None:
    """Give free memory back to the system, so that a fork gets new pages where it would copy old ones."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _share_one_heap() -> None:
    """Let threads that begin from now on take memory from the main heap: the heaps of their own give large blocks back."""
    _set_malloc(_M_ARENA_MAX, 1)


def _keep_memory() -> None:
    """Take large blocks from the heap, too, and use them again instead of giving them back.

    Exporting copies the weights a dozen times. In a new process each copy would be made of new pages, and the system needs
    longer to hand them out than the exporter to fill them.
    """
    _set_malloc(_M_MMAP_MAX, 0)
    _set_malloc(_M_TRIM_THRESHOLD, 2**31 - 1)


def _set_malloc(parameter: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(parameter, value)


# --- the life of a process ------------------------------------------------------------------------------------------

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def _live(work: Callable[[Send], None], line: int, journal: int, folder: Path, parent: int) -> None:
    """The whole life of a forked process. It never returns into the code that it was forked from."""
    code = 1
    try:
        gc.freeze()  # a collection would write to every page that is still shared
        os.setsid()
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before the system knew
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that what its children leave behind can still be found
        for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(name, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides when it ends
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        _keep_memory()
        keep_journal(journal)
        faulthandler.enable(file=journal)
        tempfile.tempdir = str(folder)
        os.environ["TMPDIR"] = str(folder)

        def send(message: Message) -> None:
            text = json.dumps(message).encode() + b"\n"
            while text:
                text = text[os.write(line, text) :]

        work(send)
        code = 0
    except BaseException as error:  # its watcher tells of it
        with contextlib.suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
            os.write(line, json.dumps({RAISED: type(error).__name__}).encode() + b"\n")
    finally:
        os._exit(code)
