"""The kinds of value that a setting can have: how each is parsed, which TOML values it accepts, and how it is shown."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from onnx_ci.errors import did_you_mean
from onnx_ci.opsets import HIGHEST_PLAUSIBLE_OPSET, format_opsets, parse_opsets

Schema = Mapping[str, Any]
Value = TypeVar("Value")
EVERY_RECIPE = "*"
"""Stands for every recipe where a setting has values by the names of recipes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind(Generic[Value]):
    """One kind of value."""

    parse: Callable[[object], Value]
    """Parses the text of a flag or a TOML value. Raises ValueError with what is wrong."""
    schema: Schema
    """The TOML values that ``parse`` accepts, as JSON Schema."""
    show: Callable[[Value], str] = str
    """Formats the value as for a flag; the inverse of ``parse``."""
    metavar: str = ""
    """What help shows in the place of such a value, unless the option says something else."""


def words_in(value: object) -> tuple[str, ...]:
    """The words of a list, or of text with commas. Raises ValueError if there are none."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"must be a list of words, not {value!r}")
    words = tuple(part.strip() for part in parts if part.strip())
    if not words:
        raise ValueError("is empty")
    return tuple(dict.fromkeys(words))


WORDS = Kind(
    parse=words_in,
    schema={"type": ["string", "array"], "pattern": r"[^\s,]", "items": {"type": "string"}, "contains": {"pattern": r"\S"}},
    show=",".join,
    metavar="LIST",
)
GLOBS = replace(WORDS, metavar="GLOBS")


def list_schema(word: str) -> Schema:
    """The schema of a list, or of text with commas, whose words match a regular expression."""
    text = rf"^[\s,]*(?:{word})\s*(?:,[\s,]*(?:{word})\s*)*[\s,]*$"
    return {**WORDS.schema, "pattern": text, "items": {"type": "string", "pattern": rf"^\s*(?:{word})?\s*$"}}


def some_of(what: str, choices: Collection[str], pattern: str) -> Kind[tuple[str, ...]]:
    """A list of words from ``choices``, each a ``what`` in messages; in the schema, words that match ``pattern``."""

    def parse(value: object) -> tuple[str, ...]:
        words = words_in(value)
        for word in words:
            if word not in choices:
                raise ValueError(f"unknown {what} {word!r}; use {', '.join(choices)}{did_you_mean(word, choices)}")
        return words

    return Kind(parse=parse, schema=list_schema(pattern), show=",".join, metavar="LIST")


def one_of(choices: Sequence[str]) -> Kind[str]:
    """One word from ``choices``."""

    def parse(value: object) -> str:
        if value not in choices:
            alternatives = f"{', '.join(choices[:-1])} or {choices[-1]}"
            raise ValueError(f"must be {alternatives}, not {value!r}{did_you_mean(str(value), choices)}")
        return str(value)

    return Kind(parse=parse, schema={"enum": list(choices)}, metavar="|".join(choices))


# --- numbers ----------------------------------------------------------------------------------------------------------

_NUMBER = r"\+?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


def _numbers(which: str, is_right: Callable[[float], bool], limit: Schema) -> Kind[float]:
    """The finite numbers that are right. Messages say ``which``, and the schema has the ``limit``."""

    def parse(value: object) -> float:
        number = float("nan")
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)  # type: ignore[arg-type]
        if isinstance(value, bool) or not is_right(number) or number == float("inf"):
            raise ValueError(f"must be a number {which}, not {value!r}")
        return number

    schema = {"type": ["number", "string"], **limit, "pattern": rf"^\s*{_NUMBER}\s*$"}
    return Kind(parse=parse, schema=schema, show="{:.12g}".format)


POSITIVE_NUMBER = _numbers("above 0", lambda number: number > 0, {"exclusiveMinimum": 0})
NONNEGATIVE_NUMBER = _numbers("of at least 0", lambda number: number >= 0, {"minimum": 0})


def _count(value: object) -> int:
    try:
        count = int(value) if isinstance(value, (int, str)) else 0
    except ValueError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"must be an integer of at least 1, not {value!r}")
    return count


COUNT = Kind(parse=_count, schema={"type": ["integer", "string"], "minimum": 1, "pattern": r"^\s*\+?[\d_]+\s*$"}, metavar="N")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LARGEST_SIZE = 1e12
"""In any unit; more than any machine has."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTkmgt])(?:[iI]?[bB])?")


def _size(value: object) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or not 0 < float(match[1]) < _LARGEST_SIZE:
        raise ValueError(f"must be a size such as 8GiB or 512MiB, not {value!r}")
    return round(float(match[1]) * _UNITS[match[2].upper()])


