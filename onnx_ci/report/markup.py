"""Text from outside as markup that shows it, whatever it holds."""

from __future__ import annotations

import html
import re

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` without what a page cannot show, or what would show it in another order than it has.

    Sequences that colour a terminal go. Control characters become their pictures; halves of characters, which no file can
    hold, and marks that turn the direction of writing become question marks. A carriage return ends a line.
    """
    if text.isprintable():
        return text
    text = _ESCAPE_SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSHOWABLE.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\N{REPLACEMENT CHARACTER}", text)


def escape(value: object) -> str:
    """``value`` as HTML that shows it, in content and in attributes alike."""
    return html.escape(printable(str(value)))
