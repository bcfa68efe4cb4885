"""Records as plain JSON data and back, validated on the way back.

Numbers that JSON cannot represent are written as strings: ``"inf"``, ``"-inf"`` and ``"nan"``.

This is written by hand, although msgspec reads a report of 9,000 cells in a quarter of the time: the program that publishes
verdicts (:mod:`onnx_ci.github.publish`) reads reports where nothing is installed, and two decoders could disagree about one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


class NotJsonError(ValueError):
    """A file is not JSON. The message ends the sentence "it is …"."""


def read_document(content: bytes) -> Any:
    """The data in a JSON document. Raises :class:`NotJsonError`, also for what cannot be printed or computed with."""
    try:
        data = json.loads(content.decode(), parse_constant=_refuse_constant)
        if _SURROGATE.search(content):
            json.dumps(data, ensure_ascii=False).encode()  # raises for a lone surrogate, which cannot be printed
    except UnicodeDecodeError:
        raise NotJsonError("not a text file") from None
    except (ValueError, RecursionError):
        raise NotJsonError("truncated or not JSON") from None
    return data


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escaped surrogate, for which UTF-8 has no bytes."""


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and infinities are not JSON


def to_json(value: Any) -> Any:
    """``value`` as data that :mod:`json` can write. Records become objects, tuples arrays, infinities and NaN strings."""
    kind: Any = type(value)
    if kind in _UNCHANGED:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if fields := _fields(kind):
        return {name: to_json(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value  # pytest-xdist sends no subclasses of str
    return value


_UNCHANGED = frozenset({str, int, bool, type(None)})


_TOO_LARGE = 1 << 63
"""Reports divide integers into floating-point numbers, which have a limit."""
_DEEPEST = 20
_LONGEST_SHARED = 64
"""The length up to which equal texts are one object: names occur in every cell of a report and in every message."""
_Reader = Callable[[Any], Any]


def from_json(kind: Any, data: Any, place: str = "") -> Any:
    """``data`` as a value of the type ``kind``, the inverse of :func:`to_json`. Raises ``ValueError`` with the place."""
    try:
        return _reader(kind)(data)
    except _MisfitError as misfit:
        misfit_place = "".join([place, *reversed(misfit.steps)]).removeprefix(".")
        raise ValueError(f"{misfit_place or 'it'} {misfit}") from None


class _MisfitError(Exception):
    """Data does not have its type. The message follows the place of the data."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.steps: list[str] = []
        """The way from the outermost data to this data, the last step first: ``.name`` or ``[index]``."""


@functools.cache
def _reader(kind: Any) -> _Reader:
    """The function that reads values of the type ``kind``. A large report has millions of values but few types."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if fields := _fields(kind):
        return _record_reader(kind, {name: _reader(hint) for name, hint in fields.items()})
    if origin is types.UnionType:
        read_value = _reader(inner[0])
        return lambda data: None if data is None else read_value(data)
    if origin is tuple:
        return _tuple_reader(kind, _reader(inner[0]))
    if origin is Mapping:
        return _mapping_reader(kind, _reader(inner[1]))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        members = {member.value: member for member in kind}
        return lambda data: members[data] if isinstance(data, str) and data in members else _refuse(kind, data)
    return {str: _text, int: _integer, float: _number, bool: _truth, Any: _anything}.get(kind, functools.partial(_refuse, kind))


def _record_reader(kind: Any, readers: Mapping[str, _Reader]) -> _Reader:
    def read(data: Any) -> Any:
        if type(data) is not dict and not isinstance(data, Mapping):  # the first test is faster
            raise _MisfitError(f"has no {next(iter(readers))!r}")
        values = {}
        name = ""
        try:
            for name, read_field in readers.items():
                values[name] = read_field(data[name])
        except KeyError:
            raise _MisfitError(f"has no {name!r}") from None
        except _MisfitError as misfit:
            misfit.steps.append(f".{name}")
            raise
        return kind(**values)

    return read


def _tuple_reader(kind: Any, read_item: _Reader) -> _Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, list):
            _refuse(kind, data)
        items: list[Any] = []
        try:
            items.extend(map(read_item, data))
        except _MisfitError as misfit:
            misfit.steps.append(f"[{len(items)}]")
            raise
        return tuple(items)

    return read


def _mapping_reader(kind: Any, read_value: _Reader) -> _Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            _refuse(kind, data)
        values = {}
        key: Any = None
        try:
            for key, value in data.items():
                values[_text(key)] = read_value(value)
        except _MisfitError as misfit:
            misfit.steps.append(f"[{shortened(key)}]")
            raise
        return values

    return read


def _text(data: Any) -> str:
    if type(data) is not str:
        _refuse(str, data)
    return sys.intern(data) if len(data) <= _LONGEST_SHARED else data


def _integer(data: Any) -> int:
    if type(data) is not int:
        _refuse(int, data)
    if not -_TOO_LARGE <= data < _TOO_LARGE:  # as in ONNX, whose integers have 64 bits
        raise _MisfitError(f"is {shortened(data)}, which is too large")
    return data


def _number(data: Any) -> float:
    if type(data) is float:
        return data
    if type(data) is int or data in ("inf", "-inf", "nan"):
        with contextlib.suppress(OverflowError):
            return float(data)
    return _refuse(float, data)


def _truth(data: Any) -> bool:
    return data if type(data) is bool else _refuse(bool, data)


def _anything(data: Any) -> Any:
    if _is_deeper(data, _DEEPEST):
        raise _MisfitError("is nested too deeply")
    return data


def _refuse(kind: Any, data: Any) -> NoReturn:
    raise _MisfitError(f"is {shortened(data)} and should be {getattr(kind, '__name__', kind)}")


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of a record's fields, by name; empty for other types."""
    return typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}


def field_of(data: Any, name: str, place: str = "") -> Any:
    """The field ``name`` of an object. Raises ``ValueError`` if it is missing."""
    if not isinstance(data, Mapping) or name not in data:
        raise ValueError(f"{place or 'it'} has no {name!r}")
    return data[name]


def _is_deeper(data: Any, levels: int) -> bool:
    """Whether data is nested more deeply than so many levels."""
    items = data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ()
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def shortened(value: object) -> str:
    """A short form of an invalid value."""
    return reprlib.repr(value)
