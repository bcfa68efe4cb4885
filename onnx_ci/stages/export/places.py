"""How messages name a line of code."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

_OF_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages. An environment can use those of another one, which it does not list as its own."""


def place_in_project(filename: str, line: int) -> str:
    """A line of the user's code, such as ``model.py, line 26``; empty for installed packages and unknown files."""
    return shown_place(filename, line) if is_in_project(filename) else ""


@functools.cache
def is_in_project(filename: str) -> bool:
    """Whether a file is the user's: it is known, and not in an installed package."""
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")} | {Path(__file__).parents[2]}
    path = Path(filename)
    is_of_package = bool(_OF_PACKAGES & {*path.parts}) or any(path.is_relative_to(folder) for folder in installed)
    return bool(filename) and not is_of_package


def shown_place(filename: str, line: int) -> str:
    """A line of any code, relative to the working directory if it is below it."""
    return f"{shown_path(filename)}, line {line}"


def shown_path(filename: str) -> Path:
    """A file, relative to the working directory if it is below it."""
    path = Path(filename)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
