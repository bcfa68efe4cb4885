"""``onnx-ci history``: what each commit changed in the baselines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.cli.common import options_of, settings_from, style, with_colour, with_exit_code
from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.results.files import write_text
from onnx_ci.text import one_line
from onnx_ci.tools.history.history import Moment, history, steps


@click.command(name="history")
@click.argument("recipes", nargs=-1)
@click.option("--last", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="How many commits.")
@click.option("--html", type=click.Path(path_type=Path), metavar="PATH", help="Write the history as an HTML page with plots.")
@options_of("baseline-folder", "baseline-limits", paths=False)
@with_colour
@with_exit_code
def show_history(recipes: tuple[str, ...], last: int, html: Path | None, **flags: str | None) -> None:
    r"""Show what each commit changed in the baselines.

    Without RECIPES, all recipes are shown. Nothing is run, and the working tree is not changed.

    \b
    Examples:
      onnx-ci history
      onnx-ci history lstm --last=10
      onnx-ci history --html=history.html
    """
    settings = settings_from(flags)
    moments = _moments(settings, last, recipes)
    if html is not None:
        from onnx_ci.tools.history.page import render  # loads jinja2

        write_text(render(moments, settings.baseline_limits), html, "the page")
    for moment, changes in steps(moments, settings.baseline_limits):
        click.echo(style(one_line(moment.title), None))
        for line in [*moment.problems, *(changes or ["no change beyond the limits"])]:
            click.echo(one_line(f"    {line}"))
    oldest = moments[0]
    click.echo(style(one_line(oldest.title), None))
    click.echo(f"    recorded: {', '.join(sorted(oldest.baselines)) or 'nothing that can be read'}")


def _moments(settings: Settings, last: int, recipes: tuple[str, ...]) -> list[Moment]:
    """The baselines of ``recipes``, or of all recipes, over the last commits."""
    folder = BaselineFolder(settings.root / settings.baseline_folder)
    moments = history(folder, last=last)
    recorded = {recipe for moment in moments for recipe in moment.baselines}
    for recipe in recipes:
        if recipe not in recorded:
            raise ConfigurationError(f"nothing is recorded for {recipe!r}{did_you_mean(recipe, recorded)}")
    if not recorded and not any(moment.problems for moment in moments):
        raise ConfigurationError(f"nothing was ever recorded in {folder.path}; record it with onnx-ci baseline update")
    if not recipes:
        return moments
    return [
        replace(each, baselines={name: each.baselines[name] for name in recipes if name in each.baselines}) for each in moments
    ]
