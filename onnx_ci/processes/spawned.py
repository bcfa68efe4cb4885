"""Spawned processes, which work on every platform: each is a new Python that imports what it needs, which takes seconds.

They run :mod:`~onnx_ci.processes.spawned_main`. What one has to do is pickled, with :mod:`cloudpickle`, so that functions of a
script or of a notebook can be sent, too. Nothing here needs Unix.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import pickle
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import IO, Any, cast

import cloudpickle

from onnx_ci.processes.child import temporary_folder
from onnx_ci.processes.starter import Starter, start_thread
from onnx_ci.processes.supervisor import GRACE, Message, Processes, Work, clear, kill_tree, new_token

_MAIN = "import sys; sys.path[:] = {path!r}; import onnx_ci.processes.spawned_main as main; main.main()"
"""The program. Its path is that of this process: Python's own begins with the current directory."""
LENGTH = 8
"""How many bytes give the length of what is sent."""
_MOST_UNREAD = 2**24
"""How many bytes of a process's messages may wait to be read before the process has to wait."""


class UnsendableError(OSError):
    """The work of a process cannot be sent to it. An ``OSError``, like every other reason why a process does not start."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a process is sent to do, and what it must have in common with the one that sends it."""

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
    """Spawned processes. One that reports :data:`~onnx_ci.processes.supervisor.REUSABLE` is kept for the next work.

    Args:
        scratch: a folder for their files: each has its own below it, which goes with the process.
    """

    def __init__(self, scratch: Path) -> None:
        super().__init__()
        self._scratch = scratch
        self._arrived = threading.Event()
        self._idle: list[_SpawnedChild] = []
        self._starter = Starter()

    def _start(self, work: Work, warm_up: Callable[[], object] | None, has_inbox: bool, is_fresh: bool) -> _SpawnedChild:
        pickled = _pickled(warm_up), _pickled(work)
        spawn = functools.partial(_spawn, self._scratch, self._arrived)
        child = (None if is_fresh else self._idle_child()) or self._starter.do(spawn)
        child.token, child.inherited = new_token(), None
        child.printed_before = os.fstat(child.output.fileno()).st_size
        task = Task(
            token=child.token,
            variables={**os.environ, **temporary_folder(child.folder)},
            folder=str(Path.cwd()),
            arguments=sys.argv,
            path=sys.path,
            warm_up=pickled[0],
            work=pickled[1],
            has_inbox=has_inbox,
        )
        child.send(pickle.dumps(task))
        return child

    def _idle_child(self) -> _SpawnedChild | None:
        """A process that waits for something to do."""
        while self._idle:
            child = self._idle.pop()
            if child.process.poll() is None:
                return child
            clear(child)
        return None

    def _keep(self, child: _SpawnedChild) -> bool:
        self._idle.append(child)
        return True

    def _await(self, seconds: float) -> bool:
        self._arrived.wait(seconds)
        self._arrived.clear()
        return False

    def close(self) -> None:
        """End all processes, wait for their ends, and remove their files."""
        while (child := self._idle_child()) is not None:
            kill_tree(child.pid)
            child.process.wait()
            clear(child)
        super().close()
        self._starter.close()


def _pickled(value: object) -> bytes:
    try:
        with io.BytesIO() as stream, contextlib.closing(_Pickler(stream)) as pickler:
            pickler.dump(value)
            return stream.getvalue()
    except Exception as error:  # whatever the objects of a recipe raise
        raise UnsendableError(f"what it is to do cannot be sent to it: {type(error).__name__}: {error}") from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """Sends by value what a new process cannot import by its name, such as a test module in pytest's ``importlib`` mode."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        self._by_value: list[ModuleType] = []
        self._can_be_imported = functools.cache(_can_be_imported)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)):
            module = sys.modules.get(str(obj.__module__))
            by_value = cloudpickle.list_registry_pickle_by_value()
            if module is not None and module.__name__ not in by_value and not self._can_be_imported(module):
                cloudpickle.register_pickle_by_value(module)
                self._by_value.append(module)
        return super().reducer_override(obj)

    def close(self) -> None:
        for module in self._by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(module: ModuleType) -> bool:
    """Whether a new process finds a module of this name."""
    if module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        return True  # what that is, cloudpickle knows
    folders: Sequence[str] | None = None
    for name in itertools.accumulate(module.__name__.split("."), "{}.{}".format):
        found = (finder.find_spec(name, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, found), None)
        if spec is None:
            return False
        folders = spec.submodule_search_locations
    return True


def _spawn(scratch: Path, arrived: threading.Event) -> _SpawnedChild:
    """Start a process that waits for a :class:`Task`."""
    folder = scratch / new_token().decode()
    folder.mkdir()
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        with (folder / "output").open("ab+") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _MAIN.format(path=[str(place) for place in sys.path])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **temporary_folder(folder)},
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # Ctrl-C in the console is not for it
            )
        undo.enter_context(process)  # closes its pipes and waits for its end
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
    """Set whenever something has arrived from it."""
    token: bytes = b""
    inherited: int | None = None
    printed_before: int = 0
    _received: bytearray = field(default_factory=bytearray, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    """Guards what has been received."""
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
        # What it sent last may be on its way; but another process can keep its line open.
        self._ended_at = self._ended_at or time.monotonic()
        return code if time.monotonic() > self._ended_at + GRACE else None

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
        with contextlib.suppress(OSError), inbox:  # that it is dead is found out elsewhere
            while (content := self._to_send.get()) is not None:
                inbox.write(content)
                inbox.flush()
