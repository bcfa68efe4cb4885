"""Parts of sentences: counted nouns, lists, and text without control characters or commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def count(number: int, noun: str) -> str:
    """``1 cell``, ``3 cells``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(items: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = list(items) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def listed_shortly(items: Sequence[str], most: int = 3) -> str:
    """``a, b, c and 4 more``: at most ``most`` of the items."""
    return listed(items if len(items) <= most else [*items[:most], f"{len(items) - most} more"])


def one_line(text: str) -> str:
    """``text`` without anything that moves a terminal's cursor or begins a line."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text)


_CONTROL = re.compile("(?!\x1b\\[[0-9]{1,2}m)[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_control(text: str) -> str:
    """``text`` without anything that controls a terminal, except the ends of lines, tabs and colours."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


_COMMAND = re.compile(r"(?:^|(?<=\r))[^\S\n]*:(?=:)|##(?=\[)", re.MULTILINE)


def without_commands(text: str) -> str:
    """``text`` without commands to GitHub's runner: ``##[``, and ``::`` at the beginning of a line, after spaces or not."""
    return _COMMAND.sub(lambda match: f"{match[0]} ", text)
