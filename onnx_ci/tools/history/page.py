"""The history of the baselines as an HTML page: a picture of each number over the commits, and what each commit changed."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_ci.baseline.changes import Limits, in_bytes
from onnx_ci.report.templates import asset, fill
from onnx_ci.text import count
from onnx_ci.tools.history.history import Moment, Series, series, steps
from onnx_ci.tools.history.sparkline import trend


def render(moments: Sequence[Moment], limits: Limits) -> str:
    """The page.

    Args:
        moments: the baselines over the commits, oldest first.
        limits: beyond these, a number counts as changed.
    """
    dates = [each.date for each in moments if each.date]
    commits = count(len(dates), "commit")
    titles = [each.title for each in moments]
    page = fill(
        "history.html.jinja",
        __package__,
        counts=f"{commits}, {dates[0]} to {dates[-1]}" if len(dates) > 1 else commits,
        rows=[_trends(each, titles) for each in series(moments)],
        commits=[(moment.title, [*moment.problems, *lines]) for moment, lines in steps(moments, limits)],
        style=asset("page.css") + asset("history.css", __package__),
    )
    return str(page)


def _trends(series: Series, titles: Sequence[str]) -> dict[str, str]:
    return {
        "title": series.title,
        "drift": trend(series.drift, titles, "{:.3g}".format, is_log=True),
        "file_bytes": trend(series.file_bytes, titles, in_bytes),
        "operators": trend(series.operators, titles, "{:.0f}".format),
    }
