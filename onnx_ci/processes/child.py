"""How a supervised process begins and ends, and the program of a process that is a new Python."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn, Protocol

from onnx_ci.errors import OnnxCiError, first_line
from onnx_ci.processes.allocator import keep_freed_memory
from onnx_ci.processes.capture import keep_output
from onnx_ci.processes.signals import end_with_parent
from onnx_ci.processes.supervisor import BEGUN, RAISED, Message, Send, resident

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_TASK = "task.pickle"
"""The file with the :class:`Task` of a new Python, in its folder."""


class Inbox(Protocol):
    """The messages to a process while it runs."""

    def __iter__(self) -> Iterator[Message]:
        """Each message as it arrives, until no more can arrive."""


def write_message(descriptor: int, message: Message) -> None:
    """Write a message as one line."""
    text = json.dumps(message).encode() + b"\n"
    while text:
        text = text[os.write(descriptor, text) :]


def settle(folder: Path, output: int) -> None:
    """Prepare this process: it can be killed with all that it starts, reads nothing, and its output is kept."""
    if sys.platform == "linux":
        end_with_parent(signal.SIGKILL)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that the processes that its children leave can be found
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides when it ends
    keep_freed_memory()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    keep_output(output)
    faulthandler.enable(file=output)
    tempfile.tempdir = str(folder)
    os.environ.update(_temporary_folder(folder))


def _temporary_folder(folder: Path) -> dict[str, str]:
    """The variables that name the folder of temporary files, on any platform."""
    return dict.fromkeys(("TMPDIR", "TEMP", "TMP") if os.name == "nt" else ("TMPDIR",), str(folder))


def work_to_the_end(send: Send, work: Callable[[], None]) -> NoReturn:
    """Do the work of this process and end the process with it, whatever threads and exit handlers there are."""
    try:
        work()
    except BaseException as error:  # the supervisor reports it
        with contextlib.suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
            kind = type(error).__name__
            send({RAISED: f"{kind}: {first_line(error)}" if isinstance(error, OnnxCiError) else kind})
        os._exit(1)
    os._exit(0)


# --- a new Python -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a new Python does."""

    arguments: Sequence[str]
    warm_up: bytes
    """Pickled: ``None``, or a function that imports what the work needs before the limits count."""
    work: bytes
    """Pickled."""
    channel: Callable[[int], object]
    """Given the descriptor of the process's standard input, it makes the second argument of the work."""


def start_python(task: Task, folder: Path, *, stdin: int, stdout: int, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a new Python with the options of this one, such as ``-O``, and its path. Its files are in ``folder``."""
    (folder / _TASK).write_bytes(pickle.dumps(task))
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # multiprocessing uses it, too
    path = [str(each) for each in sys.path]  # the one that Python itself sets begins with the current directory
    program = f"import sys; sys.path[:] = {path!r}; from {__name__} import main; main()"
    return subprocess.Popen(
        [sys.executable, *options, "-c", program],
        bufsize=0,
        stdin=stdin,
        stdout=stdout,
        stderr=output,
        env={**os.environ, **_temporary_folder(folder)},
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # Ctrl-C in the console is not for it
    )


def main() -> None:
    """The main program of a new Python."""
    folder = Path(os.environ["TEMP" if os.name == "nt" else "TMPDIR"])
    stdin, line = os.dup(0), os.dup(1)
    settle(folder, os.dup(2))
    send = functools.partial(write_message, line)
    work_to_the_end(send, functools.partial(_do_task, folder / _TASK, stdin, send))


def _do_task(path: Path, stdin: int, send: Send) -> None:
    task: Task = pickle.loads(path.read_bytes())
    path.unlink()
    sys.argv[:] = task.arguments
    channel = task.channel(stdin)
    warm_up = pickle.loads(task.warm_up)
    if warm_up is not None:
        warm_up()
    send({BEGUN: resident(os.getpid())})
    pickle.loads(task.work)(send, channel)
