"""Standard output that never costs a result: without a reader, on a full disk or closed, it only ends what is printed.

Names and messages from outside are printed, too, but never as commands to GitHub's runner.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from onnx_ci.text import without_commands


class LastingStream:
    """A text stream that is written to until that fails, and then no more.

    Attributes:
        error: why it failed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_in_line = False
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, if that is still possible."""
        if self.error is None:
            before = "…" if self._is_in_line else ""
            *ended, last = text.replace("\r", "\n").rsplit("\n", 1)
            self._is_in_line = bool(last.strip()) or (not ended and self._is_in_line)
            try:
                self._stream.write(without_commands(before + text).removeprefix(before))
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Flush, if that is still possible."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = error
        # What is still buffered would fail again, at the latest when Python ends.
        with contextlib.suppress(OSError), Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), self._stream.fileno())

    @property
    def is_incomplete(self) -> bool:
        """Whether somebody misses what was not written. A reader that stopped, such as ``head``, has what it wanted."""
        return self.error is not None and self.error.errno not in (errno.EPIPE, errno.ECONNRESET)


@contextlib.contextmanager
def lasting_output() -> Iterator[LastingStream]:
    """Within the block, standard output and standard error are such streams; the former is returned."""
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nothing:
        out, err = (LastingStream(stream or nothing) for stream in before)
        sys.stdout, sys.stderr = out, err
        try:
            yield out
        finally:
            for stream in (out, err):
                stream.flush()
            sys.stdout, sys.stderr = before
