"""A recipe file is imported in a process of its own first: one that crashes or hangs costs nothing but its recipes."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.environment.libraries import is_library_file
from onnx_ci.processes.supervisor import LAST, Death, Send, process_limits, run_apart

_LEAST_SECONDS, _MOST_SECONDS = 60.0, 1e6
"""The limits of the time limit: libraries can take long to import, and the system takes no larger number."""
_STANDARD_ERROR = 2
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
"""A line of a stack as :mod:`faulthandler` writes it."""


@dataclass(frozen=True, kw_only=True)
class ImportDeath:
    """How a process ended that imported a recipe file."""

    message: str
    """What happened to it: "was killed by SIGSEGV"."""
    place: tuple[str, int] | None
    """The file and the line of the project that it was at, if they are known."""


def death_by_import(path: Path, import_file: Callable[[Path], object], root: Path, seconds: float) -> ImportDeath | None:
    """How importing a recipe file ends a process, which is gone afterwards; ``None`` if it does not end it.

    Args:
        path: the file.
        import_file: imports it. What it raises is not told: the file is imported here next.
        root: the project's root.
        seconds: the time limit of a cell; a file may take at least a minute.

    Raises:
        OSError: the file cannot be read, or no process can be started.
    """
    if "torch" not in sys.modules and b"torch" in path.read_bytes():
        with contextlib.suppress(Exception):
            importlib.import_module("torch")  # once for all such processes; this one needs it next
    seconds = min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS)
    work = functools.partial(_import, path, import_file, seconds)
    for _, event in run_apart({path: work}, process_limits(seconds, None)):
        if isinstance(event, Death):
            return ImportDeath(message=event.message, place=_place(event.log, root))
    return None


def _import(path: Path, import_file: Callable[[Path], object], seconds: float, send: Send) -> None:
    """The main function of the process."""
    faulthandler.dump_traceback_later(0.9 * seconds, file=_STANDARD_ERROR)  # so that it is known where it hangs
    with contextlib.suppress(BaseException):  # such as SystemExit
        import_file(path)
    send({LAST: None})


def _place(log: str, root: Path) -> tuple[str, int] | None:
    """The innermost line of the project in a stack."""
    for frame in _FRAME.finditer(log):
        if Path(frame["file"]).is_relative_to(root) and not is_library_file(frame["file"]):
            return frame["file"], int(frame["line"])
    return None
