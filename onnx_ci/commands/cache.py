"""``onnx-ci cache``: the verdicts that are kept."""

from __future__ import annotations

import click

from onnx_ci.cache import VerdictCache
from onnx_ci.commands.common import options_of, settle, with_exit_code


@click.command(name="cache")
@options_of("cache", paths=False)
@click.option("--clear", is_flag=True, help="Remove every verdict.")
@with_exit_code
def show_cache(clear: bool, **flags: str | None) -> None:
    r"""Show or clear the verdicts that are kept.

    A cell of which nothing has changed since its verdict is not run again.

    \b
    Examples:
      onnx-ci cache
      onnx-ci cache --clear
    """
    folder = settle(flags).cache_folder
    if folder is None:
        click.echo("verdicts are not kept: cache is off")
        return
    cache = VerdictCache(folder)
    if clear:
        click.echo(f"removed {cache.clear()} verdicts from {folder}")
    else:
        click.echo(f"{len(cache.entries())} verdicts, {cache.size() / 1024:.0f} KiB, in {folder}")
