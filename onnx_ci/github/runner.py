"""Messages to GitHub's runner: annotations, groups of the log, outputs and the job's summary. Also runs commands in its log.

github-action-toolkit writes annotations and the summary where it can be imported. Before it is installed, and in the action
that publishes, which installs nothing, this module does. Text is escaped first, because the toolkit does not escape line breaks
in messages, and a line that begins with ``::`` is a command. Outputs are always written here, because the toolkit encodes them
and the runner does not decode them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from onnx_ci.processes.capture import ESCAPES
from onnx_ci.processes.signals import endings_as_interrupts
from onnx_ci.report.markup import fitting, size_of

SUMMARY_LIMIT = 1024 * 1024
"""Bytes of a step's summary; GitHub does not show longer ones."""
ANNOTATION_LIMIT = 10
"""How many errors, and how many warnings, GitHub shows for a step."""
_MESSAGE_LIMIT = 4096
"""Characters of an annotation's message; the runner cuts off the rest."""
_LAST_LINES = 20
_AFTERWARDS = 5.0
"""Seconds in which processes that a command leaves running may still write to the log."""


@functools.cache
def _toolkit() -> Any:
    """github-action-toolkit, or ``None`` if it is not installed or cannot be imported (without git, for example)."""
    try:
        return importlib.import_module("github_action_toolkit")
    except Exception:  # the gate reports its results without it
        return None


def escape(text: str) -> str:
    """``text`` as the message of a workflow command, in one line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def annotate(level: str, message: str, *, title: str = "onnx-ci", file: str | None = None, line: int | None = None) -> None:
    """Show an ``error``, ``warning`` or ``notice`` on the page of the run, and at a line of the repository's ``file``."""
    data = escape(message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 2] + " …")
    places = {"title": title, "file": file, "line": line}
    if toolkit := _toolkit():
        getattr(toolkit, level)(data, **places)
    else:
        texts = {
            name: escape(str(value)).replace(":", "%3A").replace(",", "%2C")
            for name, value in places.items()
            if value is not None
        }
        print(f"::{level} {','.join(f'{name}={text}' for name, text in texts.items())}::{data}")


@contextlib.contextmanager
def group(title: str) -> Iterator[None]:
    """Put what is printed into a collapsed group ``title`` of the log."""
    print(f"::group::{escape(title)}")
    try:
        yield
    finally:
        print("::endgroup::")


@contextlib.contextmanager
def no_commands() -> Iterator[None]:
    """Stop the runner from interpreting what is printed as commands."""
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", flush=True)
    try:
        yield
    finally:
        # The line break comes first: a command is only recognized at the beginning of a line.
        print(f"\n::{token}::", flush=True)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    last_lines: tuple[str, ...]
    """The last lines of its output."""

    @property
    def message(self) -> str:
        """The last message of onnx-ci itself, or else the last line."""
        messages = [line for line in self.last_lines if line.startswith("onnx-ci: ")]
        return messages[-1].removeprefix("onnx-ci: ") if messages else next(reversed(self.last_lines), "")


def run(command: Sequence[str], *, directory: str | None = None, output: Path | None = None) -> Ended:
    """Run a command without a shell. What it prints goes to the log, as text only, or into the file ``output``."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    over = threading.Event()
    with no_commands(), contextlib.ExitStack() as files:
        stdout = subprocess.PIPE if output is None else files.enter_context(output.open("wb"))
        stderr = subprocess.STDOUT if output is None else subprocess.PIPE  # one pipe: the order of lines is kept
        try:
            process = subprocess.Popen(
                command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
            )
        except OSError as error:
            return Ended(code=127, last_lines=(f"{command[0]} cannot be started: {error.strerror or error}",))
        reader = threading.Thread(target=_forward, args=(process.stdout or process.stderr, last, over), daemon=True)
        reader.start()
        code = _wait(process)
        # A process that the command left running keeps the pipe open; its later output is not shown.
        reader.join(_AFTERWARDS)
        over.set()
    return Ended(code=code, last_lines=tuple(last))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process. If the job is cancelled, the process is interrupted and can still write its results."""
    try:
        with endings_as_interrupts():
            return process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(ValueError, OSError):  # Windows does not support it
            process.send_signal(signal.SIGINT)
        return process.wait()


def _forward(stream: IO[bytes], last: deque[str], over: threading.Event) -> None:
    """Write each line of a stream to the log until ``over`` is set, and keep the last ones."""
    with stream:
        for line in stream:
            if over.is_set():
                return
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            if text := ESCAPES.sub("", line.decode(errors="replace")).strip():
                last.append(text)


def write_output(name: str, value: str) -> None:
    """Set an output of the step. The delimiter is random, so that no value can end itself and begin another output."""
    if target := os.environ.get("GITHUB_OUTPUT"):
        end = f"end-{secrets.token_hex(16)}"
        with Path(target).open("a", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
            stream.write(f"{name}<<{end}\n{value}\n{end}\n")


def add_summary(markdown: str) -> None:
    """Add ``markdown`` to the job's summary page, shortened to what GitHub shows."""
    if not (target := os.environ.get("GITHUB_STEP_SUMMARY")):
        return
    file = Path(target)
    text = shortened(markdown, SUMMARY_LIMIT - (file.stat().st_size if file.is_file() else 0))
    text = text.encode("utf-8", errors="replace").decode()
    if toolkit := _toolkit():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the toolkit does not close the file
            toolkit.JobSummary().add_raw(text).write()
    else:
        with file.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(text)


_PIECE = re.compile(r"^(?=### |\| opset \|)", re.MULTILINE)
"""The beginning of a failure or of the grid."""


def shortened(markdown: str, limit: int) -> str:
    """``markdown`` in fewer than ``limit`` bytes: the verdict, whole failures, and the first rows of the grid."""
    if size_of(markdown) < limit:
        return markdown
    head, *pieces = _PIECE.split(markdown)
    failures = [piece for piece in pieces if piece.startswith("### ")]
    lines = "".join(piece for piece in pieces if piece not in failures).splitlines(keepends=True)
    room = limit - 200  # for the counts of what is omitted
    start = fitting(head.splitlines(keepends=True), room // 4)
    grid = fitting(lines, room // 2)
    shown = fitting(failures, room - size_of("".join(start + grid)))
    omitted_lines = sum(bool(line.strip()) for line in lines[len(grid) :])
    omitted_failures = len(failures) - len(shown)
    return "".join([*start, *shown, _more(omitted_failures, "failures"), *grid, _more(omitted_lines, "lines")])


def _more(count: int, noun: str) -> str:
    return f"\n… and {count} more {noun}, in the report.\n\n" if count else "\n"
