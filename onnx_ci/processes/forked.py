"""Forked processes: libraries are already imported, so a process costs milliseconds. Linux only.

They are forked from this process, or from a process that serves forks (:class:`ForkServer`): a new Python, which
:meth:`ForkedProcesses.start_python` starts, or a fork of such a process. This process supervises all of them by pipes that
other forks cannot reach. On macOS, system libraries abort a fork that uses them; Windows has no forks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

import psutil

from onnx_ci.processes.allocator import share_one_heap
from onnx_ci.processes.child import Line, new_python, settle, temporary_folder, work_to_the_end
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.descriptors import Channel, point_at_devnull
from onnx_ci.processes.limits import ProcessLimits
from onnx_ci.processes.signals import end_with_parent
from onnx_ci.processes.starter import Starter
from onnx_ci.processes.supervisor import GRACE, Message, Processes, Work, new_token, resident

with contextlib.suppress(ImportError):  # Windows has no forks
    from os import fork  # an own reference: a recipe file can replace the original

_WORK = "work.pickle"
"""The file with the pickled work of a process, in its folder."""
_REPLY_SECONDS = 20.0
"""The time limit of a process that serves forks for one fork. It does nothing else, unless a recipe file prevents that."""
_REAP_SECONDS = 0.02
"""The time between two checks of such a process whether one of its forks has ended."""


class ForkedInbox:
    """The messages to a forked process while it runs.

    Args:
        descriptor: the end of the pipe from which they are read.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._unread = b""
        os.set_blocking(descriptor, False)

    def arrived(self) -> list[Message] | None:
        """The messages that have arrived since the last call; ``None`` if no more can arrive."""
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self.descriptor, 2**16):
                self._unread += read
            return None
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def __iter__(self) -> Iterator[Message]:
        lines = select.poll()
        lines.register(self.descriptor, select.POLLIN)
        while (messages := self.arrived()) is not None:
            yield from messages
            lines.poll()


class ForkedProcesses(Processes["_ForkedChild"]):
    """Processes that are forked from this one.

    Args:
        scratch: a folder for their files. Each has its own folder in it, which is removed with the process.
        channels: pipes and sockets of this process that none of them may reach.
        caller: the inbox of this process. A message in it also ends :meth:`wait`.
    """

    def __init__(self, scratch: Path, channels: Iterable[Channel] = (), caller: ForkedInbox | None = None) -> None:
        super().__init__()
        self._scratch, self._channels = scratch, tuple(channels)
        self._inbox = None if caller is None else caller.descriptor
        """Where messages to this process arrive."""

    def _start(self, work: Work, warm_up: Callable[[], object] | None, has_inbox: bool) -> _ForkedChild:
        if warm_up is not None:
            warm_up()  # here, because forks inherit it
        with self._new_ends(has_inbox=has_inbox) as ends:
            controls = [child.forks.control.fileno() for child in self._children if child.forks is not None]
            siblings = [end for child in self._children for end in (child.line, child.requests, child.output.fileno())]
            channels = [channel.number for channel in self._channels if channel.is_open]
            foreign = (ends.line_read, ends.requests, self._inbox, *siblings, *controls, *channels)
            life = _Life(
                work=work,
                line=Line(ends.line, ends.token),
                inbox=ends.inbox,
                control=None,
                output=ends.output.fileno(),
                folder=ends.folder,
                parent=os.getpid(),
                foreign=tuple(descriptor for descriptor in foreign if descriptor is not None),
            )
            share_one_heap()
            pid = self._starter.do(functools.partial(_fork, life.live))
            return ends.child(pid, functools.partial(_exit_code_of_child, pid))

    def start_python(self, key: object, work: Work, limits: ProcessLimits) -> None:
        """Start a new Python that does ``work``, with a :class:`ForkServer` as its second argument.

        Args:
            key: the key of its messages.
            work: the function, which is pickled.
            limits: what it may use.

        Raises:
            OSError: its files cannot be created, the system refuses another process, or the work cannot be pickled.
        """
        with self._new_ends(can_fork=True) as ends:
            _write_work(ends, work)
            process = self._starter.do(functools.partial(_python, ends))
            self._supervise(key, ends.child(process.pid, process.poll), limits)

    def start_from(
        self, parent: object, key: object, work: Work, limits: ProcessLimits, *, has_inbox: bool = False, can_fork: bool = False
    ) -> None:
        """Let a process that serves forks fork another one, which does ``work``.

        Args:
            parent: the key of the process that serves forks.
            key: the key of the new process's messages.
            work: the function, which is pickled.
            limits: what the new process may use.
            has_inbox: whether the work also gets an inbox, for :meth:`post`.
            can_fork: whether the work also gets a :class:`ForkServer`.

        Raises:
            OSError: its files cannot be created, the work cannot be pickled, or the parent cannot fork.
        """
        forks = self._alive(parent).child.forks
        if forks is None:
            raise ValueError("this process serves no forks")
        with self._new_ends(has_inbox=has_inbox, can_fork=can_fork) as ends:
            _write_work(ends, work)
            request = _ForkRequest(token=ends.token, folder=str(ends.folder), has_inbox=has_inbox, can_fork=can_fork)
            pid = forks.ask(request, ends.of_child)
            self._supervise(key, ends.child(pid, functools.partial(forks.exit_code, pid)), limits)

    @contextlib.contextmanager
    def _new_ends(self, *, has_inbox: bool = False, can_fork: bool = False) -> Iterator[_Ends]:
        """The files of a new process. Those that only the process needs are closed after the block; all are, if it raises."""
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as always:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            output: IO[bytes] = undo.enter_context(tempfile.TemporaryFile("ab+", dir=folder, buffering=0))
            line_read, line = _pipe(undo, always)
            inbox, requests = _pipe(always, undo) if has_inbox else (None, None)
            control = control_of_child = None
            if can_fork:
                control, control_of_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                always.callback(control_of_child.close)
                undo.callback(control.close)
            yield _Ends(
                folder=folder,
                token=new_token(),
                output=output,
                line_read=line_read,
                line=line,
                inbox=inbox,
                requests=requests,
                control=control,
                control_of_child=control_of_child,
            )
            undo.pop_all()

    def _await(self, seconds: float) -> bool:
        lines = select.poll()
        for child in self._children:
            if not child.is_cut:
                lines.register(child.line, select.POLLIN)
            if child.forks is not None and not child.forks.is_cut:
                lines.register(child.forks.control, select.POLLIN)
        if self._inbox is not None:
            lines.register(self._inbox, select.POLLIN)
        is_called = self._inbox in [descriptor for descriptor, _ in lines.poll(1000 * seconds)]
        for child in self._children:
            if child.forks is not None:
                child.forks.look()
        return is_called

    def let_end(self, seconds: float) -> None:
        """Let processes that serve forks end by themselves, the last one first. :meth:`close` kills those that do not."""
        end = CLOCK.monotonic() + seconds
        for child in reversed(self._children):
            if child.forks is None:
                continue
            child.forks.close()
            while child.exit_code() is None and CLOCK.monotonic() < end:
                time.sleep(0.01)


