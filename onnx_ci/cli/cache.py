"""``onnx-ci cache``: the cached verdicts."""

from __future__ import annotations

import click

from onnx_ci.cache.memory import forget_all
from onnx_ci.cache.store import VerdictCache
from onnx_ci.cli.common import options_of, settings_from, with_exit_code
from onnx_ci.text import count


@click.command(name="cache")
@options_of("cache", paths=False)
@click.option("--clear", is_flag=True, help="Remove every verdict.")
@with_exit_code
def show_cache(clear: bool, **flags: str | None) -> None:
    r"""Show or clear the cached verdicts.

    A cell is not run again unless something that its verdict depends on has changed.

    \b
    Examples:
      onnx-ci cache
      onnx-ci cache --clear
    """
    folder = settings_from(flags).cache_folder
    if folder is None:
        click.echo("verdicts are not cached: cache is off")
        return
    cache = VerdictCache(folder)
    if clear:
        forget_all(folder)
        click.echo(f"removed {count(cache.clear(), 'verdict')} from {folder}")
    else:
        click.echo(f"{count(len(cache.entries()), 'verdict')}, {cache.size() / 1024:.0f} KiB, in {folder}")
