"""Documents that are damaged as files are: cut, overwritten, spliced, or edited by a hand that knows the format."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NUMBERS = [
    b"-1",
    b"0",
    b"1e999",
    b"-1e999",
    b"1e-999",
    b"9" * 400,
    b"9" * 5000,
    b"9223372036854775808",
    b"-0.0",
    b"nan",
    b"inf",
    b"0x7f",
]
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


# --- ONNX files that protobuf can read, but that say something impossible ------------------------------------------------

_WORDS = ("", "x" * 5000, "9" * 5000, "\x1b[31m", "\n::error::x", "..", "/etc/passwd", "m.onnx", "-1", "x")
_INTEGERS = (-1, 0, 1, 7, 8, 99, 2**31 - 1, -(2**31))
_LONG = (*_INTEGERS, 2**31, 2**62, 2**63 - 1, -(2**63))
_OF_TYPE: dict[int, tuple[object, ...]] = {
    FieldDescriptor.TYPE_STRING: _WORDS,
    FieldDescriptor.TYPE_BYTES: (b"\xff\xfe", *(word.encode() for word in _WORDS)),
    FieldDescriptor.TYPE_FLOAT: (float("nan"), float("inf"), -1.0, 0.0),
    FieldDescriptor.TYPE_DOUBLE: (float("nan"), float("inf"), -1.0, 0.0),
    FieldDescriptor.TYPE_INT32: _INTEGERS,
    FieldDescriptor.TYPE_INT64: _LONG,
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**64 - 1),
}


def damaged_model(content: bytes, seed: str) -> bytes:
    """An ONNX file with one to three fields cleared, doubled or of another value, the same ones for each seed."""
    rng = random.Random(seed)
    model = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        messages = list(_messages(model))
        kind = rng.choice(sorted({each.DESCRIPTOR.name for each in messages}))  # rare messages are as likely as frequent ones
        message = rng.choice([each for each in messages if each.DESCRIPTOR.name == kind])
        field = rng.choice(list(message.DESCRIPTOR.fields))
        if rng.random() < 0.2:
            message.ClearField(field.name)
        elif field.message_type is not None:
            alike = [each.SerializeToString() for each in messages if each.DESCRIPTOR is field.message_type]
            _set(message, field, rng.choice([*alike, b""]), rng)
        else:
            values = [each.number for each in field.enum_type.values] if field.enum_type else _OF_TYPE[field.type]
            _set(message, field, rng.choice(list(values)), rng)
    return model.SerializeToString()


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        for each in (value if field.is_repeated else [value]) if field.message_type else ():
            yield from _messages(each)


def _set(message: Message, field: FieldDescriptor, value: Any, rng: random.Random) -> None:
    """Give a field a value; if it is repeated, one more value, or another one, or one less."""
    present = getattr(message, field.name)
    if field.is_repeated and len(present) and rng.random() < 0.3:
        del present[rng.randrange(len(present))]
    elif field.message_type is not None:
        target = present.add() if field.is_repeated else present
        target.ParseFromString(value)
    elif not field.is_repeated:
        setattr(message, field.name, value)
    elif len(present) and rng.random() < 0.5:
        present[rng.randrange(len(present))] = value
    else:
        present.append(value)
