"""The kinds of value that a setting can have: how each is parsed, which TOML values it accepts, and how it is shown."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx_ci.errors import did_you_mean
from onnx_ci.opsets import HIGHEST_PLAUSIBLE_OPSET, format_opsets, parse_opsets
from onnx_ci.results.records import Severity
from onnx_ci.results.rules import RULES

Schema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of value."""

    parse: Callable[[object], Any]
    """Parses the text of a flag or a TOML value; raises ValueError with what is wrong."""
    schema: Schema
    """The TOML values that ``parse`` accepts, as JSON Schema."""
    show: Callable[[Any], str] = str
    """Formats the value as for a flag; the inverse of ``parse``."""


# --- words ------------------------------------------------------------------------------------------------------------


def _strings(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"must be a list of words, not {value!r}")
    words = tuple(part.strip() for part in parts if part.strip())
    if not words:
        raise ValueError("is empty")
    return tuple(dict.fromkeys(words))


WORDS = Kind(
    parse=_strings,
    schema={
        "type": ["string", "array"],
        "pattern": r"[^\s,]",
        "items": {"type": "string"},
        "contains": {"pattern": r"\S"},
    },
    show=",".join,
)


def _list_schema(word: str) -> Schema:
    """The schema of a list, or of text with commas, whose words match a regular expression."""
    text = rf"^[\s,]*(?:{word})\s*(?:,[\s,]*(?:{word})\s*)*[\s,]*$"
    return {**WORDS.schema, "pattern": text, "items": {"type": "string", "pattern": rf"^\s*(?:{word})?\s*$"}}


def some_of(what: str, choices: Collection[str], pattern: str | None = None) -> Kind:
    """A list of words, each one of ``choices``; ``what`` names one of them in messages.

    Args:
        pattern: a regular expression for the words in the schema, if the choices depend on what is installed.
    """

    def parse(value: object) -> tuple[str, ...]:
        words = _strings(value)
        for word in words:
            if word not in choices:
                raise ValueError(f"unknown {what} {word!r}; use {', '.join(choices)}{did_you_mean(word, choices)}")
        return words

    return Kind(parse=parse, schema=_list_schema(pattern or "|".join(choices)), show=",".join)


def one_of(choices: Sequence[str]) -> Kind:
    """One word of ``choices``."""

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"must be {_alternatives(choices)}, not {value!r}{did_you_mean(str(value), choices)}")
        return str(value)

    return Kind(parse=parse, schema={"enum": list(choices)})


def _alternatives(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


# --- numbers ----------------------------------------------------------------------------------------------------------

_NUMBER = r"\+?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return float("nan")
    return float("nan") if isinstance(value, bool) else number


def _positive(value: object) -> float:
    if not 0 < (number := _number(value)) < float("inf"):
        raise ValueError(f"must be a number above 0, not {value!r}")
    return number


def _nonnegative(value: object) -> float:
    if not 0 <= (number := _number(value)) < float("inf"):
        raise ValueError(f"must be a number of at least 0, not {value!r}")
    return number


def _show_number(number: float) -> str:
    return f"{number:g}"


POSITIVE_NUMBER = Kind(
    parse=_positive,
    schema={"type": ["number", "string"], "exclusiveMinimum": 0, "pattern": rf"^\s*{_NUMBER}\s*$"},
    show=_show_number,
)
NONNEGATIVE_NUMBER = Kind(
    parse=_nonnegative,
    schema={"type": ["number", "string"], "minimum": 0, "pattern": rf"^\s*{_NUMBER}\s*$"},
    show=_show_number,
)


def _count(value: object) -> int:
    try:
        count = int(value) if isinstance(value, (int, str)) else 0
    except ValueError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"must be an integer of at least 1, not {value!r}")
    return count


