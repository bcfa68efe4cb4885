"""Forked processes: libraries are already imported, so a process costs milliseconds. Linux only.

They are forked from this process, or from a process that serves forks (:class:`ForkServer`): a new Python, which
:meth:`ForkedProcesses.start_python` starts, or a fork of such a process. This process supervises all of them. On macOS, system
libraries abort a fork that uses them; Windows has no forks.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import pickle
import select
import shutil
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

import psutil

from onnx_ci.processes.allocator import share_one_heap
from onnx_ci.processes.child import Task, settle, start_python, work_to_the_end, write_message
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.supervisor import GRACE, Child, Message, Processes, Starter, Work, resident

_WORK = "work.pickle"
"""The file with the pickled work of a fork of another process, in its folder."""
_REPLY_SECONDS = 20.0
"""The time limit of a process that serves forks for one fork. It does nothing else, unless something has stopped it."""
_REAP_SECONDS = 0.02
"""The time between two checks of such a process whether one of its forks has ended."""
_FORKED, _ENDED = "forked", "ended"
"""The keys of its messages: it has forked a process, or tried to; one has ended."""


class ForkedInbox:
    """The messages to a forked process while it runs."""

    def __init__(self, descriptor: int) -> None:
        self._socket = _socket(descriptor)
        self._unread = b""

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    def arrived(self) -> list[Message] | None:
        """The messages that have arrived since the last call; ``None`` if no more can arrive."""
        while (read := _read(self._socket)) is not None:
            if not read:
                return None
            self._unread += read
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def __iter__(self) -> Iterator[Message]:
        while (messages := self.arrived()) is not None:
            yield from messages
            _wait([self])


def _socket(descriptor: int) -> socket.socket:
    end = socket.socket(fileno=descriptor)
    end.settimeout(None)  # the project may have set another default
    return end


def _read(end: socket.socket) -> bytes | None:
    """What has arrived from the other end; empty if that is closed, ``None`` if nothing has arrived."""
    try:
        return end.recv(2**16, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except ConnectionError:  # it was closed before it had read everything
        return b""


def _wait(ends: Iterable[socket.socket | ForkedInbox], seconds: float | None = None) -> list[int]:
    """Wait until something has arrived. Returns where, as descriptors: of none if ``seconds`` pass before that."""
    lines = select.poll()
    for end in ends:
        lines.register(end, select.POLLIN)
    return [descriptor for descriptor, _ in lines.poll(None if seconds is None else 1000 * seconds)]


class ForkedProcesses(Processes["_ForkedChild"]):
    """Processes that are forked from this one. A message in the inbox of this process, ``caller``, also ends :meth:`wait`."""

    def __init__(self, scratch: Path, caller: ForkedInbox | None = None) -> None:
        super().__init__()
        self._scratch, self._caller = scratch, caller

    def _start(self, work: Work, warm_up: Callable[[], object] | None, has_inbox: bool) -> _ForkedChild:
        if warm_up is not None:
            warm_up()  # here, because forks inherit it
        with self._new_child() as (child, ends):
            pid = ends.fork(work, self._starter, "inbox" if has_inbox else "")
            child.has_started(pid, functools.partial(_exit_code_of_child, pid), inherited=resident(pid))
            return child

    def start_python(self, key: object, work: Work, limits: Limits) -> None:
        """Start a new Python that does ``work``, whose second argument is a :class:`ForkServer`. Raises ``OSError``."""
        with self._new_child() as (child, ends):
            task = Task(arguments=["onnx-ci"], warm_up=_pickled(None), work=_pickled(work), channel=ForkServer)
            line = ends.line
            start = functools.partial(start_python, task, ends.folder, stdin=line, stdout=line, output=ends.output)
            process = self._starter.do(start)
            child.has_started(process.pid, process.poll)
            child.serves_forks = True
            self._supervise(key, child, limits)

    def start_from(
        self, parent: object, key: object, work: Work, limits: Limits, *, has_inbox: bool = False, can_fork: bool = False
    ) -> None:
        """Let a process that serves forks fork another one, which does ``work``, which is pickled. Raises ``OSError``."""
        forks = self._alive(parent)
        with self._new_child() as (child, ends):
            (ends.folder / _WORK).write_bytes(_pickled(work))
            pid = forks.fork(ends, "inbox" if has_inbox else "forks" if can_fork else "")
            child.has_started(pid, functools.partial(forks.exit_code_of, pid), inherited=resident(pid))
            child.serves_forks = can_fork
            self._supervise(key, child, limits)

    @contextlib.contextmanager
    def _new_child(self) -> Iterator[tuple[_ForkedChild, _Ends]]:
        """A new process that is to be started in the block, and what it gets, which is closed here after the block."""
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            output: IO[bytes] = undo.enter_context(tempfile.TemporaryFile("ab+", dir=folder, buffering=0))
            line, of_child = socket.socketpair()
            undo.enter_context(line)
            with of_child:
                line.settimeout(None)
                of_child.settimeout(None)
                child = _ForkedChild(folder=folder, output=output, line=line)
                yield child, _Ends(folder=folder, line=of_child.fileno(), output=output.fileno())
            undo.pop_all()

    def _await(self, seconds: float) -> bool:
        lines = [child.line for child in self._running.values() if child.cut_at is None]
        if self._caller is None:
            _wait(lines, seconds)
            return False
        return self._caller.fileno() in _wait([*lines, self._caller], seconds)

    def let_end(self, seconds: float) -> None:
        """Let processes that serve forks end by themselves, the last one first. :meth:`close` kills those that do not."""
        end = CLOCK.monotonic() + seconds
        for child in reversed([*self._running.values()]):
            if child.serves_forks:
                child.close()
                while child.exit_code() is None and CLOCK.monotonic() < end:
                    time.sleep(0.01)


@dataclass(kw_only=True, eq=False)
class _ForkedChild(Child):
    pid: int = 0
    line: socket.socket
    serves_forks: bool = False
    _find_exit_code: Callable[[], int | None] = lambda: None
    _code: int | None = None
    _replies: list[Message] = field(default_factory=list)
    _codes: dict[int, int] = field(default_factory=dict)

    def has_started(self, pid: int, find_exit_code: Callable[[], int | None], *, inherited: int | None = None) -> None:
        """Note the id of the process, how it is asked whether it has ended, and what memory it has from the beginning."""
        self.pid, self._find_exit_code, self.inherited = pid, find_exit_code, inherited

    def read(self) -> bytes | None:
        return _read(self.line)

    def post(self, message: Message) -> None:
        write_message(self.line.fileno(), message)

    def exit_code(self) -> int | None:
        if self._code is None:
            self._code = self._find_exit_code()
        return self._code

    def close(self) -> None:
        self.cut_at = 0.0
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)  # forks of this process may have copies of the socket
        self.line.close()

    def note(self, message: Message) -> None:
        if _ENDED in message:
            self._codes[message[_ENDED]] = message["code"]
        elif _FORKED in message:
            self._replies.append(message)
        else:
            super().note(message)

    def fork(self, ends: _Ends, channel: str) -> int:
        """The id of a new fork of it, whose work gets a channel of :data:`_CHANNELS`. Raises ``OSError``."""
        request = json.dumps([str(ends.folder), channel]).encode()
        end = CLOCK.monotonic() + _REPLY_SECONDS
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self.line, [request], [ends.line, ends.output])
            while not self._replies and self.cut_at is None:
                if CLOCK.monotonic() > end:
                    self.cut_at = CLOCK.monotonic()  # a late reply would be taken for the reply to another request
                    raise TimeoutError(f"it has forked nothing for {_REPLY_SECONDS:g} s")
                _wait([self.line], _REPLY_SECONDS)
                self.receive()
        if not self._replies:
            raise BrokenPipeError("the process that it is to be forked from has ended")
        reply = self._replies.pop(0)
        if "error" in reply:
            raise OSError(reply["error"])
        return int(reply[_FORKED])

    def exit_code_of(self, pid: int) -> int | None:
        """The exit code of a fork, once it has ended. The system kills it when the process ends that forked it."""
        self.receive()
        if pid in self._codes:
            return self._codes.pop(pid)  # the system may give the id to another process
        # The supervisor is to learn first how the process ended that forked it.
        is_late = self.cut_at is not None and CLOCK.monotonic() > self.cut_at + GRACE
        return -signal.SIGKILL if is_late and _has_ended(pid) else None


def _pickled(value: object) -> bytes:
    from onnx_ci.processes.pickling import pickled  # needs cloudpickle, which is not installed where reports are only read

    return pickled(value)


def _exit_code_of_child(pid: int) -> int | None:
    """The exit code of a child process, once it has ended."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # another handler was faster
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None


