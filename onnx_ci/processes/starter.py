"""A thread that starts processes, and does nothing else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

_T = TypeVar("_T")


class Starter:
    """A thread in which processes are started.

    On Linux, the system kills a process when the thread ends that started it, so this thread outlives its processes. And OpenMP
    ties its worker threads to the thread that first used them. A fork of that thread would wait for them forever.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[object, Exception | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, start: Callable[[], _T]) -> _T:
        """Call ``start`` in the thread and return its result.

        Raises:
            OSError: no thread can be started.
            Exception: whatever ``start`` raises.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="onnx-ci starter", daemon=True)
            start_thread(thread)
            self._thread = thread
        self._requests.put(start)
        result, error = self._results.get()
        if error is not None:
            raise error
        return cast("_T", result)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while (start := self._requests.get()) is not None:
            try:
                self._results.put((start(), None))
            except Exception as error:  # the caller must not wait forever
                self._results.put((None, error))


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        OSError: the system refuses it.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(str(error)) from error