def _show_size(size: int) -> str:
    mebibytes = f"{size / 2**20:.9f}".rstrip("0").rstrip(".")
    return f"{mebibytes}MiB"


MEMORY_SIZE = Kind(
    parse=_size, schema={"type": "string", "pattern": rf"^\s*{_SIZE.pattern}\s*$"}, show=_show_size, metavar="SIZE"
)

# --- switches, paths --------------------------------------------------------------------------------------------------

_ON, _OFF = ("true", "1"), ("false", "0")


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in (*_ON, *_OFF) or not isinstance(value, str):
        raise ValueError(f"must be true or false, not {value!r}")
    return value in _ON


SWITCH = Kind(parse=_switch, schema={"enum": [True, False, *_ON, *_OFF]}, show=lambda on: str(on).lower(), metavar="true|false")


def _path(value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise ValueError(f"must be a path, not {value!r}")
    return Path(value)


PATH = Kind(parse=_path, schema={"type": "string", "minLength": 1}, metavar="PATH")
FOLDER = replace(PATH, metavar="DIR")
_OTHER_REPORTS = {"html": "html", "xml": "junit", "md": "summary"}


def _report(value: object) -> Path:
    if other := _OTHER_REPORTS.get((path := _path(value)).suffix[1:]):
        raise ValueError(f"must be a path for JSON; the setting for {path.suffix} is {other}")
    return path


REPORT = Kind(parse=_report, schema={**PATH.schema, "not": {"pattern": rf"\.({'|'.join(_OTHER_REPORTS)})$"}}, metavar="PATH")


def _paths(value: object) -> tuple[str, ...]:
    if isinstance(value, os.PathLike):
        return (os.fspath(value),)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return words_in([os.fspath(part) if isinstance(part, os.PathLike) else part for part in value])
    return words_in(value)


PATHS = Kind(parse=_paths, schema=WORDS.schema, show=",".join, metavar="FILES")
OFF, AUDIT = "off", "audit"
FOLDER_OR_OFF = Kind(
    parse=lambda value: None if isinstance(value, str) and value.lower() in (OFF, "false", "no", "none", "0") else _path(value),
    schema=PATH.schema,
    show=lambda folder: OFF if folder is None else str(folder),
    metavar="DIR",
)

# --- opsets, devices, weights, shards -----------------------------------------------------------------------------------


def _opsets_schema() -> Schema:
    part = r"\s*\d+(?:\s*-(?:\s*\d+)?)?\s*"
    limits = {"minimum": 1, "maximum": HIGHEST_PLAUSIBLE_OPSET, "pattern": rf"^{part}(?:,{part})*$"}
    items = {"type": ["integer", "string"], **limits}
    return {"type": ["integer", "string", "array"], **limits, "minItems": 1, "items": items}


OPSETS = Kind(parse=parse_opsets, schema=_opsets_schema(), show=format_opsets, metavar="SPEC")
DEVICE_TYPES = ("cpu", "cuda")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def parse_device(device: str) -> str:
    """``device``, if it is valid. Raises ``ValueError``, which names valid ones."""
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"unknown device {device!r}; use cpu, cuda or cuda:1{did_you_mean(device, DEVICE_TYPES)}")
    return device


DEVICES = Kind(
    parse=lambda value: tuple(map(parse_device, words_in(value))),
    schema=list_schema(_DEVICE.pattern),
    show=",".join,
    metavar="LIST",
)


def _weights(value: object) -> Mapping[str, str]:
    """``alexnet=DEFAULT,lstm=lstm.pt``. A value without a name is for every recipe that takes weights."""
    if isinstance(value, Mapping):
        return MappingProxyType({str(name): str(weights) for name, weights in value.items()})
    by_recipe = {}
    for word in words_in(value):
        name, equals, weights = word.partition("=")
        if equals:
            by_recipe[name] = weights
        else:
            by_recipe[EVERY_RECIPE] = word
    return MappingProxyType(by_recipe)


WEIGHTS = Kind(
    parse=_weights,
    schema={**WORDS.schema, "type": ["string", "array", "object"], "additionalProperties": {"type": "string"}},
    show=lambda weights: ",".join(text if name == EVERY_RECIPE else f"{name}={text}" for name, text in weights.items()),
    metavar="NAME=WEIGHTS",
)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of the parts that the cells of a run are split into."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


_SHARD = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", re.ASCII)