def _has_ended(pid: int) -> bool:
    """Whether another process has ended. A zombie has ended, too; in a container without an init it stays one."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


# --- in the process that is forked, or that forks others ----------------------------------------------------------------


class ForkServer:
    """Forks this process whenever its supervisor asks for that."""

    def __init__(self, descriptor: int) -> None:
        self._line = _socket(descriptor)
        self._starter = Starter()
        self._forks: set[int] = set()

    def serve(self) -> None:
        """Serve requests until no more can arrive."""
        while True:
            if _wait([self._line], _REAP_SECONDS if self._forks else None):
                request, descriptors, _, _ = socket.recv_fds(self._line, 2**12, 2)
                if not request:
                    return
                self._reply(request, descriptors)
            for pid in tuple(self._forks):
                code = _exit_code_of_child(pid)
                if code is not None:
                    self._forks.discard(pid)
                    write_message(self._line.fileno(), {_ENDED: pid, "code": code})

    def _reply(self, request: bytes, descriptors: Sequence[int]) -> None:
        (folder, channel), (line, output) = json.loads(request), descriptors
        ends = _Ends(folder=Path(folder), line=line, output=output)
        reply: dict[str, object] = {_FORKED: None}
        try:
            pid = ends.fork(functools.partial(_do_pickled, ends.folder / _WORK), self._starter, channel)
            self._forks.add(pid)
            reply[_FORKED] = pid
        except OSError as error:
            reply["error"] = str(error)
        for descriptor in descriptors:
            os.close(descriptor)
        write_message(self._line.fileno(), reply)


def _do_pickled(path: Path, *arguments: object) -> None:
    """Do the work that was written for this process."""
    work: Work = pickle.loads(path.read_bytes())
    path.unlink()
    work(*arguments)


_CHANNELS: Mapping[str, Callable[[int], object] | None] = {"": None, "inbox": ForkedInbox, "forks": ForkServer}
"""What the work of a process gets besides a function to send messages."""


@dataclass(frozen=True, kw_only=True)
class _Ends:
    """What a forked process gets from its supervisor."""

    folder: Path
    line: int
    """The socket for messages in both directions."""
    output: int

    def fork(self, work: Work, starter: Starter, channel: str) -> int:
        """The id of a new fork of this process that does ``work`` and ends with it."""
        share_one_heap()
        return starter.do(functools.partial(self._fork, work, _CHANNELS[channel], os.getpid()))

    def _fork(self, work: Work, channel: Callable[[int], object] | None, parent: int) -> int:
        with warnings.catch_warnings():
            # Python warns of a fork beside threads, because they may hold locks. A child that waits for one times out.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._live(work, channel, parent)
        return pid

    def _live(self, work: Work, channel: Callable[[int], object] | None, parent: int) -> NoReturn:
        """Do the work. This never returns into the code that forked."""
        send = functools.partial(write_message, self.line)

        def do() -> None:
            gc.freeze()  # a collection would write to every page that the processes share
            os.setsid()  # a session of its own, by which all processes are found that it starts
            settle(self.folder, self.output)
            if os.getppid() != parent:
                os._exit(1)  # the parent died before the system was asked to kill this process with it
            work(send, *([] if channel is None else [channel(self.line)]))

        try:
            work_to_the_end(send, do)
        finally:
            os._exit(1)
