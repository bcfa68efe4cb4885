"""Text from outside, made safe to show: control characters and bidirectional overrides cannot hide or reorder anything."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """``text`` without characters that a page cannot show, or that change the order in which it shows the others.

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

    Nothing in code is a link, a mention or HTML, which holds for no other way of escaping text in a comment on GitHub: mentions
    and references are looked for in the rendered page, where entities are characters again.
    """
    # No escape of a bar is safe in a table: a backslash before it would be one.
    line = " ".join(printable(text).split()).replace("|", "\N{BROKEN BAR}") or "?"
    fence = _fence(line, 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def code_block(text: str, language: str = "") -> list[str]:
    """``text`` as the lines of a code block in Markdown."""
    shown = printable(text)  # first: what it removes can stand between backticks
    fence = _fence(shown, 3)
    return [f"{fence}{language}", shown, fence]


def _fence(text: str, least: int) -> str:
    """Backticks that no text can end: more of them than it has in a row."""
    return "`" * max(least, 1 + max((len(each) for each in _BACKTICKS.findall(text)), default=0))


def fitting(parts: Sequence[str], room: int) -> list[str]:
    """As many of the first ``parts`` as fit into ``room`` bytes."""
    kept: list[str] = []
    for part in parts:
        room -= size_of(part)
        if room < 0:
            break
        kept.append(part)
    return kept


def size_of(text: str) -> int:
    """How many bytes ``text`` has in a file."""
    return len(text.encode(errors="replace"))
