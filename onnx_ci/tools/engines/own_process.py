"""Runtimes whose sessions are processes: one that crashes or hangs costs no other runtime its verdict. On Linux only."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import math
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_ci.errors import message_of
from onnx_ci.pipeline.run.runtime import BrokenRuntimeError, Runtime, Session
from onnx_ci.processes.signals import end_with_parent
from onnx_ci.processes.supervisor import Starter, how_it_ended

if TYPE_CHECKING:
    import torch

_CLOSE = "close"
"""The last request."""
_SECONDS_TO_CLOSE = 5.0


class OwnProcess:
    """A runtime whose sessions are forks of this process.

    Args:
        seconds: how long it may take to load a file, and for each run.
    """

    def __init__(self, runtime: Runtime, seconds: float) -> None:
        self.name, self.is_deployed, self.missing_device = runtime.name, runtime.is_deployed, runtime.missing_device
        self._runtime, self._seconds = runtime, seconds

    def load(self, path: Path, device: str) -> Session:
        """The file in a new process.

        Raises:
            BrokenRuntimeError: the process died or did not answer in time.
            RuntimeError: the runtime cannot load the file, in its words.
        """
        return _RemoteSession(functools.partial(self._runtime.load, path, device), self._seconds)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What the process of a session answers to a request to load the file or to run it."""

    outputs: Sequence[torch.Tensor]
    error: str
    rule: str
    """The rule that is broken, if the error is a :class:`BrokenRuntimeError`."""
    provider: str
    nodes_on_cpu: tuple[str, ...] | None
    events: tuple[tuple[str, tuple[Any, ...]], ...]
    """Python's audit events about what the process opened and started."""


class _RemoteSession:
    """A session in a process of its own, which ends when nothing refers to the session any more."""

    def __init__(self, load: Callable[[], Session], seconds: float) -> None:
        self._seconds = seconds
        self._line, line = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=_serve, args=(load, line))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads; one that waits for a lock times out
            starter = Starter()
            starter.do(self._start)
        line.close()
        weakref.finalize(self, _end, self._process, self._line, starter, os.getpid())
        self._last = self._ask(None)

    def _start(self) -> None:
        # In the starter's thread, this frame tells the cache that the fork is onnx-ci's and not the project's.
        self._process.start()

    @property
    def provider(self) -> str:
        return self._last.provider

    @property
    def nodes_on_cpu(self) -> tuple[str, ...] | None:
        return self._last.nodes_on_cpu

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """See :meth:`Session.run`, and :meth:`OwnProcess.load` for the errors."""
        self._last = self._ask((dict(inputs), seed))
        return [*self._last.outputs]

    def _ask(self, request: object) -> _Answer:
        """What the process answers to ``None``, which loads the file, or to inputs and a seed."""
        try:
            self._line.send_bytes(_packed(request))
            if not self._line.poll(None if self._seconds == math.inf else self._seconds):
                self._process.kill()
                raise BrokenRuntimeError("timeout", f"did not answer within {self._seconds:.3g} s")
            answer: _Answer = _unpacked(self._line.recv_bytes())
        except (EOFError, OSError):
            self._process.join()
            raise BrokenRuntimeError("crash", how_it_ended(self._process.exitcode or 0)) from None
        for event, arguments in answer.events:
            sys.audit(event, *arguments)  # the cache records what this process hears
        if answer.rule:
            raise BrokenRuntimeError(answer.rule, answer.error)
        if answer.error:
            raise RuntimeError(answer.error)
        return answer


def _packed(value: object) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)  # pickle cannot write tensors of 8-bit floats
    return stream.getvalue()


def _unpacked(contents: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(contents), weights_only=False)


def _end(process: BaseProcess, line: Connection, starter: Starter, parent: int) -> None:
    """Let the process of a session close it and end, unless this is another fork of the parent."""
    if os.getpid() != parent:
        return
    with contextlib.suppress(OSError):
        line.send_bytes(_packed(_CLOSE))
        process.join(_SECONDS_TO_CLOSE)
    line.close()
    process.kill()
    process.join()
    starter.close()


# --- in the process of a session ------------------------------------------------------------------------------------------


def _serve(load: Callable[[], Session], line: Connection) -> None:
    """Answer until the last request, and end the process, whatever threads and exit handlers there are."""
    try:
        _answer_requests(load, line)
        code = 0
    except BaseException:  # the parent, which waits for an answer, reports that the process has ended
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _answer_requests(load: Callable[[], Session], line: Connection) -> None:
    """Load the file and run it, as often as asked for."""
    end_with_parent(signal.SIGKILL)
    gc.freeze()  # a collection would write to every page that the processes share
    events: list[tuple[str, tuple[Any, ...]]] = []
    sys.addaudithook(functools.partial(_hear, events))
    session: Session | None = None
    while (request := _unpacked(line.recv_bytes())) != _CLOSE:
        outputs: Sequence[torch.Tensor] = ()
        error = rule = ""
        try:
            if session is None:
                session = load()
            else:
                inputs, seed = request
                outputs = session.run(inputs, seed=seed)
        except Exception as raised:  # each runtime raises its own classes
            error, rule = message_of(raised).strip() or type(raised).__name__, getattr(raised, "rule", "")
        answer = _Answer(
            outputs=tuple(outputs),
            error=error,
            rule=rule,
            provider="" if session is None else session.provider,
            nodes_on_cpu=None if session is None else session.nodes_on_cpu,
            events=tuple(events),
        )
        line.send_bytes(_packed(answer))
        events.clear()


def _hear(events: list[tuple[str, tuple[Any, ...]]], event: str, arguments: tuple[Any, ...]) -> None:
    """Note what the cache records: files and programs, with what a program is given."""
    if event in ("open", "subprocess.Popen") and isinstance(arguments[0], (str, bytes, os.PathLike)):
        events.append((event, (os.fsdecode(arguments[0]), *arguments[1:3])))