COUNT = Kind(parse=_count, schema={"type": ["integer", "string"], "minimum": 1, "pattern": r"^\s*\+?[\d_]+\s*$"})

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LARGEST_SIZE = 1e12
"""In any unit; more than any machine has."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTkmgt])(?:[iI]?[bB])?")


def _size(value: object) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or not 0 < float(match[1]) < _LARGEST_SIZE:
        raise ValueError(f"must be a size such as 8GiB or 512MiB, not {value!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


MEMORY_SIZE = Kind(
    parse=_size,
    schema={"type": "string", "pattern": rf"^\s*{_SIZE.pattern}\s*$"},
    show=lambda size: f"{size / 2**20:g}MiB",
)

# --- switches, paths --------------------------------------------------------------------------------------------------

_ON, _OFF = ("true", "1"), ("false", "0")


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in (*_ON, *_OFF) or not isinstance(value, str):
        raise ValueError(f"must be true or false, not {value!r}")
    return value in _ON


SWITCH = Kind(parse=_switch, schema={"enum": [True, False, *_ON, *_OFF]}, show=lambda on: str(on).lower())


def _path(value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise ValueError(f"must be a path, not {value!r}")
    return Path(value)


PATH = Kind(parse=_path, schema={"type": "string", "minLength": 1})


def _paths(value: object) -> tuple[str, ...]:
    if isinstance(value, os.PathLike):
        return (os.fspath(value),)
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in value]
    return _strings(value)


PATHS = Kind(parse=_paths, schema=WORDS.schema, show=",".join)

OFF = "off"
FOLDER_OR_OFF = Kind(
    parse=lambda value: None if value == OFF else _path(value),
    schema=PATH.schema,
    show=lambda folder: OFF if folder is None else str(folder),
)

# --- opsets, devices, weights, shards -----------------------------------------------------------------------------------


def _opsets_schema() -> Schema:
    part = r"\s*\d+(?:\s*-(?:\s*\d+)?)?\s*"
    one = {"minimum": 1, "maximum": HIGHEST_PLAUSIBLE_OPSET, "pattern": rf"^{part}(?:,{part})*$"}
    items = {"type": ["integer", "string"], **one}
    return {"type": ["integer", "string", "array"], **one, "minItems": 1, "items": items}


OPSETS = Kind(parse=parse_opsets, schema=_opsets_schema(), show=format_opsets)

DEVICE_TYPES = ("cpu", "cuda")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def parse_device(device: str) -> str:
    """``device``, if it is valid.

    Raises:
        ValueError: it is not; the message names valid ones.
    """
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"unknown device {device!r}; use cpu, cuda or cuda:1{did_you_mean(device, DEVICE_TYPES)}")
    return device


DEVICES = Kind(
    parse=lambda value: tuple(map(parse_device, _strings(value))), schema=_list_schema(_DEVICE.pattern), show=",".join
)


def _weights(value: object) -> Mapping[str, str]:
    """``alexnet=DEFAULT,lstm=lstm.pt``, or one value without a name for every recipe that takes weights (key ``*``)."""
    if isinstance(value, Mapping):
        pairs = {str(key): str(item) for key, item in value.items()}
    else:
        parts = (part.partition("=") for part in _strings(value))
        pairs = {name if equals else "*": weights if equals else name for name, equals, weights in parts}
    return MappingProxyType(pairs)


WEIGHTS = Kind(
    parse=_weights,
    schema={**WORDS.schema, "type": ["string", "array", "object"], "additionalProperties": {"type": "string"}},
    show=lambda weights: ",".join(value if name == "*" else f"{name}={value}" for name, value in weights.items()),
)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of the parts into which the cells of a run are split."""

    index: int
    """Which part, counted from 1."""
    count: int
    """How many parts there are."""

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


_SHARD = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", re.ASCII)


def parse_shard(spec: object) -> Shard:
    """Read ``2/5``, the second of five parts.

    Raises:
        ValueError: ``spec`` is not a shard; the message says what to write.
    """
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


