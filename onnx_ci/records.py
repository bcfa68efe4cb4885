"""The values that travel between stages and out of a run: frozen, and the same in memory as in JSON.

Every record turns into plain JSON data with :func:`to_json` and back with :func:`from_json`, which takes nothing on trust.
A number that JSON cannot hold (infinity, NaN) travels as its name, ``"inf"``, ``"-inf"`` or ``"nan"``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import math
import re
import reprlib
import types
import typing
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from onnx_ci.opsets import EXPORTERS, default_exporter

SCHEMA_VERSION = 1
"""The version of the JSON report's layout; it rises when a reader of the old layout would go wrong."""


class Status(enum.StrEnum):
    """What became of a cell."""

    PASSED = "passed"
    """Every rule was looked at, and none was broken."""
    FAILED = "failed"
    """A rule was broken: the export is wrong."""
    ERROR = "error"
    """The cell could not be judged: the recipe cannot be used, or onnx-ci itself failed."""
    SKIPPED = "skipped"
    """The cell was not run, for the reason given."""
    XFAILED = "xfailed"
    """The cell failed as its recipe expects."""
    XPASSED = "xpassed"
    """The cell does not fail as its recipe expects. Expectations are strict, so this fails the run."""

    @property
    def is_bad(self) -> bool:
        """Whether this status fails the run."""
        return self in (Status.FAILED, Status.ERROR, Status.XPASSED)


class Severity(enum.StrEnum):
    """Whether a finding fails its cell."""

    ERROR = "error"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One recipe × exporter × opset × device: the unit that passes or fails."""

    source: str
    """The recipe's file, relative to the project's root, with forward slashes."""
    recipe: str
    exporter: str
    opset: int
    device: str

    @property
    def label(self) -> str:
        """``opset9-cpu``; with the exporter where it is not the usual one of the opset: ``opset18-cpu-torchscript``."""
        suffix = "" if self.exporter == default_exporter(self.opset) else f"-{self.exporter}"
        return f"opset{self.opset}-{self.device}{suffix}"

    @property
    def gpu(self) -> str | None:
        """The GPU that the cell needs, by its number: that of ``cuda`` is ``cuda:0``; ``None`` on the CPU."""
        return None if self.device == "cpu" else f"{self.device}:0" if ":" not in self.device else self.device

    @property
    def id(self) -> str:
        """``recipes/alexnet.py::alexnet::opset9-cpu``, which pytest takes as an argument."""
        return f"{self.source}::{self.recipe}::{self.label}"

    @classmethod
    def from_id(cls, id: str) -> Self | None:
        """The cell that ``id`` names, or ``None`` if it names none."""
        match = _CELL_ID.fullmatch(id)
        if match is None:
            return None
        opset = int(match["opset"])
        return cls(
            source=match["source"],
            recipe=match["recipe"],
            exporter=match["exporter"] or default_exporter(opset),
            opset=opset,
            device=match["device"],
        )


_THIRTY_YEARS = 1e9
"""Seconds; what is beyond was never measured."""
_CELL_ID = re.compile(
    r"(?P<source>[^\x00-\x1f]+)::(?P<recipe>[\w.-]+)::opset(?P<opset>\d+)-(?P<device>[a-z]+(?::\d+)?)"
    rf"(?:-(?P<exporter>{'|'.join(EXPORTERS)}))?"
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One rule broken in one cell, with the place, the numbers and the remedy."""

    rule: str
    severity: Severity
    message: str
    remedy: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the message, under stable names, for programs."""


@dataclass(frozen=True, kw_only=True)
class OutputDrift:
    """How far one output of the ONNX file is from the model, on one input."""

    name: str
    """The output's name in the graph."""
    probe: str
    """The input it was computed on: ``example``, or the moved axes, such as ``sequence=6``."""
    dtype: str
    """The output's data type, in torch's words."""
    shape: tuple[int, ...]
    drift: float
    """``error ÷ noise``: how many times worse than PyTorch's own rounding."""
    limit: float
    """The drift that just passes. For integers and booleans 0: they are compared exactly."""
    error: float
    """Largest absolute difference from the exact reference."""
    noise: float
    """Largest absolute difference that PyTorch's own rounding makes; 1 for integers and booleans."""
    max_abs: float
    """Largest absolute value of the reference."""
    max_rel: float
    """Largest difference relative to the element's own reference value."""
    index: tuple[int, ...] | None
    """Where the largest difference is; ``None`` where no element was compared."""
    reference: str
    """What the reference is: ``float64``; ``proportion`` (the model itself, its noise in proportion to that of another
    input); ``perturbation`` (the model cannot run in float64); ``exact`` for integers and booleans."""
    runtime: str = "onnxruntime"
    """What ran the file."""

    @property
    def title(self) -> str:
        """The output's name; with what ran the file, where that is not the usual runtime: ``power (reference)``."""
        return self.name if self.runtime == "onnxruntime" else f"{self.name} ({self.runtime})"

    @property
    def share_of_limit(self) -> float:
        """``drift ÷ limit``, so that outputs with different limits compare; infinite for NaN, and where 0 is exceeded."""
        if not self.limit:
            return math.inf if self.drift else 0.0
        share = self.drift / self.limit
        return math.inf if math.isnan(share) else share


