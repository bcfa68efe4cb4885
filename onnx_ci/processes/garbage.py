"""When Python looks for garbage: not while modules are imported, whose objects stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Do not look for garbage within the block, which imports modules.

    The hundreds of thousands of objects that this creates are no garbage, and Python would look through them again and again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_what_exists() -> None:
    """Never look for garbage among the objects that exist when this process calls this for the first time."""
    if not gc.get_freeze_count():
        gc.freeze()