@dataclass(kw_only=True)
class _Ends:
    """The files of a process that is being started: those that this process keeps, and those that the new one gets."""

    folder: Path
    token: bytes
    output: IO[bytes]
    line_read: int
    """Where this process reads its messages."""
    line: int
    inbox: int | None
    requests: int | None
    """Where this process writes messages to it."""
    control: socket.socket | None
    """Where this process asks it to fork."""
    control_of_child: socket.socket | None

    @property
    def of_child(self) -> list[int]:
        """The descriptors that the process gets, in the order in which :class:`ForkServer` expects them."""
        control = None if self.control_of_child is None else self.control_of_child.fileno()
        descriptors = (self.line, self.output.fileno(), self.inbox, control)
        return [descriptor for descriptor in descriptors if descriptor is not None]

    def child(self, pid: int, exit_code: Callable[[], int | None]) -> _ForkedChild:
        """The process, once it has been started."""
        os.set_blocking(self.line_read, False)
        return _ForkedChild(
            pid=pid,
            token=self.token,
            folder=self.folder,
            output=self.output,
            line=self.line_read,
            requests=self.requests,
            forks=None if self.control is None else _Forks(self.control),
            inherited=resident(pid),
            find_exit_code=exit_code,
        )


@dataclass(kw_only=True)
class _ForkedChild:
    pid: int
    token: bytes
    folder: Path
    output: IO[bytes]
    inherited: int | None
    line: int
    """Where this process reads its messages."""
    requests: int | None
    """Where this process writes messages to it."""
    forks: _Forks | None
    """The processes that it forks; ``None`` if it serves no forks."""
    find_exit_code: Callable[[], int | None]
    is_cut: bool = False
    """Whether it has closed its end of the line."""
    _code: int | None = field(default=None, init=False)

    def read(self) -> bytes | None:
        try:
            read = os.read(self.line, 2**16)
        except BlockingIOError:
            return None
        self.is_cut = not read
        return read

    def post(self, message: Message) -> None:
        if self.requests is None:
            raise ValueError("this process has no inbox")
        os.write(self.requests, json.dumps(message).encode() + b"\n")

    def exit_code(self) -> int | None:
        if self._code is None:
            self._code = self.find_exit_code()
        return self._code

    def close(self) -> None:
        os.close(self.line)
        if self.requests is not None:
            os.close(self.requests)
        if self.forks is not None:
            self.forks.close()


