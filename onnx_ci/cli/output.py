"""Standard output whose failure costs no result: the command goes on without a reader, on a full disk and if it is closed.

Names and messages from outside are printed, too. GitHub's runner never takes them for commands, and no terminal does: whatever
a command prints goes through here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from onnx_ci.processes.capture import fill_standard_descriptors
from onnx_ci.text import without_commands, without_control


class LastingStream:
    """A text stream to which nothing more is written after writing has failed once, with that ``error``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_in_line = False
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, if that is still possible."""
        if self.error is None:
            prefix = "…" if self._is_in_line else ""  # a command is one only at the beginning of a line
            *lines, rest = text.replace("\r", "\n").rsplit("\n", 1)
            self._is_in_line = bool(rest.strip()) or (not lines and self._is_in_line)
            try:
                self._write(without_control(without_commands(prefix + text).removeprefix(prefix)))
            except OSError as error:
                self._give_up(error)
        return len(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:  # the stream's encoding is strict and lacks a character
            self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))

    def flush(self) -> None:
        """Flush, if that is still possible."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = error
        # What is still in the buffer would fail again when Python ends.
        with contextlib.suppress(OSError), Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), self._stream.fileno())

    @property
    def is_incomplete(self) -> bool:
        """Whether somebody misses what was not written. A reader that stopped, such as ``head``, has what it wanted."""
        return self.error is not None and self.error.errno not in (errno.EPIPE, errno.ECONNRESET)


@contextlib.contextmanager
def lasting_output() -> Iterator[LastingStream]:
    """Within the block, standard output and standard error are such streams. Yields standard output."""
    fill_standard_descriptors()  # the caller may have closed them
    originals = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nothing:
        out, err = (LastingStream(stream or nothing) for stream in originals)
        sys.stdout, sys.stderr = out, err
        try:
            yield out
        finally:
            for stream in (out, err):
                stream.flush()
            sys.stdout, sys.stderr = originals
