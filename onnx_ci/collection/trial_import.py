"""A recipe file is imported in another process first: one that crashes or hangs costs nothing but its recipes."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from onnx_ci.collection.importing import import_file
from onnx_ci.config.settings import Settings
from onnx_ci.environment.libraries import is_library_file
from onnx_ci.processes.apart import processes_of
from onnx_ci.processes.limits import process_limits
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, REUSABLE, Death, Processes, Send

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


class TrialImports:
    """Imports recipe files in other processes, each in one of its own where processes are forked.

    Elsewhere one process imports all files, as the run itself does, until one of them ends it. The process of the next file
    works while this one imports a file.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open = contextlib.ExitStack()
        self._processes: Processes[Any] | None = None
        self._next: dict[Path, Path] = {}
        self._begun: set[Path] = set()
        self._ended: dict[Path, Death | None] = {}

    def expect(self, paths: Sequence[Path]) -> None:
        """Announce files that are asked for one after another."""
        self._next = dict(itertools.pairwise(paths))

    def death_by(self, path: Path) -> ImportDeath | None:
        """How importing a recipe file ends a process; ``None`` if it does not end it. What it raises is not reported.

        Raises:
            OSError: the file cannot be read, or no process can be started.
        """
        if self._settings.isolation == "fork" and "torch" not in sys.modules and b"torch" in path.read_bytes():
            with contextlib.suppress(Exception):
                importlib.import_module("torch")  # once for all such processes; this one needs it next
        processes = self._processes
        if processes is None:
            scratch = self._open.enter_context(scratch_folder())
            processes = self._open.enter_context(contextlib.closing(processes_of(self._settings.isolation, scratch)))
            self._processes = processes
        self._begin(processes, path)
        while path not in self._ended:
            for key, event in processes.wait():
                self._ended[cast("Path", key)] = event if isinstance(event, Death) else None
        self._begun.discard(path)
        death = self._ended.pop(path)
        following = self._next.pop(path, None)
        if self._settings.isolation == "fork" and following is not None:
            with contextlib.suppress(OSError):  # it is tried again, and told, when it is asked for
                self._begin(processes, following)
        return None if death is None else ImportDeath(message=death.message, place=_place(death.log, self._settings.root))

    def _begin(self, processes: Processes[Any], path: Path) -> None:
        if path not in self._begun:
            seconds = min(max(self._settings.timeout, _LEAST_SECONDS), _MOST_SECONDS)
            processes.start(path, functools.partial(_import, path, seconds), process_limits(seconds, None))
            self._begun.add(path)

    def close(self) -> None:
        """End the processes."""
        self._processes = None
        self._begun.clear()
        self._ended.clear()
        self._open.close()


def _import(path: Path, seconds: float, send: Send) -> None:
    """The main function of the process."""
    faulthandler.dump_traceback_later(0.9 * seconds, file=_STANDARD_ERROR)  # so that it is known where it hangs
    with contextlib.suppress(BaseException):  # such as SystemExit
        import_file(path)
    faulthandler.cancel_dump_traceback_later()
    send({LAST: None, REUSABLE: True})


def _place(log: str, root: Path) -> tuple[str, int] | None:
    """The innermost line of the project in a stack."""
    for frame in _FRAME.finditer(log):
        if Path(frame["file"]).is_relative_to(root) and not is_library_file(frame["file"]):
            return frame["file"], int(frame["line"])
    return None
