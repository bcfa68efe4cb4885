"""Captures what code prints, logs and warns about, including C++ code, and measures how long it takes."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.stages import ACTIVITY

LIMIT = 20_000
_MOST_ALIKE = 16
"""How many of the same warnings about one line are kept: several lines of a project may lead to one of a library."""
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal colours, which torch writes into messages even without a terminal."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A warning, or a log record of level WARNING or higher, and the line of code that it is about."""

    message: str
    filename: str = ""
    line: int = 0
    stack: Sequence[tuple[str, int]] = ()
    """The files and lines that were running within the block, the innermost first."""


@dataclass
class Captured:
    """What was captured; complete once the block has ended."""

    text: str = ""
    notices: list[Notice] = field(default_factory=list)


class _Records(logging.Handler):
    """Keeps log records as text and, from level WARNING upwards, as notices."""

    def __init__(self, sink: IO[str], notices: list[Notice]) -> None:
        super().__init__()
        self._sink = sink
        self._notices = notices

    def emit(self, record: logging.LogRecord) -> None:
        self._sink.write(self.format(record) + "\n")
        if record.levelno >= logging.WARNING:
            self._notices.append(Notice(message=record.getMessage()))


_kept_output: IO[str] | None = None
"""The file that gets the output of a supervised process; see :func:`keep_output`."""


def keep_output(descriptor: int) -> None:
    """From now on, write all that this process prints to a file, opened for appending, which its supervisor can read."""
    global _kept_output
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    _kept_output = open(descriptor, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = _kept_output  # type: ignore[misc]


@contextlib.contextmanager
def captured(*, limit: int = LIMIT) -> Iterator[Captured]:
    """Capture what Python code prints, logs and warns about, and what C++ writes to the process's own streams."""
    result = Captured()
    lines: Counter[str] = Counter()
    caller = next(
        frame for frame, _ in traceback.walk_stack(sys._getframe(1)) if frame.f_code.co_filename != contextlib.__file__
    )

    def note(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        """Note a warning. ``warnings.catch_warnings(record=True)`` would not know what was running."""
        text = f"{category.__name__}: {message} ({filename}, line {lineno})"
        lines[text] += 1
        if lines[text] > _MOST_ALIKE:
            return
        running = itertools.takewhile(lambda each: each[0] is not caller, traceback.walk_stack(sys._getframe(1)))
        stack = [(frame.f_code.co_filename, number) for frame, number in running]
        result.notices.append(Notice(message=str(message), filename=filename, line=lineno, stack=stack))

    with contextlib.ExitStack() as stack:
        if _kept_output is None:
            sink: IO[str] = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            stack.enter_context(_redirected_descriptors(sink.fileno()))
        else:
            sink = _kept_output
        start = _size(sink)
        handler = _Records(sink, result.notices)
        root = logging.getLogger()
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("always")
            warnings.showwarning = note
            root.addHandler(handler)
            try:
                yield result
            finally:
                root.removeHandler(handler)
        printed = ESCAPES.sub("", last_of(sink.fileno(), start, _size(sink), limit)).strip()
        os.ftruncate(sink.fileno(), start)  # an outer block must not capture it again
        os.lseek(sink.fileno(), start, os.SEEK_SET)
    result.text = "\n".join(filter(None, [printed, *lines]))[-limit:]


def _size(sink: IO[str]) -> int:
    sink.flush()
    _flush_c()
    return os.fstat(sink.fileno()).st_size


def last_of(descriptor: int, start: int, end: int, limit: int = LIMIT) -> str:
    """The last ``limit`` characters between two offsets of an open file."""
    first = max(start, end - 4 * limit)  # a character takes at most four bytes
    return _read_at(descriptor, end - first, first).decode(errors="replace")[-limit:]


def _read_at(descriptor: int, count: int, offset: int) -> bytes:
    if hasattr(os, "pread"):  # not on Windows
        return os.pread(descriptor, count, offset)
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, offset, os.SEEK_SET)
    try:
        return os.read(descriptor, count)
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


def _flush_c() -> None:
    """Flush what C++ has printed: to a file or a pipe, it is written only when its buffer is full or the process ends."""
    with contextlib.suppress(OSError, TypeError, AttributeError):  # Windows has no library of that name
        ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def _redirected_descriptors(target: int) -> Iterator[None]:
    """Redirect the process's standard output and error to ``target``."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    _flush_c()
    saved = {}
    try:
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):  # the caller may have closed the stream
                saved[descriptor] = os.dup(descriptor)
                os.dup2(target, descriptor)
        yield
    finally:
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)


def fill_standard_descriptors() -> None:
    """Open those of the first three descriptors that are closed. A new file with such a number would get what is printed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


_stage_listener: Callable[[str], None] | None = None


def report_stages(listener: Callable[[str], None]) -> None:
    """From now on, call ``listener`` with the name of each stage as it begins."""
    global _stage_listener
    _stage_listener = listener


@contextlib.contextmanager
def timed(stage: str, timings: dict[str, float]) -> Iterator[None]:
    """Add the seconds that the block takes to ``timings[stage]``."""
    if stage not in ACTIVITY:
        raise AssertionError(f"{stage!r} is timed, so it needs an activity in onnx_ci/results/stages.py")
    if _stage_listener is not None:
        _stage_listener(stage)
    start = CLOCK.perf_counter()
    try:
        yield
    finally:
        timings[stage] = round(timings.get(stage, 0.0) + CLOCK.perf_counter() - start, 4)
