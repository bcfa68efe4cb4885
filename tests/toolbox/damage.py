"""Documents that are damaged as files are: cut, overwritten, spliced, or edited by a hand that knows the format."""

from __future__ import annotations

import random
import re

NUMBERS = [b"-1", b"0", b"1e999", b"-1e999", b"1e-999", b"9" * 400, b"9223372036854775808", b"-0.0", b"nan", b"inf", b"0x7f"]
TEXTS = [
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\x00",
    b"\x1b[31m",
    b"\n::error::x",
    b"\xe2\x80\xae",
    b"'" * 3,
    b'"',
    b"{",
    b"]",
]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def damaged(content: bytes, seed: str) -> bytes:
    """The content with one to three kinds of damage, the same ones for each seed."""
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 2, 3))):
        content = rng.choice(_KINDS)(content, rng)
    return content


def _place(content: bytes, rng: random.Random) -> int:
    return rng.randrange(len(content) + 1)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: _place(content, rng)]


def _without(content: bytes, rng: random.Random) -> bytes:
    start = _place(content, rng)
    return content[:start] + content[start + rng.randrange(1, 40) :]


def _twice(content: bytes, rng: random.Random) -> bytes:
    start, end = sorted((_place(content, rng), _place(content, rng)))
    return content[:end] + content[start:end] + content[end:]


def _overwritten(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 4, 32)) if content else 0):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _inserted(content: bytes, rng: random.Random) -> bytes:
    at = _place(content, rng)
    return content[:at] + rng.choice(TEXTS) * rng.choice((1, 1, 50)) + content[at:]


def _other_number(content: bytes, rng: random.Random) -> bytes:
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    match = rng.choice(found)
    return content[: match.start()] + rng.choice(NUMBERS) + content[match.end() :]


def _other_value(content: bytes, rng: random.Random) -> bytes:
    """Another kind of value behind a colon or an equals sign."""
    found = list(re.finditer(rb"[:=] ?[^\s,\]}]+", content))
    if not found:
        return content
    match = rng.choice(found)
    value = rng.choice((b"null", b"true", b"[]", b"{}", b'""', b'"x"', b"3", b"[[[[1]]]]", b"{x = 1}", b'{"a": 1}'))
    return content[: match.start() + 1] + b" " + value + content[match.end() :]


def _lines_swapped(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def _nested(content: bytes, rng: random.Random) -> bytes:
    at = _place(content, rng)
    return content[:at] + b"[" * 5000 + content[at:]


_KINDS = (
    _cut,
    _without,
    _twice,
    _overwritten,
    _flipped,
    _inserted,
    _other_number,
    _other_number,
    _other_value,
    _lines_swapped,
    _nested,
)