def _pipe(closes_reader: contextlib.ExitStack, closes_writer: contextlib.ExitStack) -> tuple[int, int]:
    """The two ends of a new pipe, each closed by a stack."""
    reader, writer = os.pipe()
    closes_reader.callback(os.close, reader)
    closes_writer.callback(os.close, writer)
    return reader, writer


def _exit_code_of_child(pid: int) -> int | None:
    """The exit code of a child process, once it has ended."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # another handler was faster
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None


# --- forks of other processes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _ForkRequest:
    """A request to fork. Descriptors are sent with it."""

    token: bytes
    folder: str
    has_inbox: bool
    can_fork: bool


class _Forks:
    """The forks of a process that serves them, in the process that asks for them.

    Args:
        control: the socket to the process that serves them.
    """

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.is_cut = False
        """Whether the process has ended."""
        self._cut_at = 0.0
        self._codes: dict[int, int] = {}
        self._replies: list[Message] = []

    def ask(self, request: _ForkRequest, descriptors: Sequence[int]) -> int:
        """The id of a new fork.

        Raises:
            OSError: the process has ended, does not answer, or cannot fork.
        """
        request_time = time.time()
        self.control.settimeout(_REPLY_SECONDS)
        with contextlib.suppress(ConnectionError):
            try:
                socket.send_fds(self.control, [pickle.dumps(request)], descriptors)
                while not self._replies and not self.is_cut:
                    self._receive()
            except TimeoutError:
                self._cut()  # a late reply would be taken for the reply to another request
                raise TimeoutError(f"it has forked nothing for {_REPLY_SECONDS:g} s") from None
        if not self._replies:
            raise BrokenPipeError("the process that it is to be forked from has ended")
        reply = self._replies.pop(0)
        if "error" in reply:
            raise OSError(str(reply["error"]))
        pid = reply.get("pid")
        if not isinstance(pid, int) or not _is_new(pid, request_time):  # this process will kill it, so it must be the right one
            raise ConnectionError("the process that it is to be forked from names one that it has not forked")
        return pid

    def look(self) -> None:
        """Note which forks have ended so far."""
        self.control.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while not self.is_cut:
                self._receive()

    def _receive(self) -> None:
        try:
            packet = self.control.recv(2**12)
        except ConnectionError:
            packet = b""
        try:
            message = dict(json.loads(packet))
            if "ended" in message:
                self._codes[int(message["ended"])] = int(message["code"])
            else:
                self._replies.append(message)
        except (ValueError, TypeError, KeyError, RecursionError):
            self._cut()  # the process has ended, or its recipe file has written to the socket

    def _cut(self) -> None:
        if not self.is_cut:
            self.is_cut, self._cut_at = True, CLOCK.monotonic()

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a fork, once it has ended. The system kills it when the process ends that forked it."""
        if self.control.fileno() >= 0:
            self.look()
        if pid in self._codes:
            return self._codes.pop(pid)  # the system may give the id to another process
        # The supervisor is to learn first how the process ended that forked it.
        is_late = self.is_cut and CLOCK.monotonic() > self._cut_at + GRACE
        return -signal.SIGKILL if is_late and _has_ended(pid) else None

    def close(self) -> None:
        """Ask for no more forks."""
        self.is_cut, self._cut_at = True, 0.0
        self.control.close()


def _has_ended(pid: int) -> bool:
    """Whether another process has ended. A zombie has ended, too; in a container without an init it stays one."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _is_new(pid: int, since: float) -> bool:
    """Whether a process was started after ``since``, in seconds since the epoch. It may have ended already."""
    try:
        return pid > 1 and float(psutil.Process(pid).create_time()) >= since - 1.0
    except psutil.NoSuchProcess:
        return True  # a short life: the next message says how it ended
    except (psutil.Error, OverflowError):
        return False


class ForkServer:
    """Forks this process whenever the process that started it asks for that.

    Args:
        control: the socket to that process.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._starter = Starter()
        self._forks: set[int] = set()

    def serve(self) -> None:
        """Serve requests until no more can arrive."""
        requests = select.poll()
        requests.register(self._control, select.POLLIN)
        while True:
            if requests.poll(1000 * _REAP_SECONDS if self._forks else None):
                packet, descriptors, _, _ = socket.recv_fds(self._control, 2**12, 4)
                if not packet:
                    return
                self._reply(packet, descriptors)
            for pid in tuple(self._forks):
                code = _exit_code_of_child(pid)
                if code is not None:
                    self._forks.discard(pid)
                    self._send({"ended": pid, "code": code})

    def _reply(self, packet: bytes, descriptors: Sequence[int]) -> None:
        try:
            pid = self._fork(pickle.loads(packet), descriptors)
        except OSError as error:
            self._send({"error": str(error)})
        else:
            self._forks.add(pid)
            self._send({"pid": pid})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, request: _ForkRequest, descriptors: Sequence[int]) -> int:
        line, output, *more = descriptors
        folder = Path(request.folder)
        life = _Life(
            work=functools.partial(_do_pickled, folder / _WORK),
            line=Line(line, request.token),
            inbox=more[0] if request.has_inbox else None,
            control=more[-1] if request.can_fork else None,
            output=output,
            folder=folder,
            parent=os.getpid(),
            foreign=(self._control.fileno(),),
        )
        share_one_heap()
        return self._starter.do(functools.partial(_fork, life.run_behind_guard if request.can_fork else life.live))

    def _send(self, message: Message) -> None:
        self._control.sendall(json.dumps(message).encode())


