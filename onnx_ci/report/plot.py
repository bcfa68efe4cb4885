"""Drift over the opsets as an SVG picture: a line for each row of the grid, on a logarithmic scale, against the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_ci.records import OutputDrift
from onnx_ci.report.grid import Grid, Row
from onnx_ci.report.markup import escape

_WIDTH, _HEIGHT = 1000, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 800, 14, 300
_BAND = 22
"""The height of the strips above and below the scale, for what a logarithm cannot place."""

_LABELS = 16
_LABEL_HEIGHT = 15
_LABEL_LENGTH = 26
_BELOW, _ABOVE = 4, 8
"""How many powers of ten the scale goes below and above the limit at most: what is farther away is all the same."""

_MANY = 40
"""From so many lines on each is drawn thinly, so that a crowd does not hide what leaves it."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture and what it shows, in words."""

    svg: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class _Point:
    x: float
    y: float
    worst: OutputDrift
    opset: int
    is_bad: bool


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Where a drift stands. Exponents are powers of ten of what the axis shows."""

    unit: float
    """What the axis shows at the limit: the limit itself, or 1 where outputs have different ones."""
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
    series = {index: points for index, row in enumerate(grid.rows) if (points := _points(row, grid, scale))}
    labels = _labels(grid, series)
    lines = [
        f'<g class="series" data-row="{index}"><title>{escape(_told(grid.rows[index], points))}</title>'
        f"{_path(_line(points, grid), 'line')}"
        f"{_path(''.join(f'M{p.x:.0f} {p.y:.1f}h0' for p in points if not p.is_bad), 'dots')}"
        f"{_path(''.join(f'M{p.x - 4:.0f} {p.y - 4:.1f}l8 8m-8 0l8-8' for p in points if p.is_bad), 'crosses')}"
        f"{labels.get(index, '')}</g>"
        for index, points in series.items()
    ]
    highest = max(series, key=lambda index: _peak(series[index]).worst.share_of_limit)
    beyond = sum(_peak(points).worst.share_of_limit > 1 for points in series.values())
    measure = "Drift" if scale.unit != 1.0 else "Drift, as a multiple of each output's limit"
    told = [
        f"{measure}, on a logarithmic scale.",
        f"{len(series)} {'line' if len(series) == 1 else 'lines'}, one for each recipe and device;",
        f"{beyond or 'none'} of them {'crosses' if beyond == 1 else 'cross'} the limit.",
        f"The largest: {_told(grid.rows[highest], series[highest])}.",
    ]
    words = " ".join(told)
    many = " many" * (len(series) > _MANY)
    svg = (
        f'<svg class="plot{many}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(words)}">'
        f"{_axes(grid, scale)}{''.join(lines)}</svg>"
    )
    return Plot(svg=svg, caption=words + " Named are those that end highest." * (len(labels) < len(series)))


def _path(data: str, kind: str) -> str:
    return f'<path class="{kind}" d="{data}"/>' if data else ""


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.1f}">{escape(text)}</text>'


def _x(place: int, grid: Grid) -> float:
    return _LEFT + (_RIGHT - _LEFT) * (place + 0.5) / len(grid.opsets)


def _points(row: Row, grid: Grid, scale: _Scale) -> list[_Point]:
    return [
        _Point(
            x=_x(place, grid),
            y=scale.y(result.worst.share_of_limit),
            worst=result.worst,
            opset=result.cell.opset,
            is_bad=result.status.is_bad,
        )
        for place, result in enumerate(row.results)
        if result is not None and result.worst is not None
    ]


def _line(points: Sequence[_Point], grid: Grid) -> str:
    """The points of neighbouring opsets, joined."""
    data, step, before = "", (_RIGHT - _LEFT) / len(grid.opsets), -math.inf
    for point in points:
        data += f"{'L' if point.x - before < 1.5 * step else 'M'}{point.x:.0f} {point.y:.1f}"
        before = point.x
    return data if "L" in data else ""


def _peak(points: Sequence[_Point]) -> _Point:
    return max(points, key=lambda point: point.worst.share_of_limit)


def _told(row: Row, points: Sequence[_Point]) -> str:
    peak = _peak(points)
    return f"{row.title}, drift {peak.worst.drift:.3g} with limit {peak.worst.limit:g} at opset {peak.opset}"


def _labels(grid: Grid, series: dict[int, list[_Point]]) -> dict[int, str]:
    """Names beside the ends of the lines that end highest, moved apart where they would overlap."""
    chosen = sorted(series, key=lambda index: series[index][-1].y)[:_LABELS]
    places: list[float] = []
    for index in chosen:
        places.append(max(series[index][-1].y, places[-1] + _LABEL_HEIGHT if places else 0))
    floor = float(_BOTTOM)
    for number in reversed(range(len(places))):
        places[number] = min(places[number], floor)
        floor = places[number] - _LABEL_HEIGHT
    labels = {}
    for index, y in zip(chosen, places, strict=True):
        end, title = series[index][-1], grid.rows[index].title
        short = title if len(title) <= _LABEL_LENGTH else title[: _LABEL_LENGTH - 1] + "…"
        leader = _path(f"M{end.x + 5:.0f} {end.y:.1f}L{_RIGHT + 4} {y:.1f}h4", "leader")
        labels[index] = leader + _text("end", _RIGHT + 12, y + 4, short)
    return labels


def _axes(grid: Grid, scale: _Scale) -> str:
    one_limit = scale.unit != 1.0
    parts = [f'<rect class="beyond" x="{_LEFT}" y="{_TOP}" width="{_RIGHT - _LEFT}" height="{scale.limit - _TOP:.1f}"/>']
    step = max(1, math.ceil((scale.highest - scale.lowest) / 7))
    ticks = {scale.at(exponent): _power(exponent) for exponent in range(scale.lowest, scale.highest + 1, step)}
    if scale.top > _TOP:
        ticks[_TOP] = "more"
    if scale.bottom < _BOTTOM:
        ticks[_BOTTOM] = "less"
    for y, label in ticks.items():
        parts += [_text("tick", _LEFT - 8, y + 4, label), _path(f"M{_LEFT} {y:.1f}H{_RIGHT}", "rule")]
    said = f"limit {scale.unit:g}" if one_limit else "the limit"
    parts += [_path(f"M{_LEFT} {scale.limit:.1f}H{_RIGHT}", "limit"), _text("limit", _LEFT + 6, scale.limit - 5, said)]
    parts += [_text("opset", _x(place, grid), _BOTTOM + 24, str(opset)) for place, opset in enumerate(grid.opsets)]
    return "".join(parts)


def _power(exponent: int) -> str:
    return f"{10.0**exponent:g}" if -3 <= exponent <= 3 else "10" + str(exponent).translate(_SUPERSCRIPTS)
