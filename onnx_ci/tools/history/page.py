"""The history of the baselines as an HTML page: a picture of each number over the commits, and what each commit changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnx_ci.baseline.changes import Limits, in_bytes
from onnx_ci.report.templates import asset, fill
from onnx_ci.text import count
from onnx_ci.tools.history.history import Moment, series, steps


def render(moments: Sequence[Moment], limits: Limits) -> str:
    """The page of baselines over the commits, oldest first. Beyond the limits, a number counts as changed."""
    dates = [each.date for each in moments if each.date]
    commits = count(len(dates), "commit")
    titles = [each.title for each in moments]
    page = fill(
        "history.html.jinja",
        __package__,
        counts=f"{commits}, {dates[0]} to {dates[-1]}" if len(dates) > 1 else commits,
        rows=[
            {
                "title": title,
                "drift": trend(numbers["drift"], titles, "{:.3g}".format, is_log=True),
                "file_bytes": trend(numbers["file_bytes"], titles, in_bytes),
                "operators": trend(numbers["operators"], titles, "{:.0f}".format),
            }
            for title, numbers in series(moments)
        ],
        commits=[(moment.title, [*moment.problems, *lines]) for moment, lines in steps(moments, limits)],
        style=asset("page.css") + asset("history.css", __package__),
    )
    return str(page)


_WIDTH, _HEIGHT, _MARGIN = 220, 36, 6


def trend(values: Sequence[float | None], moments: Sequence[str], show: Callable[[float], str], *, is_log: bool = False) -> str:
    """A line that steps from moment to moment, with a mark at each change and at the end; empty if there is no value.

    Args:
        values: one for each moment; ``None`` where there is none.
        moments: the name of each, shown when the pointer is on a mark.
        show: formats a value.
        is_log: whether the scale is logarithmic.
    """
    recorded = [value for value in values if value is not None]
    if not recorded:
        return ""
    heights = [_scaled(value, is_log) for value in recorded]
    low, high = min(heights), max(heights)
    path, marks, before = "", [], None
    for place, value in enumerate(values):
        if value is None:
            before = None
            continue
        x = f"{_along(place / (len(values) - 1) if len(values) > 1 else 0.5, _WIDTH):.1f}"
        share = (_scaled(value, is_log) - low) / (high - low) if high > low else 0.5
        y = f"{_HEIGHT - _along(share, _HEIGHT):.1f}"
        path += f"M{x} {y}h0" if before is None else f"H{x}V{y}"
        if before is not None and value != before:
            kind = "worse" if value > before else "mark"
            marks.append({"x": x, "y": y, "kind": kind, "title": f"{moments[place]}: {show(before)} → {show(value)}"})
        elif place == len(values) - 1:
            marks.append({"x": x, "y": y, "kind": "mark", "title": f"{moments[place]}: {show(value)}"})
        before = value
    first, last = show(recorded[0]), show(recorded[-1])
    words = first if first == last else f"{first} → {last}"
    return fill("sparkline.svg.jinja", __package__, width=_WIDTH, height=_HEIGHT, words=words, path=path, marks=marks)


def _along(share: float, length: int) -> float:
    return _MARGIN + (length - 2 * _MARGIN) * share


def _scaled(value: float, is_log: bool) -> float:
    if math.isnan(value) or value == math.inf:
        value = 1e30
    return math.log10(max(value, 1e-3)) if is_log else value
