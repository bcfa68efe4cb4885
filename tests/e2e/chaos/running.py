"""A run in a process group of its own, and whatever it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODES = {
    "pytest": ["pytest", "-p", "no:cacheprovider", "--onnx-export", "-n", "0", "--onnx-report=r.json"],
    "workers": ["pytest", "-p", "no:cacheprovider", "--onnx-export", "-n", "2", "--onnx-report=r.json"],
    "command": ["onnx_ci", "run", "--report=r.json"],
    "spawn": ["onnx_ci", "run", "--report=r.json", "--isolation=spawn"],
}
"""The ways to run cells, as arguments of ``python -m``."""

ISOLATION = os.environ.get("CHAOS_ISOLATION")
"""The isolation in all modes, ``spawn`` to try that in each; by default, it is tried in one."""

FOREIGN = (".ses", "torchinductor_")
"""How the names begin of what ONNX Runtime and torch leave among temporary files when they are imported."""

TOKEN = "CHAOS_TOKEN"
"""The variable that marks every process of a run: children inherit it, whatever group or session they move to."""


def listen_to_signals() -> None:
    """Undo what nohup and the background jobs of shells do: they ignore signals, and children inherit that."""
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)


def option(mode: str, name: str, value: object) -> str:
    """The flag that sets an option."""
    return f"--{'' if MODES[mode][0] == 'onnx_ci' else 'onnx-'}{name}={value}"


@dataclass
class Running:
    """One run in ``root``, started at once."""

    mode: str
    root: Path
    options: Sequence[str] = ()
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    has_reader: bool = False
    """Whether its standard output is a pipe, of which ``reader`` is the other end."""

    def __post_init__(self) -> None:
        self.temporary = self.root / "temporary"
        self.temporary.mkdir(exist_ok=True)  # a run before it was killed
        arguments = [*MODES[self.mode], *self.options]
        if ISOLATION is not None:
            arguments.append(option(self.mode, "isolation", ISOLATION))
        if not any(each.startswith(option(self.mode, "cache", "")) for each in self.options):
            arguments.append(option(self.mode, "cache", "off"))
        if arguments[0] == "pytest":
            arguments.append(f"--basetemp={self.root / 'basetemp'}")  # xdist makes one, else in TMPDIR
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ONNX_CI_", "GITHUB_", "INPUT_", "PYTEST_"))
        }
        output = self.root / "stdout"
        if self.has_reader:
            os.mkfifo(output)
            self.reader = os.fdopen(os.open(output, os.O_RDONLY | os.O_NONBLOCK), "rb")
        with output.open("w") as stdout, (self.root / "stderr").open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=self.root,
                env={**environment, TOKEN: self.token, "TMPDIR": str(self.temporary), "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                stdout=stdout,  # files: a pipe would stay open as long as a process that was left behind
                stderr=stderr,
                start_new_session=True,
                preexec_fn=listen_to_signals,
            )

    def wait(self, seconds: float) -> int | None:
        """The exit code, or ``None`` if it does not come."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def wait_for(self, file: Path, seconds: float = 60) -> None:
        """Wait until ``file`` exists, or the run has ended."""
        self.wait_until(file.exists, seconds)

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until something is so, or the run has ended."""
        end = time.monotonic() + seconds
        while not is_so() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def ended(self, patience: float = 3) -> dict[str, Any]:
        """What there is once the run has ended, or was made to end, and its processes had so many seconds; as plain data."""
        left = self.left(patience)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if self.has_reader:
            self.reader.close()
        report = self.root / "r.json"
        return {
            "returncode": self.process.poll(),
            "stdout": "" if self.has_reader else (self.root / "stdout").read_text(encoding="utf-8", errors="replace"),
            "stderr": (self.root / "stderr").read_text(encoding="utf-8", errors="replace"),
            "report": json.loads(report.read_text(encoding="utf-8")) if report.exists() else None,
            "processes": list(left.values()),
            "files": sorted(path.name for path in self.temporary.iterdir() if not path.name.startswith(FOREIGN)),
        }

    def left(self, patience: float = 3) -> dict[int, str]:
        """The processes of the run that do not end, with their commands."""
        end = time.monotonic() + patience
        while (found := marked(self.token)) and time.monotonic() < end:
            time.sleep(0.05)
        return found


def marked(token: str) -> dict[int, str]:
    """The processes that carry ``token`` in their environment, with their commands."""
    found = {}
    mark = f"{TOKEN}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def run(mode: str, root: Path, *options: str, seconds: float) -> dict[str, Any]:
    """A whole run, and what it left."""
    running = Running(mode, root, options)
    running.wait(seconds)
    return running.ended()
