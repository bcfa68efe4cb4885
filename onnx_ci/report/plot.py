"""Drift by opset as an SVG picture: a line for each row of the grid and one for the limit, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_ci.report.grid import Grid, Row
from onnx_ci.report.templates import fill
from onnx_ci.results.records import OutputDrift
from onnx_ci.text import count

_WIDTH, _HEIGHT = 1000, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 800, 14, 300
_BAND = 22
"""The height of the strips above and below the scale, for drifts that are outside it."""

_LABELS = 16
_LABEL_HEIGHT = 15
_LABEL_LENGTH = 26
_BELOW, _ABOVE = 4, 8
"""The scale goes at most this many powers of ten below and above the limit."""

_MANY = 40
"""With more lines than this, each is thin, so that they do not hide the outliers."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture and its caption."""

    svg: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class _Point:
    x: int
    y: float
    is_joined: bool
    """Whether a line joins it to the point of the opset to its left."""
    is_bad: bool
    opset: int
    worst: OutputDrift


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One row of the grid."""

    row: int
    name: str
    points: Sequence[_Point]

    @property
    def peak(self) -> _Point:
        return max(self.points, key=lambda point: point.worst.share_of_limit)

    @property
    def title(self) -> str:
        worst = self.peak.worst
        return f"{self.name}, drift {worst.drift:.3g} with limit {worst.limit:g} at opset {self.peak.opset}"


@dataclass(frozen=True, kw_only=True)
class _Label:
    """A name beside the end of a line."""

    y: float
    text: str


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """The vertical scale. An exponent is the power of ten of a number on the axis."""

    unit: float
    """The number on the axis at the limit: the limit itself, or 1 if outputs have different limits."""
    lowest: int
    highest: int
    top: float
    bottom: float

    @classmethod
    def of(cls, outputs: Sequence[OutputDrift]) -> _Scale:
        limits = {each.limit for each in outputs if 0 < each.limit < math.inf}
        unit = limits.pop() if len(limits) == 1 else 1.0
        limit = math.log10(unit)
        exponents = [limit + _exponent(each.share_of_limit) for each in outputs]
        finite = [each for each in exponents if math.isfinite(each)]
        lowest = math.floor(max(min([*finite, limit - 1]), limit - _BELOW))
        highest = math.ceil(min(max([*finite, limit + 1]), limit + _ABOVE))
        return cls(
            unit=unit,
            lowest=lowest,
            highest=highest,
            top=_TOP + _BAND * any(each > highest for each in exponents),
            bottom=_BOTTOM - _BAND * any(each < lowest for each in exponents),
        )

    def y(self, share: float) -> float:
        exponent = math.log10(self.unit) + _exponent(share)
        if exponent > self.highest:
            return _TOP
        return _BOTTOM if exponent < self.lowest else self.at(exponent)

    def at(self, exponent: float) -> float:
        return self.bottom - (self.bottom - self.top) * (exponent - self.lowest) / (self.highest - self.lowest)

    @property
    def limit(self) -> float:
        return self.at(math.log10(self.unit))


def _exponent(share: float) -> float:
    return math.log10(share) if share > 0 else -math.inf


def plot(grid: Grid) -> Plot | None:
    """The picture, or ``None`` if no cell was compared. Each line carries its row's number as ``data-row``."""
    outputs = [worst for row in grid.rows for result in row.results if result and (worst := result.worst)]
    if not outputs:
        return None
    scale = _Scale.of(outputs)
    lines = [
        _Line(row=number, name=row.title, points=points)
        for number, row in enumerate(grid.rows)
        if (points := _points(row, grid, scale))
    ]
    labels = _labels(lines)
    highest = max(lines, key=lambda line: line.peak.worst.share_of_limit)
    beyond = sum(line.peak.worst.share_of_limit > 1 for line in lines)
    measure = "Drift" if scale.unit != 1.0 else "Drift, as a multiple of each output's limit"
    words = (
        f"{measure}, on a logarithmic scale. {count(len(lines), 'line')}, one for each recipe and device; "
        f"{beyond or 'none'} of them {'crosses' if beyond == 1 else 'cross'} the limit. The largest: {highest.title}."
    )
    svg = fill(
        "plot.svg.jinja",
        frame={"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM},
        words=words,
        is_crowded=len(lines) > _MANY,
        limit={"y": round(scale.limit, 1), "text": "the limit" if scale.unit == 1.0 else f"limit {scale.unit:g}"},
        ticks=_ticks(scale),
        opsets=[(_x(place, grid), opset) for place, opset in enumerate(grid.opsets)],
        lines=lines,
        labels=labels,
    )
    return Plot(svg=svg, caption=words + " Only the lines that end highest are labelled." * (len(labels) < len(lines)))


def _x(place: int, grid: Grid) -> int:
    return round(_LEFT + (_RIGHT - _LEFT) * (place + 0.5) / len(grid.opsets))


def _points(row: Row, grid: Grid, scale: _Scale) -> list[_Point]:
    compared = [result is not None and result.worst is not None for result in row.results]
    return [
        _Point(
            x=_x(place, grid),
            y=scale.y(result.worst.share_of_limit),
            is_joined=place > 0 and compared[place - 1],
            is_bad=result.status.is_bad,
            opset=result.cell.opset,
            worst=result.worst,
        )
        for place, result in enumerate(row.results)
        if result is not None and result.worst is not None
    ]


def _labels(lines: Sequence[_Line]) -> dict[int, _Label]:
    """For the rows whose lines end highest, labels that are moved apart where they would overlap."""
    highest = sorted(lines, key=lambda line: line.points[-1].y)[:_LABELS]
    moved_down: list[float] = []
    for line in highest:
        moved_down.append(max(line.points[-1].y, moved_down[-1] + _LABEL_HEIGHT if moved_down else 0))
    floors = (_BOTTOM - _LABEL_HEIGHT * number for number in reversed(range(len(highest))))
    return {
        line.row: _Label(
            y=min(y, floor), text=line.name if len(line.name) <= _LABEL_LENGTH else line.name[: _LABEL_LENGTH - 1] + "…"
        )
        for line, y, floor in zip(highest, moved_down, floors, strict=True)
    }


def _ticks(scale: _Scale) -> list[tuple[float, str]]:
    """Where numbers stand on the axis, and the numbers."""
    step = max(1, math.ceil((scale.highest - scale.lowest) / 7))
    ticks = [(round(scale.at(exponent), 1), _power(exponent)) for exponent in range(scale.lowest, scale.highest + 1, step)]
    if scale.top > _TOP:
        ticks.append((_TOP, "more"))
    if scale.bottom < _BOTTOM:
        ticks.append((_BOTTOM, "less"))
    return ticks


def _power(exponent: int) -> str:
    return f"{10.0**exponent:g}" if -3 <= exponent <= 3 else "10" + str(exponent).translate(_SUPERSCRIPTS)
