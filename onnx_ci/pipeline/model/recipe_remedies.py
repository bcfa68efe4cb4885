"""The remedy for a recipe whose function raises because the machine lacks a file or a package."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

_SIGNS_OF_POINTERS = {
    "UnpicklingError": ("invalid load key, 'v'", "Unsupported operand 118"),
    "SafetensorError": ("header too large",),
}
"""The parts of messages that say that a file begins with the letter v, as the pointers of Git LFS do, by class of error."""


def remedy_of(error: BaseException) -> str | None:
    """What helps a recipe that raises this error; ``None`` if that is not known."""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str) and not _is_of_program(error):
        return _remedy_of_missing(error.filename)
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package in sys.modules:
            return f"The {package} that is installed has no {error.name}: install another version of it."
        return f"Install what contains {package} where onnx-ci is installed; if it is your own project, with pip install -e ."
    if any(sign in str(error) for sign in _SIGNS_OF_POINTERS.get(type(error).__name__, ())):
        return "If the file is kept with Git LFS, run git lfs pull; in a workflow, give actions/checkout lfs: true."
    return None


def _remedy_of_missing(file: str) -> str | None:
    path = Path(file)
    if not file or "://" in file:
        return None
    if path.parts[:1] == ("~",):
        return f"Python does not replace ~ by itself: Path({file!r}).expanduser() does."
    if path.is_absolute():
        return "Put the file there, or let the recipe fetch it. A fresh clone has only what is committed."
    beside = f"Path(__file__).parent / {path.as_posix()!r}"
    return f"Relative paths begin where the command runs; one that begins beside the recipe's file is {beside}."


def _is_of_program(error: FileNotFoundError) -> bool:
    """Whether the missing file is a program that was to be started."""
    return traceback.extract_tb(error.__traceback__)[-1].filename == subprocess.__file__
