"""Text from outside, made safe to show: control characters and bidirectional overrides cannot hide or reorder anything."""

from __future__ import annotations

import re

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` without characters that a page cannot show, or that change the order in which it shows the others.

    Terminal colour sequences are removed. A carriage return ends a line. Other control characters below U+0020 become their
    pictures (``␇``); the remaining ones, lone surrogates and bidirectional controls become the replacement character.
    """
    if text.isprintable():
        return text
    text = _ESCAPE_SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSHOWABLE.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\N{REPLACEMENT CHARACTER}", text)
