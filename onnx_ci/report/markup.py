"""Text from outside, made safe to show: none of its characters can hide or reorder others, end code or be markup."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """``text`` without characters that a page cannot show, or that change the order of others.

    Terminal colour sequences are removed. A carriage return ends a line. Other control characters below U+0020 become their
    pictures (``␇``); the remaining ones, lone surrogates, noncharacters and bidirectional controls become the replacement
    character.
    """
    if text.isprintable():
        return text
    text = _ESCAPE_SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSHOWABLE.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\N{REPLACEMENT CHARACTER}", text)


_BACKTICKS = re.compile("`+")


def code_span(text: str) -> str:
    """``text`` on one line as code in Markdown, also in a table.

    Only in code does GitHub find no link, mention or HTML. Escaping is not enough: GitHub looks for mentions and references in
    the rendered page, where entities are characters again.
    """
    # A bar cannot be escaped in a table: a backslash in the text would escape the escape.
    line = " ".join(printable(text).split()).replace("|", "\N{BROKEN BAR}") or "?"
    fence = _fence(line, 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def code_block(text: str, language: str = "") -> list[str]:
    """``text`` as the lines of a code block in Markdown."""
    shown = printable(text)  # before the fence is chosen, because what it removes can stand between backticks
    fence = _fence(shown, 3)
    return [f"{fence}{language}", shown, fence]


def _fence(text: str, least: int) -> str:
    """More backticks than ``text`` has in a row, so that it cannot end the code."""
    return "`" * max(least, 1 + max((len(each) for each in _BACKTICKS.findall(text)), default=0))


def fitting(parts: Sequence[str], room: int) -> list[str]:
    """As many of the first ``parts`` as fit into ``room`` bytes."""
    sizes = itertools.accumulate(map(size_of, parts))
    return [part for part, size in zip(parts, sizes, strict=True) if size <= room]


def size_of(text: str) -> int:
    """How many bytes ``text`` has in a file."""
    return len(text.encode(errors="replace"))
