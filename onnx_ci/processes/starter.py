"""A thread that starts processes, and does nothing else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

_T = TypeVar("_T")


class Starter:
    """A thread in which processes are started.

    On Linux a process ends when the thread that started it does, so this one outlives them. And OpenMP ties its worker threads
    to the thread that first used them: a fork from that one would wait for them forever.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[object, Exception | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, start: Callable[[], _T]) -> _T:
        """What ``start`` returns, called in the thread.

        Raises:
            OSError: no thread can be started.
            Exception: whatever ``start`` raises.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="onnx-ci starter", daemon=True)
            start_thread(thread)
            self._thread = thread
        self._asked.put(start)
        answer, error = self._answers.get()
        if error is not None:
            raise error
        return cast("_T", answer)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while (start := self._asked.get()) is not None:
            try:
                self._answers.put((start(), None))
            except Exception as error:  # the caller must not wait forever
                self._answers.put((None, error))


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        OSError: the system refuses it.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(str(error)) from error
