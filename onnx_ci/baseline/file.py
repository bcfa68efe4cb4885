"""A baseline as text: TOML with one line for each fact, however many opsets share it.

A section describes the files of one exporter, on one device and after one post-export pass or none. A line applies to all
opsets of its section, or names those to which it applies. So changes from opset to opset are easy to see, and ``git diff``
shows a difference only once::

    [torchscript.cpu]
    opsets = "9-17"
    ir-version = { 9 = 4, 10 = 5, 11 = 6, 12-14 = 7, 15-17 = 8 }
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.baseline.entry import KINDS, Entry, Line, problem_of
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.opsets import exporter_order, format_opsets, parse_opsets
from onnx_ci.plugins import EXPORTERS
from onnx_ci.results.records import Cell, DeclaredValue

SCHEMA = 1
"""The version of the format, incremented when readers of the old format would misread it."""
_END = "# the end"
"""The last line. A truncated file may be valid TOML, but does not end with it."""
HEAD = "# The accepted baseline of a recipe, written by `onnx-ci baseline update`. Review every change to it."
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DEVICE = re.compile(r"[a-z]+(?::\d+)?")
_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7})(?: |$)")


@dataclass(frozen=True, order=True)
class Place:
    """The place of a cell in a baseline."""

    device: str
    exporter: str
    opset: int
    graph_pass: str = ""
    """The post-export pass; empty for the exporter's own file."""

    @classmethod
    def of(cls, cell: Cell) -> Place:
        """The place of ``cell``."""
        return cls(cell.device, cell.exporter, cell.opset, cell.graph_pass or "")

    @property
    def target(self) -> str:
        """The device with the pass, as in the cell's id: ``cpu``, ``cpu+float16``."""
        return f"{self.device}+{self.graph_pass}" if self.graph_pass else self.device


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The accepted entries of one recipe."""

    recipe: str
    cells: Mapping[Place, Entry]

    def sections(self) -> dict[tuple[str, str], dict[int, Entry]]:
        """The entries by opset, for each target and exporter, in order."""
        sections: dict[tuple[str, str], dict[int, Entry]] = {}
        for place in sorted(self.cells, key=lambda cell: (cell.target, exporter_order(cell.exporter), cell.opset)):
            sections.setdefault((place.target, place.exporter), {})[place.opset] = self.cells[place]
        return sections


class BaselineError(ConfigurationError):
    """A baseline cannot be used. The message names the file, the problem and the remedy."""


# --- writing ----------------------------------------------------------------------------------------------------------


def as_text(baseline: Baseline) -> str:
    """The baseline in the format of its file."""
    lines = [HEAD, f"schema = {SCHEMA}", f"recipe = {_toml(baseline.recipe)}"]
    for (target, exporter), entries in baseline.sections().items():
        section = (exporter, target)
        lines += ["", _header(section), f"opsets = {_toml(format_opsets(entries))}"]
        table: Line = ()
        for line in sorted({line for entry in entries.values() for line in entry}, key=_order):
            if line[:-1] != table:
                table = line[:-1]
                lines += ["", _header((*section, *table))]
            values = {opset: entry[line] for opset, entry in entries.items() if line in entry}
            lines.append(f"{_key(line[-1])} = {_value(values, len(entries))}")
    return "\n".join([*lines, "", _END]) + "\n"


_KINDS_IN_ORDER = tuple(KINDS)
_WORDS_IN_ORDER = (
    *("drift", "noise", "least", "mean", "largest", "spread", "sample"),
    *("tensors", "values", "layout", "norm", "projections"),
)


def _order(line: Line) -> tuple[object, ...]:
    """The order of a fact: kinds in the order of their table, names alphabetically, and fixed keys in their own order."""
    kind, *rest = line
    has_fixed_keys = kind in ("values", "weights", "arguments")
    last = _WORDS_IN_ORDER.index(line[-1]) if has_fixed_keys else 0
    return _KINDS_IN_ORDER.index(kind), rest[:-1] if has_fixed_keys else rest, last


def _value(values: Mapping[int, Any], opset_count: int) -> str:
    """One value for all opsets of a section, or each value with its opsets."""
    groups: dict[str, list[int]] = {}
    for opset, value in values.items():
        groups.setdefault(_toml(value), []).append(opset)
    if len(groups) == 1 and len(values) == opset_count:
        return next(iter(groups))
    return "{ " + ", ".join(f"{_key(format_opsets(opsets))} = {text}" for text, opsets in groups.items()) + " }"


def _header(path: tuple[str, ...]) -> str:
    return f"[{'.'.join(map(_key, path))}]"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, DeclaredValue):
        return _toml(value.type_text)
    return repr(value)  # a float round-trips, and TOML writes inf and nan the same way


# --- reading ----------------------------------------------------------------------------------------------------------


def read(text: str, path: Path) -> Baseline:
    """The baseline in a text that :func:`as_text` wrote and somebody may have edited. Raises :class:`BaselineError`."""
    for number, line in enumerate(text.splitlines(), start=1):
        if _CONFLICT.match(line):
            raise BaselineError(
                f"{path}:{number} contains a merge conflict; take either side, then record again: onnx-ci baseline update"
            )
    remedy = "restore the file with git, or remove it and record again: onnx-ci baseline update"
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with too many digits is a plain ValueError
        raise BaselineError(f"{path} cannot be read: {error}; {remedy}") from None
    schema = document.pop("schema", None)
    if isinstance(schema, int) and schema > SCHEMA:
        raise BaselineError(f"{path} has schema {schema}, but this onnx-ci reads {SCHEMA}; install the onnx-ci that wrote it")
    if schema != SCHEMA:
        raise BaselineError(f"{path} is not a baseline of onnx-ci: its schema is {schema!r}; {remedy}")
    if not text.rstrip().endswith(_END):
        raise BaselineError(f"{path} is truncated: its last line is not '{_END}'; {remedy}")
    recipe = document.pop("recipe", None)
    try:
        if not isinstance(recipe, str):
            raise ValueError(f"recipe is {recipe!r} but should be a name")
        return Baseline(recipe=recipe, cells=dict(_cells(document)))
    except ValueError as error:
        raise BaselineError(f"{path}: {error}; {remedy}") from None


def _cells(document: Mapping[str, Any]) -> Iterator[tuple[Place, Entry]]:
    for exporter, devices in document.items():
        if exporter not in EXPORTERS or not isinstance(devices, dict):
            raise ValueError(f"[{exporter}] is not an exporter{did_you_mean(exporter, EXPORTERS)}")
        for target, table in devices.items():
            section = f"{exporter}.{target}"
            device, plus, graph_pass = target.partition("+")
            if not _DEVICE.fullmatch(device) or (plus and not graph_pass) or not isinstance(table, dict):
                raise ValueError(f"[{section}] is not a device")
            opsets = _opsets(str(table.pop("opsets", "")), f"[{section}] opsets")
            entries: dict[int, dict[Line, Any]] = {opset: {} for opset in opsets}
            for line, by_opset in _lines(table, opsets, section):
                for opset, value in by_opset.items():
                    entries[opset][line] = value
            for opset, entry in entries.items():
                if (problem := problem_of(entry)) is not None:
                    raise ValueError(f"[{section}] at opset {opset}: {problem}")
                yield Place(device, exporter, opset, graph_pass), entry


def _lines(table: Mapping[str, Any], opsets: tuple[int, ...], section: str) -> Iterator[tuple[Line, Mapping[int, Any]]]:
    """The facts of a section, each with its value at each opset."""
    for kind, content in table.items():
        if kind not in KINDS:
            raise ValueError(f"[{section}] has no fact {kind!r}{did_you_mean(kind, KINDS)}")
        depth, types = KINDS[kind]
        for line, value in _leaves((kind,), content, depth):
            place = f"{'.'.join(line)} in [{section}]"
            expected = types.get(line[-1], float) if isinstance(types, dict) else types
            if isinstance(types, dict) and line[-1] not in _WORDS_IN_ORDER:
                raise ValueError(f"{place} is not a fact{did_you_mean(line[-1], _WORDS_IN_ORDER)}")
            by_opset = _by_opset(value, opsets, place)
            if expected is DeclaredValue:
                yield line, {opset: _declared(line[-1], text, place) for opset, text in by_opset.items()}
            else:
                yield line, {opset: _checked(data, expected, place) for opset, data in by_opset.items()}


def _leaves(line: Line, content: Any, depth: int) -> Iterator[tuple[Line, Any]]:
    """The values in nested tables, with their paths of the length ``depth``."""
    if len(line) == depth:
        yield line, content
        return
    if not isinstance(content, dict):
        raise ValueError(f"{'.'.join(line)} is {content!r} but should be a table")
    for key, inner in content.items():
        yield from _leaves((*line, key), inner, depth)


def _by_opset(value: Any, opsets: tuple[int, ...], place: str) -> Mapping[int, Any]:
    """The inverse of :func:`_value`."""
    if not isinstance(value, dict):
        return dict.fromkeys(opsets, value)
    by_opset: dict[int, Any] = {}
    for key, shared in value.items():
        for opset in _opsets(key, place):
            if opset not in opsets or opset in by_opset:
                raise ValueError(f"{place} names opset {opset}{' twice' if opset in by_opset else ', which is not recorded'}")
            by_opset[opset] = shared
    return by_opset


def _opsets(text: str, place: str) -> tuple[int, ...]:
    try:
        return parse_opsets(text)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _declared(name: str, value: Any, place: str) -> DeclaredValue:
    """The input or output with the type ``value``, such as ``float[batch, Max(1, n)]``."""
    dtype, bracket, rest = str(_checked(value, str, place)).partition("[")
    if bracket and not rest.endswith("]"):
        raise ValueError(f"{place} is {value!r} but should be a type such as 'float[batch, 3]'")
    dims: list[str] = []
    for part in rest[:-1].split(", ") if rest[:-1] else ():
        if dims and dims[-1].count("(") > dims[-1].count(")"):
            dims[-1] += f", {part}"
        else:
            dims.append(part)
    return DeclaredValue(name=name, dtype=dtype, dims=tuple(dims) if bracket else None)


def _checked(value: Any, expected: Any, place: str) -> Any:
    """``value``, if it has the expected type. An integer is a number, too."""
    if isinstance(expected, list):
        if not isinstance(value, list):
            raise ValueError(f"{place} is {value!r} but should be a list")
        return [_checked(item, expected[0], place) for item in value]
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"{place} is larger than any such number can be")
    if expected is float and type(value) in (int, float):
        return float(value)
    types = expected if isinstance(expected, tuple) else (expected,)
    if type(value) not in types:
        raise ValueError(f"{place} is {value!r} but should be {' or '.join(_TYPES[kind] for kind in types)}")
    return value


_LARGEST = 2**63
_TYPES = {int: "an integer", str: "a string", float: "a number"}
