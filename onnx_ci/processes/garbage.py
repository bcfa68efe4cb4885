"""Keeps Python's garbage collector from traversing objects that stay alive."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector within the block, which imports modules or reads large files.

    It creates hundreds of thousands of objects that stay alive, and the collector would traverse them again and again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@functools.cache  # not by gc.get_freeze_count(): Python 3.12 freezes a few objects itself
def keep_what_exists() -> None:
    """Exclude all objects that exist now from garbage collection. Later calls do nothing."""
    gc.freeze()


@functools.cache
def leave_garbage_at_exit() -> None:
    """Let this process end without a last garbage collection, which takes half a second once torch is imported."""
    atexit.register(gc.freeze)