def _write_work(ends: _Ends, work: Work) -> None:
    """Write the work of a process to its folder.

    Raises:
        OSError: it cannot be pickled or written.
    """
    from onnx_ci.processes.pickling import pickled  # needs cloudpickle, which is not installed where reports are only read

    (ends.folder / _WORK).write_bytes(pickled(work))


def _do_pickled(path: Path, *arguments: object) -> None:
    """Do the work that was written for this process."""
    work: Work = pickle.loads(path.read_bytes())
    path.unlink()
    work(*arguments)


def _python(ends: _Ends) -> subprocess.Popen[bytes]:
    """A new Python that runs :func:`main`."""
    return subprocess.Popen(
        new_python("onnx_ci.processes.forked"),
        stdin=None if ends.control_of_child is None else ends.control_of_child.fileno(),
        stdout=ends.line,
        stderr=ends.output,
        env={**os.environ, **temporary_folder(ends.folder), _TOKEN: ends.token.decode()},
        start_new_session=True,
    )


_TOKEN = "ONNX_CI_TOKEN"  # noqa: S105 (it says which lines are messages)


def main() -> None:
    """The main program of a new Python: do the work that was written for it."""
    folder = Path(os.environ["TMPDIR"])
    token = os.environ.pop(_TOKEN).encode()
    control, line = socket.socket(fileno=os.dup(0)), os.dup(1)
    point_at_devnull(0)
    settle(folder, os.dup(2))
    to_supervisor = Line(line, token)
    work_to_the_end(to_supervisor, functools.partial(_do_pickled, folder / _WORK, to_supervisor.send, ForkServer(control)))


# --- the fork -------------------------------------------------------------------------------------------------------


def _fork(child: Callable[[], NoReturn]) -> int:
    """The process id of a new process that runs ``child``."""
    with warnings.catch_warnings():
        # Python warns of a fork beside threads, because they may hold locks. A child that waits for one times out.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = fork()
    if pid == 0:
        child()
    return pid


@dataclass(frozen=True, kw_only=True)
class _Life:
    """What a forked process does from its beginning to its end."""

    work: Work
    line: Line
    inbox: int | None
    control: int | None
    output: int
    folder: Path
    parent: int
    foreign: tuple[int, ...]
    """Descriptors of other processes, which the work must not reach."""
    has_session: bool = True
    """Whether it begins a session of its own, by which all processes are found that it starts."""

    def run_behind_guard(self) -> NoReturn:
        """Do the work in a fork of this process, and end as the fork ends.

        Nothing else depends on this process. So a recipe file that kills its parent kills only itself.
        """
        end_with_parent(signal.SIGKILL)
        if os.getppid() != self.parent:
            os._exit(1)
        os.setsid()
        inner = dataclasses.replace(self, parent=os.getpid(), has_session=False)
        _, status = os.waitpid(_fork(inner.live), 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            with contextlib.suppress(OSError):  # SIGKILL has no handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)

    def live(self) -> NoReturn:
        """Do the work. This never returns into the code that forked."""
        try:
            work_to_the_end(self.line, self._work)
        finally:
            os._exit(1)

    def _work(self) -> None:
        gc.freeze()  # a collection would write to every page that the processes share
        if self.has_session:
            os.setsid()
        settle(self.folder, self.output)
        if os.getppid() != self.parent:
            os._exit(1)  # the parent died before the system was asked to kill this process with it
        point_at_devnull(0, *self.foreign)
        arguments: list[object] = [self.line.send]
        if self.inbox is not None:
            arguments.append(ForkedInbox(self.inbox))
        if self.control is not None:
            arguments.append(ForkServer(socket.socket(fileno=self.control)))
        self.work(*arguments)
