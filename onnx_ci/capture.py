"""What code does beside its answer: what it prints, logs and warns of, C++ included, and how long it takes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
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


@contextlib.contextmanager
def captured() -> Iterator[Captured]:
    """Catch what Python code prints, logs and warns of, and what C++ writes to the process' own streams."""
    result = Captured()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as sink:
        handler = _Records(sink, result.notices)
        root = logging.getLogger()
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
            _redirected_descriptors(sink.fileno()),
        ):
            warnings.simplefilter("always")
            root.addHandler(handler)
            try:
                yield result
            finally:
                root.removeHandler(handler)
                sink.flush()
        result.notices.extend(Notice(message=str(w.message), filename=w.filename, line=w.lineno) for w in caught)
        sink.seek(0)
        printed = ESCAPES.sub("", sink.read()).strip()
    said = [f"{w.category.__name__}: {w.message} ({w.filename}, line {w.lineno})" for w in caught]
    result.text = "\n".join(filter(None, [printed, *dict.fromkeys(said)]))[-LIMIT:]


@contextlib.contextmanager
def _redirected_descriptors(target: int) -> Iterator[None]:
    """Point the process' standard output and error at ``target``."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
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


@contextlib.contextmanager
def timed(stage: str, timings: dict[str, float]) -> Iterator[None]:
    """Add the seconds that the block takes to ``timings[stage]``."""
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[stage] = round(timings.get(stage, 0.0) + time.perf_counter() - start, 4)