SHARD = Kind(parse=parse_shard, schema={"type": "string", "pattern": r"^\s*\d+\s*/\s*\d+\s*$"})

# --- severities of rules ----------------------------------------------------------------------------------------------------

RULE_SEVERITIES: Mapping[str, Severity | None] = MappingProxyType(
    {"error": Severity.ERROR, "note": Severity.NOTE, "ignore": None}
)
"""What a project can make of a rule, by the words for it."""
EVERY_RECIPE = "*"
"""The pattern under which severities for every recipe are held."""
_RECIPE_PATTERN = re.compile(r"[\w.*?\[\]!-]+")


def _rules(value: object) -> Mapping[str, Mapping[str, str]]:
    """``{"ignore": ["absolute-path"], "resnet*": {"note": […]}}``, or ``absolute-path=ignore,resnet*:RULE=note``.

    Returns:
        The word for the severity of each rule, by the patterns of recipes that it is for, :data:`EVERY_RECIPE` first.
    """
    found: dict[str, dict[str, str]] = {EVERY_RECIPE: {}}
    for pattern, severity, rule in _rules_in_table(value) if isinstance(value, Mapping) else _rules_in_words(value):
        if not _RECIPE_PATTERN.fullmatch(pattern):
            raise ValueError(f"{pattern!r} is not a pattern of recipes' names, such as resnet*")
        _check_rule(rule, severity)
        other = found.setdefault(pattern, {}).setdefault(rule, severity)
        if other != severity:
            raise ValueError(f"{rule} is declared twice, as {other} and as {severity}; keep one of them")
    return MappingProxyType({pattern: MappingProxyType(rules) for pattern, rules in found.items() if rules})


