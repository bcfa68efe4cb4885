"""pytest's output, whose failure costs no result."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


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
                    discard_buffer(sys.stdout)

        return attempt

    for name in ("write", "write_raw", "flush"):
        if hasattr(writer, name):  # pytest has write_raw from version 9
            setattr(writer, name, lasting(getattr(writer, name)))
    return errors


def discard_buffer(stream: TextIO) -> None:
    """Empty the buffer of a stream that cannot be written: pytest, and Python when it ends, would try again, and fail."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as nothing:
        descriptor = stream.fileno()
        kept = os.dup(descriptor)
        os.dup2(nothing.fileno(), descriptor)
        try:
            stream.flush()
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
