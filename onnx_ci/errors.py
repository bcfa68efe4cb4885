"""Errors that users can cause, with their exit codes, and the words of their messages."""

from __future__ import annotations

import difflib
import enum
import errno
import os
import signal
import traceback
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import ClassVar

from onnx_ci.owners import Owner, owner_of


class ExitCode(enum.IntEnum):
    """The exit codes of the ``onnx-ci`` command. That of a run is chosen in :func:`onnx_ci.results.verdict.exit_code`."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    INTERNAL = 3
    ENVIRONMENT = 4
    NOTHING_RAN = 5


INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a command that Ctrl-C has ended, as a shell reports it; click's own is that of a failed cell."""


class OnnxCiError(Exception):
    """An error that the user can fix. The message says what to do."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class ConfigurationError(OnnxCiError):
    """A setting is unknown, or its value is invalid."""


class UnwrittenError(ConfigurationError):
    """A file cannot be written at the end of a run. The results of the run are known."""


class RecipeError(OnnxCiError):
    """A recipe, or a recipe file, cannot be used."""


class EnvironmentLacksError(OnnxCiError):
    """The environment lacks something that is required: a package, a device."""

    exit_code = ExitCode.ENVIRONMENT


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_OPEN_FILES = (errno.EMFILE, errno.ENFILE)


def disk_error(error: BaseException | None) -> OSError | None:
    """The error of a full or read-only disk that caused ``error``, or ``None``."""
    return _os_error(error, _DISK)


def open_files_error(error: BaseException | None) -> OSError | None:
    """The error of too many open files that caused ``error``, or ``None``."""
    return _os_error(error, _OPEN_FILES)


def _os_error(error: BaseException | None, numbers: Collection[int]) -> OSError | None:
    chain: list[BaseException] = []
    cause = error
    while cause is not None and cause not in chain:
        if isinstance(cause, OSError) and cause.errno in numbers:
            return cause
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return None


_LONGEST_MESSAGE = 600
"""The limit on the length of a message in one line. Messages of exporters can have pages."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """``"; did you mean 'opsets'?"`` for the choice nearest to ``name``, or an empty text."""
    nearest = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def nearest_file(path: Path) -> str:
    """``"; did you mean 'net.onnx'?"`` for the file whose name is nearest to that of the missing ``path``, or an empty text."""
    return did_you_mean(path.name, [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else [])


def working_directory() -> Path:
    """The working directory; the root of the file system if a recipe has changed to a folder that is removed since."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


def existing_file(path: Path) -> Path:
    """``path``, if it is a file. Otherwise, ``ConfigurationError`` suggests the nearest name."""
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigurationError(f"{path} is a directory; pass a file in it")
    if os.path.lexists(path):
        raise ConfigurationError(f"{path} is not a file but a device, a pipe, a socket or a link that leads to no file")
    raise ConfigurationError(f"there is no file {path}{nearest_file(path)}")


def message_of(error: BaseException) -> str:
    """An exception's message; empty if its class raises where it is asked for."""
    try:
        return str(error)
    except Exception:
        return ""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or the name of its class if the message is empty."""
    return (message_of(error).strip() or type(error).__name__).splitlines()[0]


def describe_exception(error: BaseException) -> str:
    """An exception of user code in one line: its type, its message, and the line of user code.

    Of a very long message, the middle is left out: load_state_dict, for one, says at the end what the checkpoint has instead.
    """
    place = describe_place(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__qualname__}: {error.msg}{place}"
    message = " ".join(message_of(error).encode(errors="replace").decode().split()) or "no message"  # without lone surrogates
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[: _LONGEST_MESSAGE // 2]} … {message[-_LONGEST_MESSAGE // 2 :]}"
    return f"{type(error).__qualname__}: {message}{place}"


def describe_place(error: BaseException) -> str:
    """``" (onnx_recipes.py, line 4)"``: the place that :func:`place_of` finds, or an empty text."""
    place = place_of(error)
    if place is None:
        return ""
    file, folder = Path(place[0]), working_directory()
    return f" ({file.relative_to(folder) if file.is_relative_to(folder) else file}, line {place[1]})"


def place_of(error: BaseException) -> tuple[str, int] | None:
    """The file and line of the user code that raised ``error``: the innermost one of the project, or else of a library."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 1
    frames = [(frame.filename, frame.lineno or 1) for frame in reversed(traceback.extract_tb(error.__traceback__))]
    owners = [owner_of(filename) for filename, _ in frames]
    owner = next((owner for owner in (Owner.PROJECT, Owner.LIBRARY) if owner in owners), None)
    return None if owner is None else frames[owners.index(owner)]
