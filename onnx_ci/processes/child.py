"""How a supervised process begins and ends."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from json import dumps  # own references: a recipe file can replace the originals
from os import write
from pathlib import Path
from typing import NoReturn, Protocol

from onnx_ci.errors import OnnxCiError, first_line
from onnx_ci.processes.allocator import keep_freed_memory
from onnx_ci.processes.capture import keep_output
from onnx_ci.processes.signals import end_with_parent
from onnx_ci.processes.supervisor import RAISED, Message

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Inbox(Protocol):
    """The messages to a process while it runs."""

    def __iter__(self) -> Iterator[Message]:
        """Each message as it arrives, until no more can arrive."""


class Line:
    """The line to the supervisor.

    Args:
        descriptor: where messages are written.
        token: the beginning of each message.
    """

    def __init__(self, descriptor: int, token: bytes) -> None:
        self._descriptor, self._token = descriptor, token

    def send(self, message: Message) -> None:
        """Send a message."""
        text = self._token + dumps(message).encode() + b"\n"
        while text:
            text = text[write(self._descriptor, text) :]


def settle(folder: Path, output: int) -> None:
    """Prepare this process: it can be killed with all that it starts, and its output is kept.

    Args:
        folder: for its temporary files.
        output: the open file that gets everything that it prints.
    """
    if sys.platform == "linux":
        end_with_parent(signal.SIGKILL)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that the processes that its children leave can be found
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides when it ends
    keep_freed_memory()
    keep_output(output)
    faulthandler.enable(file=output)
    tempfile.tempdir = str(folder)
    os.environ.update(temporary_folder(folder))


def temporary_folder(folder: Path) -> dict[str, str]:
    """The variables that name the folder of temporary files, on any platform."""
    return dict.fromkeys(("TMPDIR", "TEMP", "TMP") if os.name == "nt" else ("TMPDIR",), str(folder))


def new_python(module: str) -> list[str]:
    """The command that calls ``main`` of a module in a new Python with the options of this one, such as ``-O``, and its path.

    The path that Python itself sets begins with the current directory.
    """
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # multiprocessing uses it, too
    path = [str(folder) for folder in sys.path]
    return [sys.executable, *options, "-c", f"import sys; sys.path[:] = {path!r}; from {module} import main; main()"]


def work_to_the_end(line: Line, work: Callable[[], None]) -> NoReturn:
    """Do the work of this process and end the process with it, whatever threads and exit handlers there are."""
    try:
        work()
    except BaseException as error:  # the supervisor reports it
        with contextlib.suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
            kind = type(error).__name__
            line.send({RAISED: f"{kind}: {first_line(error)}" if isinstance(error, OnnxCiError) else kind})
        os._exit(1)
    os._exit(0)
