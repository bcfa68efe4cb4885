"""Processes that are forked: every import is done already, so one costs milliseconds. Linux only.

On macOS, system libraries abort a fork that uses them; Windows has no forks.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import select
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from onnx_ci.processes.allocator import share_one_heap
from onnx_ci.processes.child import Line, settle, work_to_the_end
from onnx_ci.processes.descriptors import Channel
from onnx_ci.processes.starter import Starter
from onnx_ci.processes.supervisor import Message, Processes, Work, new_token, resident


class ForkedInbox:
    """What a forked process is sent while it runs.

    Args:
        descriptor: the end of the pipe that can be read.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._unread = b""
        os.set_blocking(descriptor, False)

    def arrived(self) -> list[Message] | None:
        """The messages that have arrived since the last call; ``None`` if nothing more can come."""
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self.descriptor, 2**16):
                self._unread += read
            return None
        *whole, self._unread = self._unread.split(b"\n")
        return [json.loads(text) for text in whole]

    def __iter__(self) -> Iterator[Message]:
        lines = select.poll()
        lines.register(self.descriptor, select.POLLIN)
        while (messages := self.arrived()) is not None:
            yield from messages
            lines.poll()


class ForkedProcesses(Processes["_ForkedChild"]):
    """Processes that are forked from this one.

    Args:
        scratch: a folder for their files: each has its own below it, which goes with the process.
        channels: pipes and sockets of this process that none of them may reach.
        caller: the inbox of this process; a message in it also ends the waiting for the others.
    """

    def __init__(self, scratch: Path, channels: Iterable[Channel] = (), caller: ForkedInbox | None = None) -> None:
        super().__init__()
        self._scratch, self._channels, self._caller = scratch, tuple(channels), caller
        self._starter = Starter()

    def _start(self, work: Work, warm_up: Callable[[], object] | None, has_inbox: bool, is_fresh: bool) -> _ForkedChild:
        if warm_up is not None:
            warm_up()  # a fork has it from this process
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            output: IO[bytes] = undo.enter_context(tempfile.TemporaryFile("ab+", dir=folder, buffering=0))
            ours, theirs = os.pipe()
            inbox, requests = os.pipe() if has_inbox else (None, None)
            for each in (ours, theirs, inbox, requests):
                if each is not None:
                    undo.callback(os.close, each)
            own = self._caller.descriptor if self._caller else None
            siblings = [each for child in self._children for each in (child.line, child.requests, child.output.fileno())]
            foreign = (ours, requests, own, *siblings, *(each.number for each in self._channels if each.is_open))
            token = new_token()
            life = _Life(
                work=work,
                line=Line(theirs, token),
                inbox=inbox,
                output=output.fileno(),
                folder=folder,
                parent=os.getpid(),
                foreign=tuple(each for each in foreign if each is not None),
            )
            share_one_heap()
            pid = self._starter.do(functools.partial(_fork, life.live))
            undo.pop_all()
        for end in (theirs, inbox):
            if end is not None:
                os.close(end)
        os.set_blocking(ours, False)
        return _ForkedChild(
            pid=pid, token=token, folder=folder, output=output, line=ours, requests=requests, inherited=resident(pid)
        )

    def _await(self, seconds: float) -> bool:
        lines = select.poll()
        for line in [child.line for child in self._children if not child.is_cut]:
            lines.register(line, select.POLLIN)
        own = self._caller.descriptor if self._caller else None
        if own is not None:
            lines.register(own, select.POLLIN)
        return own in [line for line, _ in lines.poll(1000 * seconds)]

    def close(self) -> None:
        """End all processes, wait for their ends, and remove their files."""
        super().close()
        self._starter.close()


@dataclass(kw_only=True)
class _ForkedChild:
    pid: int
    token: bytes
    folder: Path
    output: IO[bytes]
    inherited: int | None
    printed_before = 0
    line: int
    """Where its messages come out."""
    requests: int | None
    """Where messages to it go in."""
    is_cut: bool = False
    """Whether its end of the line is closed."""
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
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another handler was faster
                self._code = 0
            else:
                self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code

    def close(self) -> None:
        os.close(self.line)
        if self.requests is not None:
            os.close(self.requests)


# --- the fork -------------------------------------------------------------------------------------------------------


def _fork(child: Callable[[], NoReturn]) -> int:
    """The process id of a new process that runs ``child``."""
    with warnings.catch_warnings():
        # Python warns of forks beside threads, which may hold locks; a child that waits for one times out.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        child()
    return pid


@dataclass(frozen=True, kw_only=True)
class _Life:
    """The whole life of a forked process."""

    work: Work
    line: Line
    inbox: int | None
    output: int
    folder: Path
    parent: int
    foreign: tuple[int, ...]
    """Descriptors of other processes, which the code that it runs must not reach."""

    def live(self) -> NoReturn:
        """Do the work. It never returns into the code that it was forked from."""
        try:
            work_to_the_end(self.line, self._work)
            os._exit(0)
        finally:
            os._exit(1)

    def _work(self) -> None:
        gc.freeze()  # a collection would write to every page that is still shared
        os.setsid()
        settle(self.folder, self.output)
        if os.getppid() != self.parent:
            os._exit(1)  # it died before the system was asked to end this process with it
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            for descriptor in (0, *self.foreign):
                os.dup2(nothing.fileno(), descriptor)  # closed, its number would soon be that of another file
        if self.inbox is None:
            self.work(self.line.send)
        else:
            self.work(self.line.send, ForkedInbox(self.inbox))
