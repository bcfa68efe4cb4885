"""pytest's output, whose failure costs no result."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def outlast_output(writer: Any) -> list[OSError]:
    """Let pytest's terminal writer do nothing once it cannot write. Returns a list that gets the error."""
    errors: list[OSError] = []

    def lasting(write: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(write)
        def attempt(*args: object, **keywords: object) -> None:
            if not errors:
                try:
                    write(*args, **keywords)
                except OSError as error:
                    errors.append(error)
                    atexit.register(_discard_output)  # at the end, because capturing restores the descriptor until then

        return attempt

    for name in ("write", "write_raw", "flush"):
        if hasattr(writer, name):  # pytest has write_raw from version 9
            setattr(writer, name, lasting(getattr(writer, name)))
    return errors


def _discard_output() -> None:
    """What is still in the buffer would fail again when Python ends."""
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
