"""Small pieces of sentences, the same wherever a sentence is made."""

from __future__ import annotations

from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """``1 cell``, ``3 cells``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(words: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def one_line(text: str) -> str:
    """``text`` without anything that moves a terminal's cursor or begins a line."""
    return "".join(each if each.isprintable() else " " if each.isspace() else "\N{REPLACEMENT CHARACTER}" for each in text)
