"""What code does beside its answer: what it prints, logs and warns of, C++ included, and how long it takes."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

LIMIT = 20_000
"""How many characters are kept, counted from the end."""

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal colours, which torch writes into messages even where no terminal reads them."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A warning, or a record of a log from WARNING upwards, and the line of code that it speaks of."""

    message: str
    filename: str = ""
    line: int = 0


@dataclass
class Captured:
    """What was caught; complete once the block has ended."""

    text: str = ""
    notices: list[Notice] = field(default_factory=list)


class _Records(logging.Handler):
    """Keeps what is logged: once as text, and from WARNING upwards as notices."""

    def __init__(self, sink: IO[str], notices: list[Notice]) -> None:
        super().__init__()
        self._sink = sink
        self._notices = notices

    def emit(self, record: logging.LogRecord) -> None:
        self._sink.write(self.format(record) + "\n")
        if record.levelno >= logging.WARNING:
            self._notices.append(Notice(message=record.getMessage()))


_journal: IO[str] | None = None
"""Where this process writes everything, if it is one that others watch; see :func:`keep_journal`."""


def keep_journal(descriptor: int) -> None:
    """From now on, write all that this process prints to the file behind ``descriptor``, opened for appending.

    Whoever watches the process can read there what it said last, even where it dies.
    """
    global _journal
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    _journal = open(descriptor, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = _journal  # type: ignore[misc]


@contextlib.contextmanager
def captured() -> Iterator[Captured]:
    """Catch what Python code prints, logs and warns of, and what C++ writes to the process' own streams."""
    result = Captured()
    with contextlib.ExitStack() as stack:
        if _journal is None:
            sink: IO[str] = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            stack.enter_context(_redirected_descriptors(sink.fileno()))
        else:
            sink = _journal
        start = _size(sink)
        handler = _Records(sink, result.notices)
        root = logging.getLogger()
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("always")
            root.addHandler(handler)
            try:
                yield result
            finally:
                root.removeHandler(handler)
        result.notices.extend(Notice(message=str(w.message), filename=w.filename, line=w.lineno) for w in caught)
        printed = ESCAPES.sub("", last_of(sink.fileno(), start, _size(sink))).strip()
        os.ftruncate(sink.fileno(), start)  # what is told here, an outer block does not tell again
    said = [f"{w.category.__name__}: {w.message} ({w.filename}, line {w.lineno})" for w in caught]
    result.text = "\n".join(filter(None, [printed, *dict.fromkeys(said)]))[-LIMIT:]


def _size(sink: IO[str]) -> int:
    sink.flush()
    _flush_c()
    return os.fstat(sink.fileno()).st_size


def last_of(descriptor: int, start: int, end: int) -> str:
    """The last :data:`LIMIT` characters between two offsets of an open file."""
    first = max(start, end - 4 * LIMIT)  # no character takes more than four bytes
    return os.pread(descriptor, end - first, first).decode(errors="replace")[-LIMIT:]


def _flush_c() -> None:
    """Write out what C++ has printed: into a file or a pipe it prints when its buffer is full, or when the process ends."""
    with contextlib.suppress(OSError, TypeError, AttributeError):  # Windows has no library of that name
        ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def _redirected_descriptors(target: int) -> Iterator[None]:
    """Point the process' standard output and error at ``target``."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    _flush_c()
    saved = {}
    try:
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):  # a stream that the caller closed needs no redirection
                saved[descriptor] = os.dup(descriptor)
                os.dup2(target, descriptor)
        yield
    finally:
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)


_told: Callable[[str], None] | None = None


def tell_stages(listener: Callable[[str], None]) -> None:
    """From now on, tell ``listener`` the name of each stage as it begins."""
    global _told
    _told = listener


@contextlib.contextmanager
def timed(stage: str, timings: dict[str, float]) -> Iterator[None]:
    """Add the seconds that the block takes to ``timings[stage]``."""
    if _told is not None:
        _told(stage)
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[stage] = round(timings.get(stage, 0.0) + time.perf_counter() - start, 4)
