"""The clocks as they were before any recipe was imported, which may stop them: a test of the project, or freezegun."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Not the functions of a module, which freezegun replaces wherever it finds them."""

    monotonic: Callable[[], float] = time.monotonic
    perf_counter: Callable[[], float] = time.perf_counter
    thread_time: Callable[[], float] = time.thread_time


CLOCK = Clock()
