"""The values that travel between stages and out of a run: frozen, and the same in memory as in JSON.

Every record turns into plain JSON data with :func:`to_json` and back with its ``from_json``. A number that JSON cannot
hold (infinity, NaN) travels as its name, ``"inf"``, ``"-inf"`` or ``"nan"``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
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


_CELL_ID = re.compile(
    r"(?P<source>.+)::(?P<recipe>[^:]+)::opset(?P<opset>\d+)-(?P<device>[a-z]+(?::\d+)?)"
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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The finding that :func:`to_json` wrote."""
        return cls(**{**data, "severity": Severity(data["severity"])})


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

    @property
    def share_of_limit(self) -> float:
        """``drift ÷ limit``, so that outputs with different limits compare; infinite for NaN, and where 0 is exceeded."""
        if not self.limit:
            return math.inf if self.drift else 0.0
        share = self.drift / self.limit
        return math.inf if math.isnan(share) else share

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The record that :func:`to_json` wrote."""
        numbers = {key: float(data[key]) for key in ("drift", "limit", "error", "noise", "max_abs", "max_rel")}
        index = None if data["index"] is None else tuple(data["index"])
        return cls(**{**data, **numbers, "shape": tuple(data["shape"]), "index": index})


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
    cached: bool = False

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
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result that :meth:`as_json` wrote."""
        rest = dict(data)
        del rest["id"]
        cell = Cell(**{f.name: rest.pop(f.name) for f in dataclasses.fields(Cell)})
        rest["status"] = Status(rest["status"])
        rest["findings"] = tuple(Finding.from_json(item) for item in rest["findings"])
        rest["outputs"] = tuple(OutputDrift.from_json(item) for item in rest["outputs"])
        return cls(cell=cell, **rest)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that kept recipes from becoming cells: a file that cannot be imported, a name used twice."""

    source: str
    message: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The problem that :func:`to_json` wrote."""
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Cells that the settings ask for and a recipe rules out, with the reason."""

    recipe: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Everything one run found out."""

    environment: Mapping[str, str]
    """Versions of what took part; a package that is absent is left out."""
    settings: Mapping[str, Any]
    """Each setting's value and where it came from."""
    cells: tuple[CellResult, ...]
    problems: tuple[Problem, ...] = ()
    not_run: tuple[str, ...] = ()
    """Ids of cells that were to run and did not, because the run was stopped."""
    seconds: float = 0.0

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

    def as_json(self) -> dict[str, Any]:
        """The report as data that :mod:`json` can write."""
        return {
            "schema_version": SCHEMA_VERSION,
            "environment": dict(self.environment),
            "settings": to_json(self.settings),
            "cells": [result.as_json() for result in self.cells],
            "problems": to_json(self.problems),
            "not_run": list(self.not_run),
            "summary": {
                "verdict": self.verdict,
                "cells": len(self.cells),
                **self.counts,
                "problems": len(self.problems),
                "not_run": len(self.not_run),
                "seconds": round(self.seconds, 3),
            },
        }


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
