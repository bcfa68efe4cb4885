"""Recipe files are imported in a process of their own first: one that crashes or hangs costs nothing but its recipes."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import Death, Processes, Send, process_limits

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
    """Imports recipe files, one after another, in a process that is forked from this one; a context manager.

    Args:
        import_file: imports one of them. What it raises is not told: the file is imported here, too.
        root: the project's root.
        seconds: how long one file may take.
        memory: how many bytes the process may use; ``None`` for most of the machine's.
    """

    def __init__(self, import_file: Callable[[Path], object], root: Path, *, seconds: float, memory: int | None) -> None:
        self._import_file, self._root, self._seconds = import_file, root, seconds
        self._limits = process_limits(seconds, memory)
        self._undo = contextlib.ExitStack()
        self._processes: Processes | None = None
        self._requests: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._forget()
        self._undo.close()
        self._processes = None

    def death(self, path: Path) -> ImportDeath | None:
        """How importing a file ends the process; ``None`` if it does not.

        Raises:
            OSError: no process can be started.
        """
        if self._processes is None:
            self._processes = Processes(self._undo.enter_context(scratch_folder()))
            self._undo.callback(self._processes.close)
        requests = self._start(self._processes) if self._requests is None else self._requests
        self._processes.extend("import", self._seconds)
        os.write(requests, json.dumps(str(path)).encode() + b"\n")
        if "torch" not in sys.modules and b"torch" in path.read_bytes():
            with contextlib.suppress(Exception):
                importlib.import_module("torch")  # meanwhile: this process will need it next
        while True:
            for _, event in self._processes.wait():
                if isinstance(event, Death):
                    self._forget()
                    return ImportDeath(message=event.message, place=self._place(event.log))
                if event.get("imported") == str(path):
                    self._processes.extend("import", None)
                    return None

    def _start(self, processes: Processes) -> int:
        requests, self._requests = os.pipe()
        try:
            processes.start("import", lambda send: self._serve(requests, send), self._limits, [self._requests])
        except OSError:
            self._forget()
            raise
        finally:
            os.close(requests)
        return self._requests

    def _forget(self) -> None:
        if self._requests is not None:
            os.close(self._requests)
            self._requests = None

    def _serve(self, requests: int, send: Send) -> None:
        """The main function of the process."""
        with open(requests, encoding="utf-8") as lines:
            for line in lines:
                path = json.loads(line)
                faulthandler.dump_traceback_later(0.9 * self._seconds)  # so that it is known where it hangs
                with contextlib.suppress(BaseException):  # such as SystemExit
                    self._import_file(Path(path))
                faulthandler.cancel_dump_traceback_later()
                send({"imported": path})

    def _place(self, log: str) -> tuple[str, int] | None:
        """The innermost line of the project in a stack."""
        for frame in _FRAME.finditer(log):
            if Path(frame["file"]).is_relative_to(self._root):
                return frame["file"], int(frame["line"])
        return None
