"""Records as plain JSON data and back, validated on the way back.

Numbers that JSON cannot represent are written as strings: ``"inf"``, ``"-inf"`` and ``"nan"``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import math
import reprlib
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, NoReturn


class NotJsonError(ValueError):
    """A file is not JSON; the message says what it is instead, as the end of a sentence."""


def read_document(content: bytes) -> Any:
    """The data in a JSON document from outside.

    Raises:
        NotJsonError: it is none, or has what cannot be printed or computed with.
    """
    try:
        data = json.loads(content.decode(), parse_constant=_refuse)
        json.dumps(data, ensure_ascii=False).encode()  # a lone surrogate, which JSON can escape, cannot be printed
    except UnicodeDecodeError:
        raise NotJsonError("not a text file") from None
    except (ValueError, RecursionError):
        raise NotJsonError("truncated or not JSON") from None
    return data


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and infinities are not JSON


def to_json(value: Any) -> Any:
    """``value`` as data that :mod:`json` can write: records become objects, tuples arrays, infinities and NaN strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value  # pytest-xdist sends plain data only, no subclasses of str
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


_TOO_LARGE = 1 << 63
"""Python's integers have no limit, but floating-point numbers, into which they are divided, do."""
_DEEPEST = 20
"""How deeply free-form data may be nested."""


def from_json(kind: Any, data: Any, place: str = "") -> Any:
    """``data``, as :mod:`json` reads it, as a value of the type ``kind``: the inverse of :func:`to_json`.

    An object for a record must have all of its fields; unknown keys are ignored.

    Args:
        kind: a record, an enumeration, a plain type, or tuples, mappings and unions of them, as in annotations.
        data: the data.
        place: its place in the document, for messages.

    Raises:
        ValueError: ``data`` is not such a value; the message says what is wrong, and where.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if fields := _fields(kind):
        return kind(**{name: from_json(hint, field_of(data, name, place), below(place, name)) for name, hint in fields.items()})
    if origin is types.UnionType:
        return None if data is None else from_json(inner[0], data, place)
    if origin is tuple and isinstance(data, list):
        return tuple(from_json(inner[0], each, f"{place}[{index}]") for index, each in enumerate(data))
    if origin is Mapping and isinstance(data, Mapping):
        return {_shared(key): from_json(inner[1], each, f"{place}[{shortened(key)}]") for key, each in data.items()}
    if isinstance(kind, enum.EnumType) and data in kind.__members__.values():
        return kind(data)
    if kind is float and (type(data) in (int, float) or data in ("inf", "-inf", "nan")):
        with contextlib.suppress(OverflowError):
            return float(data)
    if kind in (str, int, bool) and type(data) is kind:
        if kind is int and not -_TOO_LARGE < data < _TOO_LARGE:
            raise ValueError(f"{place or 'it'} is {shortened(data)}, which is too large")
        return _shared(data) if kind is str else data
    if kind is Any:
        if _depth(data) > _DEEPEST:
            raise ValueError(f"{place} is nested too deeply")
        return data
    raise ValueError(f"{place or 'it'} is {shortened(data)} and should be {getattr(kind, '__name__', kind)}")


_LONGEST_SHARED = 64
"""How many characters a text may have to be a name, of which a report has few."""


def _shared(text: str) -> str:
    """``text``, as one object wherever it occurs: names occur in every cell of a report, and of a run in every message."""
    return sys.intern(text) if len(text) <= _LONGEST_SHARED else text


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of a record's fields, by name; empty for other types."""
    return typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}


def field_of(data: Any, name: str, place: str = "") -> Any:
    """The field ``name`` of an object; raises ValueError if it is missing."""
    if not isinstance(data, Mapping) or name not in data:
        raise ValueError(f"{place or 'it'} has no {name!r}")
    return data[name]


def below(place: str, name: str) -> str:
    """The place of the field ``name`` of the object at ``place``."""
    return f"{place}.{name}" if place else name


def _depth(data: Any) -> int:
    inner = data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def shortened(value: object) -> str:
    """A short form of an invalid value."""
    return reprlib.repr(value)
