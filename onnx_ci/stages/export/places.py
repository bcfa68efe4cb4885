"""How messages name a line of code."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_OF_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages. An environment can use those of another one, which it does not list as its own."""


def place_in_project(filename: str, line: int) -> str:
    """A line of the user's code, such as ``model.py, line 26``; empty for installed packages and unknown files."""
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")} | {Path(__file__).parents[2]}
    path = Path(filename)
    if not filename or _OF_PACKAGES & {*path.parts} or any(path.is_relative_to(folder) for folder in installed):
        return ""
    return shown_place(filename, line)


def shown_place(filename: str, line: int) -> str:
    """A line of any code, relative to the working directory if it is below it."""
    path = Path(filename)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}, line {line}"