def _rules_in_table(table: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    for key, inner in table.items():
        if key in RULE_SEVERITIES:
            yield from ((EVERY_RECIPE, key, rule) for rule in _strings(inner))
        elif isinstance(inner, Mapping):
            for severity, rules in inner.items():
                _check_severity(severity)
                yield from ((key, severity, rule) for rule in _strings(rules))
        else:
            _check_severity(key)


def _rules_in_words(value: object) -> Iterator[tuple[str, str, str]]:
    for word in _strings(value):
        rule, equals, severity = (part.strip() for part in word.rpartition("="))
        if not equals:
            raise ValueError(f"must be RULE=SEVERITY or RECIPES:RULE=SEVERITY, such as absolute-path=ignore, not {word!r}")
        _check_severity(severity)
        pattern, colon, name = (part.strip() for part in rule.rpartition(":"))
        yield (pattern if colon else EVERY_RECIPE), severity, name


def _check_severity(word: str) -> None:
    if word not in RULE_SEVERITIES:
        choices = _alternatives(list(RULE_SEVERITIES))
        nearest = did_you_mean(word, RULE_SEVERITIES)
        raise ValueError(
            f"{word!r} is not a severity; use {choices}, or a table for the recipes that a pattern matches{nearest}"
        )


def _check_rule(name: str, severity: str) -> None:
    if name not in RULES:
        raise ValueError(f"there is no rule {name!r}{did_you_mean(name, RULES)}; onnx-ci rules lists them")
    if severity != "error" and not RULES[name].can_be_allowed:
        raise ValueError(f"{name} can be neither ignored nor made a note: a cell that breaks it {RULES[name].why_it_fails}")


def _show_rules(rules: Mapping[str, Mapping[str, str]]) -> str:
    return ",".join(
        f"{'' if pattern == EVERY_RECIPE else f'{pattern}:'}{rule}={severity}"
        for pattern, of_pattern in rules.items()
        for rule, severity in of_pattern.items()
    )


def _rules_schema() -> Schema:
    allowable, every = "|".join(id for id in RULES if RULES[id].can_be_allowed), "|".join(RULES)
    severities = {word: _list_schema(every if word == "error" else allowable) for word in RULE_SEVERITIES}
    word = rf"(?:(?:{_RECIPE_PATTERN.pattern})\s*:\s*)?(?:(?:{every})\s*=\s*error|(?:{allowable})\s*=\s*(?:note|ignore))"
    of_pattern = {"type": "object", "properties": severities, "additionalProperties": False}
    return {
        **_list_schema(word),
        "type": ["string", "array", "object"],
        "properties": severities,
        "propertyNames": {"pattern": f"^{_RECIPE_PATTERN.pattern}$"},
        "additionalProperties": of_pattern,
    }


RULE_SETTINGS = Kind(parse=_rules, schema=_rules_schema(), show=_show_rules)

# --- processes ----------------------------------------------------------------------------------------------------------

ISOLATIONS = ("fork", "spawn", "none")
# On macOS, system libraries abort a fork that uses them.
DEFAULT_ISOLATION = "fork" if sys.platform == "linux" else "spawn"
_ISOLATION = one_of(ISOLATIONS)


def _isolation(value: object) -> str:
    isolation = str(_ISOLATION.parse(value))
    if isolation == "fork" and sys.platform != "linux":
        raise ValueError("fork needs Linux; use spawn")
    return isolation


ISOLATION = Kind(parse=_isolation, schema=_ISOLATION.schema)

# --- stages that can be skipped, and baselines ------------------------------------------------------------------------

SKIPPABLE_STAGES = (
    "probe-weights",
    "side-effects",
    "fresh-inputs",
    "sizes",
    "special-inputs",
    "steps",
    "branches",
    "observability",
    "locate",
)
"""The stages beyond exporting and comparing the example, which can be skipped."""

BASELINE_MODES = ("off", "check", "update")
BASELINE_SEVERITIES = ("error", "note", "ignore")
BASELINE_POLICY: Mapping[str, str] = MappingProxyType(
    {
        "missing": "error",
        "signature": "error",
        "format": "error",
        "operators": "error",
        "size": "error",
        "drift": "error",
        "values": "error",
        "weights": "error",
        "inputs": "error",
        "observability": "note",
        "versions": "note",
    }
)
"""The default severity of each kind of difference from a baseline."""

BASELINE_LIMITS: Mapping[str, float] = MappingProxyType(
    {"counts": 0.0, "size": 0.05, "drift": 4.0, "noise": 32.0, "values": 64.0, "observability": 0.1}
)
"""How much may differ from a baseline by default: counts by this number, sizes by this fraction, drift and noise by this
factor, values by this multiple of their noise, observability by this fraction of the model."""


def pairs_over(defaults: Mapping[str, Any], value: Kind) -> Kind:
    """``name=value,name=value``, or the same as a table, with the names in ``defaults``; shows only what differs from them."""

    def parse(given: object) -> Mapping[str, Any]:
        if isinstance(given, Mapping):
            pairs = dict(given)
        else:
            pairs = {}
            for part in _strings(given):
                name, equals, text = (word.strip() for word in part.partition("="))
                if not equals:
                    raise ValueError(f"must be NAME=VALUE, not {part!r}; the names are {', '.join(defaults)}")
                pairs[name] = text
        for name in pairs:
            if name not in defaults:
                raise ValueError(f"unknown name {name!r}; use {', '.join(defaults)}{did_you_mean(str(name), defaults)}")
        return MappingProxyType({**defaults, **{name: value.parse(each) for name, each in pairs.items()}})

    def show(pairs: Mapping[str, Any]) -> str:
        return ",".join(f"{name}={value.show(each)}" for name, each in pairs.items() if each != defaults[name])

    word = "|".join(value.schema["enum"]) if "enum" in value.schema else _NUMBER
    schema = {
        **_list_schema(rf"(?:{'|'.join(defaults)})\s*=\s*(?:{word})"),
        "type": ["string", "array", "object"],
        "properties": dict.fromkeys(defaults, value.schema),
        "additionalProperties": False,
    }
    return Kind(parse=parse, schema=schema, show=show)