@dataclass(frozen=True, kw_only=True)
class FourWays:
    """One output of the example as PyTorch and ONNX Runtime compute it, each on the CPU and on the GPU."""

    name: str
    """The output's name in the graph."""
    errors: Mapping[str, float]
    """Under each side, such as ``PyTorch on cpu``, the largest difference from the exact reference. A side that cannot
    compute the output is left out."""
    apart: tuple[str, ...]
    """The sides that are farther from the reference than the others, by more than rounding explains."""

    @property
    def verdict(self) -> str:
        """``ONNX Runtime on cuda stands alone``."""
        verb = "stands alone" if len(self.apart) == 1 else "stand apart"
        return f"{' and '.join(self.apart)} {verb}" if self.apart else "all sides agree"

    @property
    def in_words(self) -> str:
        """``y: all sides agree; off from float64 by PyTorch on cpu 1.2e-06, …``."""
        errors = ", ".join(f"{side} {error:.2g}" for side, error in self.errors.items())
        return f"{self.name}: {self.verdict}; off from float64 by {errors}"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """An input or output as the file declares it."""

    name: str
    dtype: str
    """In ONNX's words: ``float``, ``int64``."""
    dims: tuple[str, ...] | None
    """Numbers, names of axes, ``?`` for an axis without a name; ``None`` where the rank is not declared."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """What tells tensors from others without holding them, the same on every machine but for the last digits."""

    tensors: int
    values: int
    """How many numbers the tensors hold together."""
    layout: str
    """A digest of their shapes and data types, in order."""
    norm: float
    projections: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class OutputValues:
    """What the model computes for one output on the example, in few numbers."""

    name: str
    noise: float
    """How far PyTorch's own rounding moves it; 0 for integers and booleans, which are exact."""
    least: float
    mean: float
    largest: float
    spread: float
    """The standard deviation."""
    sample: tuple[float, ...]
    """Values at evenly spaced places, in as many digits as the output's data type has."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a baseline holds of the file that a cell made, and of what it was made from."""

    opset: int | None
    """The opset that the file is written at."""
    ir_version: int
    domains: Mapping[str, int]
    """The other operator sets that the file imports."""
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    operators: Mapping[str, int]
    """How often each operator stands in the graph, the graphs within it and its functions."""
    initializers: int
    initializer_bytes: int
    file_bytes: int
    """The file with its external data, without the texts that tell where it was built."""
    weights: Sketch
    arguments: Sketch
    values: tuple[OutputValues, ...]
    """None of an output of which no value can be compared, and of a random model."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What one cell proved, or why it proved nothing."""

    cell: Cell
    status: Status
    reason: str = ""
    """Why the cell was skipped or was expected to fail."""
    findings: tuple[Finding, ...] = ()
    outputs: tuple[OutputDrift, ...] = ()
    log: str = ""
    """What the exporter printed and warned of."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds, stage by stage."""
    artifact: str | None = None
    """Where the ONNX file is kept, if it is."""
    observability: float | None = None
    """The share of the model that the comparison can see; ``None`` while it is not measured."""
    four_ways: tuple[FourWays, ...] = ()
    """On a GPU, each output of the example as four sides compute it."""
    facts: Facts | None = None
    """What a baseline would hold of it; ``None`` where no file was written."""
    cached: bool = False

    @property
    def seconds(self) -> float:
        """How long all stages took together."""
        return sum(self.timings.values())

    @property
    def worst(self) -> OutputDrift | None:
        """The output with the largest drift in units of its limit."""
        return max(self.outputs, key=lambda each: (each.share_of_limit, math.isnan(each.drift), each.drift), default=None)

    def as_json(self) -> dict[str, Any]:
        """The result as it stands in the report: the cell's fields first, then its own."""
        data = to_json(self)
        cell = data.pop("cell")
        return {"id": self.cell.id, **cell, **data}

    @classmethod
    def from_json(cls, data: Any, place: str = "") -> Self:
        """The result that :meth:`as_json` wrote.

        Raises:
            ValueError: it did not write this; the message says what is wrong, and where.
        """
        cell = from_json(Cell, data, place)
        id = _field(data, "id", place)
        if id != cell.id or Cell.from_id(id) != cell:
            raise ValueError(f"{place} has the id {_short(id)}, which does not name its cell")
        result: Self = from_json(cls, {**data, "cell": to_json(cell)}, place)
        if not all(0 <= seconds <= _THIRTY_YEARS for seconds in result.timings.values()):
            raise ValueError(f"{_below(place, 'timings')} are no times in seconds")
        return result


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that kept recipes from becoming cells: a file that cannot be imported, a name used twice."""

    source: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Cells that the settings ask for and a recipe rules out, with the reason."""

    recipe: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the runs whose reports were merged into one."""

    name: str
    """The file of its report."""
    environment: Mapping[str, str]
    settings: Mapping[str, Mapping[str, str | None]]
    cells: tuple[str, ...]
    """Ids of the cells that it judged."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Everything one run found out, or several whose reports were merged."""

    environment: Mapping[str, str]
    """Versions of what took part; a package that is absent is left out. Where merged runs differ, all of them in words."""
    settings: Mapping[str, Mapping[str, str | None]]
    """Each setting as ``{"value": …, "from": …}``, as a flag would say it. Where merged runs differ, all of them in words."""
    cells: tuple[CellResult, ...]
    problems: tuple[Problem, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    not_run: tuple[str, ...] = ()
    """Ids of cells that were to run and did not, because the run was stopped."""
    merged_from: tuple[Part, ...] = ()
    """The runs that this report is merged from; none in the report of a single run."""
    seconds: float = 0.0
    """How long the run took; the time of merged runs together."""

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have each status, in the order of :class:`Status`; a status that no cell has is left out."""
        counter = Counter(result.status for result in self.cells)
        return {status.value: counter[status] for status in Status if counter[status]}

    @property
    def verdict(self) -> str:
        """``passed``, ``failed``, or ``nothing-ran`` when no cell was judged: never a success."""
        if self.problems or any(result.status.is_bad for result in self.cells):
            return "failed"
        if self.not_run:
            return "failed"
        judged = any(result.status is not Status.SKIPPED for result in self.cells)
        return "passed" if judged else "nothing-ran"

    @property
    def lacks(self) -> str:
        """What the environment lacks, where nothing else went wrong: a device that the settings require."""
        bad = [finding for result in self.cells if result.status.is_bad for finding in result.findings]
        only = bad and not self.problems and not self.not_run and all(each.rule == "missing-device" for each in bad)
        return bad[0].message if only else ""

    @property
    def summary(self) -> dict[str, str | int | float]:
        """The verdict and the counts."""
        return {
            "verdict": self.verdict,
            "cells": len(self.cells),
            **self.counts,
            "problems": len(self.problems),
            "not_run": len(self.not_run),
            "seconds": round(self.seconds, 3),
        }

    def as_json(self) -> dict[str, Any]:
        """The report as data that :mod:`json` can write."""
        return {
            "schema_version": SCHEMA_VERSION,
            "environment": dict(self.environment),
            "settings": to_json(self.settings),
            "cells": [result.as_json() for result in self.cells],
            "problems": to_json(self.problems),
            "exclusions": to_json(self.exclusions),
            "not_run": list(self.not_run),
            "merged_from": to_json(self.merged_from),
            "summary": self.summary,
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The report that :meth:`as_json` wrote. What a later version of onnx-ci added to the layout is passed over.

        Raises:
            ValueError: it did not write this; the message says what is wrong, and where.
        """
        version = _field(data, "schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"it has schema_version {_short(version)}, and this onnx-ci reads {SCHEMA_VERSION}")
        results = _field(data, "cells")
        if not isinstance(results, list):
            raise ValueError(f"cells is {_short(results)} and should be list")
        cells = tuple(CellResult.from_json(each, f"cells[{index}]") for index, each in enumerate(results))
        if twice := [id for id, count in Counter(result.cell.id for result in cells).items() if count > 1]:
            raise ValueError(f"it has two results for {twice[0]}")
        summary = _field(data, "summary")
        rest = from_json(cls, {**data, "cells": [], "seconds": _field(summary, "seconds", "summary")})
        for settings in (rest.settings, *(part.settings for part in rest.merged_from)):
            for name, each in settings.items():
                if "value" not in each or not each.get("from"):
                    raise ValueError(f"the setting {_short(name)} is without a value, or without where it came from")
        report: Self = dataclasses.replace(rest, cells=cells)
        if not 0 <= report.seconds <= _THIRTY_YEARS or report.summary != {key: summary.get(key) for key in report.summary}:
            raise ValueError("its summary is not that of its cells")
        return report


def to_json(value: Any) -> Any:
    """``value`` as data that :mod:`json` can write: records become objects, tuples arrays, infinities their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value  # a worker's report must be plain data: what is merely like a string cannot travel
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


_DEEPEST = 20
"""How deep free-form data may be nested."""


def from_json(kind: Any, data: Any, place: str = "") -> Any:
    """``data``, as :mod:`json` reads it, as a value of the type ``kind``: the inverse of :func:`to_json`.

    An object that stands for a record must have every field of it; what else it has is passed over.

    Args:
        kind: a record, an enumeration, a plain type, or tuples, mappings and unions of them, as annotations say it.
        data: what was read.
        place: where in the whole it stands, for messages.

    Raises:
        ValueError: ``data`` is no such value; the message says what is wrong, and where.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if fields := _fields(kind):
        return kind(**{name: from_json(hint, _field(data, name, place), _below(place, name)) for name, hint in fields.items()})
    if origin is types.UnionType:
        return None if data is None else from_json(inner[0], data, place)
    if origin is tuple and isinstance(data, list):
        return tuple(from_json(inner[0], each, f"{place}[{index}]") for index, each in enumerate(data))
    if origin is Mapping and isinstance(data, Mapping):
        return {key: from_json(inner[1], each, f"{place}[{_short(key)}]") for key, each in data.items()}
    if isinstance(kind, enum.EnumType) and data in kind.__members__.values():
        return kind(data)
    if kind is float and (type(data) in (int, float) or data in ("inf", "-inf", "nan")):
        with contextlib.suppress(OverflowError):
            return float(data)
    if kind in (str, int, bool) and type(data) is kind:
        return data
    if kind is Any:
        if _depth(data) > _DEEPEST:
            raise ValueError(f"{place} is nested too deeply")
        return data
    raise ValueError(f"{place or 'it'} is {_short(data)} and should be {getattr(kind, '__name__', kind)}")


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of a record's fields, by their names; nothing for what is no record."""
    return typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}


def _field(data: Any, name: str, place: str = "") -> Any:
    if not isinstance(data, Mapping) or name not in data:
        raise ValueError(f"{place or 'it'} has no {name!r}")
    return data[name]


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _depth(data: Any) -> int:
    inner = data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _short(value: object) -> str:
    """A wrong value in few words."""
    return reprlib.repr(value)
