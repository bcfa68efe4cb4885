"""The signals that end this process. They are handled like Ctrl-C, so that a run can write its report first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_ENDINGS = tuple(number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None)
"""The signals of ``timeout``, of cancelled jobs and stopped containers, and of closed terminals. Windows has no SIGHUP."""
_received: list[int] = []
"""The signals so far that raised an interrupt in this process."""


def was_interrupted() -> bool:
    """Whether this process was asked to end. A module whose import is interrupted can raise anything, also on later use."""
    return bool(_received)


@contextlib.contextmanager
def interrupts_noted() -> Iterator[None]:
    """Within the block, :func:`was_interrupted` also knows of Ctrl-C."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def note(number: int, frame: FrameType | None) -> NoReturn:
        _received.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _received.clear()


@contextlib.contextmanager
def endings_as_interrupts() -> Iterator[None]:
    """Within the block, raise a :class:`KeyboardInterrupt` where SIGTERM or SIGHUP would end this process at once.

    Other handlers stay, and so do ignored signals, as under ``nohup``. After the first signal, others are ignored until the
    block ends, so that they do not interrupt the writing of the report.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set handlers
        yield
        return
    handled = [number for number in _ENDINGS if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for ending in handled:
            signal.signal(ending, signal.SIG_IGN)
        _received.append(number)
        raise KeyboardInterrupt(signal.Signals(number).name)

    for ending in handled:
        signal.signal(ending, end)
    try:
        yield
    finally:
        for ending in handled:
            signal.signal(ending, signal.SIG_DFL)


@contextlib.contextmanager
def no_forks_leave() -> Iterator[None]:
    """End each process that the block forks where it would leave the block and go on as this one.

    A model that forks whenever it runs would otherwise fill the machine: what forks goes on to run it again.
    """
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(1)


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(number: signal.Signals) -> None:
    """Let the system send this process a signal when its parent ends for any reason; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
