"""The signals that end this process: handled as Ctrl-C is, so that what is known is written first; or sent with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_ENDINGS = tuple(number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None)
"""What ``timeout``, a cancelled job and a container that stops send, and a terminal that closes. Windows has no SIGHUP."""


class EndedBySignal(KeyboardInterrupt):
    """This process was asked to end."""


@contextlib.contextmanager
def endings_as_interrupts() -> Iterator[None]:
    """Within the block, raise :class:`EndedBySignal` where SIGTERM or SIGHUP would end this process at once.

    A handler that somebody else has set is left alone, and so is a signal that is ignored, as by ``nohup``. After the first
    one, others are ignored until the block ends, so that they do not cost what the first one let be written.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread can
        yield
        return
    taken = [number for number in _ENDINGS if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)
        raise EndedBySignal(signal.Signals(number).name)

    for each in taken:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(number: signal.Signals) -> None:
    """Have the system send this process a signal when its parent ends, however that ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