def parse_shard(spec: object) -> Shard:
    """Read ``2/5``, which is the second of five parts. Raises ``ValueError``, which says what to write."""
    if isinstance(spec, Shard):
        return spec
    match = _SHARD.fullmatch(spec) if isinstance(spec, str) else None
    if match is None:
        raise ValueError(f"{spec!r} is not a shard; write 2/5 for the second of five")
    index, count = int(match[1]), int(match[2])
    if not count:
        raise ValueError(f"{spec!r} is not a shard: there must be at least one; write 1/1 for all cells")
    if not 1 <= index <= count:
        raise ValueError(f"there is no shard {index} of {count}; shards are numbered 1/{count} to {count}/{count}")
    return Shard(index=index, count=count)


SHARD = Kind(parse=parse_shard, schema={"type": "string", "pattern": r"^\s*\d+\s*/\s*\d+\s*$"}, metavar="N/M")

ISOLATIONS = ("fork", "spawn", "none")
# macOS aborts a fork that uses the system's libraries.
DEFAULT_ISOLATION = "fork" if sys.platform == "linux" else "spawn"
_ISOLATION = one_of(ISOLATIONS)


def _isolation(value: object) -> str:
    isolation = str(_ISOLATION.parse(value))
    if isolation == "fork" and sys.platform != "linux":
        raise ValueError("fork needs Linux; use spawn")
    return isolation


ISOLATION = Kind(parse=_isolation, schema=_ISOLATION.schema, metavar="KIND")

BASELINE_LIMITS: Mapping[str, float] = MappingProxyType(
    {"counts": 0.0, "size": 0.05, "drift": 4.0, "noise": 32.0, "values": 64.0, "observability": 0.1}
)
"""How much may differ from a baseline by default. Counts may differ by this number, sizes by this fraction, drift and noise by
this factor, values by this multiple of their noise, and observability by this fraction of the model."""


def _limits(value: object) -> Mapping[str, float]:
    """``size=0.1,counts=2``, or the same as a table. Names that are left out have their defaults, which are not shown."""
    pairs = dict(value) if isinstance(value, Mapping) else dict(map(_name_and_value, words_in(value)))
    for name in pairs:
        if name not in BASELINE_LIMITS:
            nearest = did_you_mean(str(name), BASELINE_LIMITS)
            raise ValueError(f"unknown name {name!r}; use {', '.join(BASELINE_LIMITS)}{nearest}")
    return MappingProxyType({**BASELINE_LIMITS, **{name: NONNEGATIVE_NUMBER.parse(number) for name, number in pairs.items()}})


def _name_and_value(word: str) -> tuple[str, str]:
    name, equals, text = (part.strip() for part in word.partition("="))
    if not equals:
        raise ValueError(f"must be NAME=VALUE, not {word!r}; the names are {', '.join(BASELINE_LIMITS)}")
    return name, text


LIMITS = Kind(
    parse=_limits,
    schema={
        **list_schema(rf"(?:{'|'.join(BASELINE_LIMITS)})\s*=\s*(?:{_NUMBER})"),
        "type": ["string", "array", "object"],
        "properties": dict.fromkeys(BASELINE_LIMITS, NONNEGATIVE_NUMBER.schema),
        "additionalProperties": False,
    },
    show=lambda limits: ",".join(f"{name}={limit:.12g}" for name, limit in limits.items() if limit != BASELINE_LIMITS[name]),
    metavar="NAME=NUMBER",
)

RECIPE_KEYWORDS: Mapping[str, Kind[Any]] = MappingProxyType(
    {"operators": WORDS, "max_ir_version": COUNT, "static": SWITCH, "rtol": NONNEGATIVE_NUMBER, "atol": NONNEGATIVE_NUMBER}
)
"""The keywords of ``@recipe`` that a project can declare for every recipe that does not."""


def _recipe_defaults(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a table of keywords of recipes, not {value!r}")
    for name in value:
        if name not in RECIPE_KEYWORDS:
            nearest = did_you_mean(str(name), RECIPE_KEYWORDS)
            raise ValueError(f"has no keyword {name!r}{nearest}; the keywords are {', '.join(RECIPE_KEYWORDS)}")
    return MappingProxyType({name: RECIPE_KEYWORDS[name].parse(item) for name, item in value.items()})


RECIPE_DEFAULTS = Kind(
    parse=_recipe_defaults,
    schema={
        "type": "object",
        "properties": {name: kind.schema for name, kind in RECIPE_KEYWORDS.items()},
        "additionalProperties": False,
    },
    show=lambda defaults: "; ".join(f"{name}={RECIPE_KEYWORDS[name].show(value)}" for name, value in defaults.items()),
)
