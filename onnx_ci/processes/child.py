"""The first and the last things that every supervised process does."""

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
from json import dumps  # bound here: what a recipe file replaces does not matter
from os import write
from pathlib import Path
from typing import NoReturn, Protocol

from onnx_ci.errors import OnnxCiError, first_line
from onnx_ci.processes.allocator import keep_freed_memory
from onnx_ci.processes.capture import keep_journal
from onnx_ci.processes.endings import end_with_parent
from onnx_ci.processes.supervisor import RAISED, Message

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Inbox(Protocol):
    """What a process is sent while it runs."""

    def __iter__(self) -> Iterator[Message]:
        """Each message, as it comes; ends when nothing more can come."""


class Line:
    """The line to the supervisor.

    Args:
        descriptor: where messages go in.
        token: what begins each of them.
    """

    def __init__(self, descriptor: int, token: bytes) -> None:
        self._descriptor, self._token = descriptor, token

    def send(self, message: Message) -> None:
        """Send a message."""
        text = self._token + dumps(message).encode() + b"\n"
        while text:
            text = text[write(self._descriptor, text) :]


def settle(folder: Path, output: int) -> None:
    """Make this process one that can be ended with all that it starts, and whose output is kept.

    Args:
        folder: for its temporary files.
        output: the open file in which everything that it prints is kept.
    """
    if sys.platform == "linux":
        end_with_parent(signal.SIGKILL)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that what its children leave behind can still be found
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides when it ends
    keep_freed_memory()
    keep_journal(output)
    faulthandler.enable(file=output)
    tempfile.tempdir = str(folder)
    os.environ.update(temporary_folder(folder))


def temporary_folder(folder: Path) -> dict[str, str]:
    """The variables that name the folder of temporary files, on any platform."""
    return dict.fromkeys(("TMPDIR", "TEMP", "TMP") if os.name == "nt" else ("TMPDIR",), str(folder))


def interpreter_options() -> list[str]:
    """The options that this Python was started with, such as ``-O``, for another one."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # multiprocessing uses it, too
    return options


def work_to_the_end(line: Line, work: Callable[[], None]) -> NoReturn:
    """Do the work of this process, which ends with it, whatever threads and handlers there are."""
    try:
        work()
    except BaseException as error:  # its supervisor reports it
        with contextlib.suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
            named = type(error).__name__
            line.send({RAISED: f"{named}: {first_line(error)}" if isinstance(error, OnnxCiError) else named})
        os._exit(1)
    os._exit(0)
