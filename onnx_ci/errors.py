"""What a user can cause, each kind with its exit code, and how a mistake is told."""

from __future__ import annotations

import difflib
import enum
import errno
import os
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class ExitCode(enum.IntEnum):
    """The exit codes of the ``onnx-ci`` command."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    INTERNAL = 3
    ENVIRONMENT = 4
    NOTHING_RAN = 5


class OnnxCiError(Exception):
    """A mistake that its reader can mend. The message says what to do next."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class ConfigurationError(OnnxCiError):
    """A setting is misspelt, or its value cannot be used."""


class RecipeError(OnnxCiError):
    """A recipe, or the file that should hold one, cannot be used as it stands."""


class EnvironmentLacksError(OnnxCiError):
    """The environment lacks something that was asked for: a package, a device."""

    exit_code = ExitCode.ENVIRONMENT


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def disk_error(error: BaseException | None) -> OSError | None:
    """What kept a file from being written, if that is behind ``error``."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, OSError) and error.errno in _DISK:
            return error
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None


_LONGEST_MESSAGE = 600
"""Characters of a message in one line; exporters write pages."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``"; did you mean 'opsets'?"`` for the choice nearest to ``word``, or nothing."""
    nearest = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def first_line(error: BaseException) -> str:
    """The first line of what a library raised, or the name of its class where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe_exception(error: BaseException, *, not_from: Iterable[str | Path] = ()) -> str:
    """One line for an exception raised by a user's code: type, message, and the user's own line.

    Args:
        error: the exception, with its traceback. A message of several lines is joined, a very long one cut.
        not_from: directories whose frames are not the user's (this package, torch).
    """
    foreign = tuple(os.path.realpath(directory) + os.sep for directory in (Path(__file__).parent, *not_from))
    name = type(error).__qualname__
    message = " ".join(str(error).split()) or "no message"
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + " …"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not os.path.realpath(frame.filename).startswith(foreign)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{name}: {error.msg} ({_relative(error.filename)}, line {error.lineno})"
    where = f" ({_relative(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{name}: {message}{where}"


def _relative(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
