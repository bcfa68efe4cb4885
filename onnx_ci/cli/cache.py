"""``onnx-ci cache``: the verdicts that are kept, and why the cells of the last run ran."""

from __future__ import annotations

import click

from onnx_ci.cache.folder import Folder, LastRun
from onnx_ci.cli.common import options_of, settings_from, with_exit_code
from onnx_ci.text import count, one_line


@click.command(name="cache")
@options_of("cache", paths=False)
@click.option("--clear", is_flag=True, help="Remove every verdict.")
@with_exit_code
def show_cache(clear: bool, **flags: str | None) -> None:
    r"""Show or clear the verdicts that are kept, and show why cells ran.

    A cell runs again only if something that its verdict depends on has changed.

    \b
    Examples:
      onnx-ci cache
      onnx-ci cache --clear
    """
    path = settings_from(flags).cache_folder
    if path is None:
        click.echo("verdicts are not cached: cache is off")
        return
    folder = Folder(path)
    if clear:
        click.echo(f"removed {count(folder.clear(), 'verdict')} from {path}")
        return
    click.echo(f"{count(folder.verdicts(), 'verdict')}, {folder.size() / 1024:.0f} KiB, in {path}")
    if (run := folder.last_run()) is not None:
        click.echo(f"last run: {_in_words(run)}")


def _in_words(run: LastRun) -> str:
    """``34 cells from the cache; 2 ran: model.py changed``."""
    most_frequent_first = sorted(run.ran, key=lambda reason: (-run.ran[reason], reason))
    reasons = [f"{run.ran[reason]} ran: {one_line(reason)}" for reason in most_frequent_first]
    return "; ".join([f"{count(run.cached, 'cell')} from the cache", *reasons])
