"""``onnx-ci history``: what became of the baselines over the commits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.baseline.history import Moment, history, steps
from onnx_ci.commands.common import options_of, settle, style, with_colour, with_exit_code
from onnx_ci.config import Settings
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.report.html import Past, render_history
from onnx_ci.report.json_file import write_text
from onnx_ci.report.text import one_line

LAST = 50


@click.command(name="history")
@click.argument("recipes", nargs=-1)
@click.option("--last", type=click.IntRange(min=1), default=LAST, show_default=True, metavar="N", help="So many commits.")
@click.option("--html", type=click.Path(path_type=Path), metavar="PATH", help="Draw it as a page for a browser.")
@options_of("baseline-folder", "baseline-limits", paths=False)
@with_colour
@with_exit_code
def show_history(recipes: tuple[str, ...], last: int, html: Path | None, **flags: str | None) -> None:
    r"""Tell and draw what each commit moved in the baselines.

    Of RECIPES, or of all. Nothing is run, and the working tree stays as it is. `onnx-ci report --history` draws the same
    into the page of a run.

    \b
    Examples:
      onnx-ci history
      onnx-ci history lstm --last=10
      onnx-ci history --html=history.html
    """
    settings = settle(flags)
    past = past_of(settings, last, recipes)
    if html is not None:
        write_text(render_history(past), html, "the page")
    for moment, lines in steps(past.moments, past.limits):
        click.echo(style(one_line(moment.title), None))
        for line in [*moment.problems, *(lines or ["nothing that counts"])]:
            click.echo(one_line(f"    {line}"))
    first = past.moments[0]
    click.echo(f"{style(one_line(first.title), None)}\n    {_recorded(first)}")


def past_of(settings: Settings, last: int = LAST, recipes: tuple[str, ...] = ()) -> Past:
    """The baselines of ``recipes``, or of all, over the last commits.

    Raises:
        ConfigurationError: nothing was ever recorded, or nothing of one of the recipes.
    """
    folder = BaselineFolder(settings.root / settings.baseline_folder)
    moments = history(folder, last=last)
    known = {recipe for moment in moments for recipe in moment.baselines}
    for recipe in recipes:
        if recipe not in known:
            raise ConfigurationError(f"nothing is recorded of {recipe!r}{did_you_mean(recipe, known)}")
    if not known and not any(moment.problems for moment in moments):
        raise ConfigurationError(f"nothing was ever recorded in {folder.path}; record it with onnx-ci baseline update")
    return Past(moments=[_only(recipes, moment) for moment in moments], limits=settings.baseline_limits)


def _only(recipes: tuple[str, ...], moment: Moment) -> Moment:
    if not recipes:
        return moment
    return replace(moment, baselines={name: each for name, each in moment.baselines.items() if name in recipes})


def _recorded(moment: Moment) -> str:
    return f"recorded: {', '.join(sorted(moment.baselines)) or 'nothing that can be read'}"
