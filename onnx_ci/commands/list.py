"""``onnx-ci list``: the cells, without building any model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.commands.common import options_of, settle, why_nothing, with_exit_code
from onnx_ci.discovery import discover
from onnx_ci.errors import ExitCode
from onnx_ci.matrix import in_shard, plan, seconds_for_shard


@click.command(name="list")
@options_of()
@with_exit_code
def list_cells(paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""List the cells that `run` would run, one id a line, without building any model.

    \b
    Examples:
      onnx-ci list recipes --opsets=13
      onnx-ci list --select='*-cuda'
      onnx-ci list --shard=2/5
    """
    settings = settle(flags)
    seconds = seconds_for_shard(settings)
    catalogue = discover(settings, paths)
    whole = plan(catalogue.recipes.values(), settings)
    matrix = in_shard(whole, settings.shard, seconds)
    for planned in matrix.cells:
        click.echo(planned.cell.id)
    for problem in catalogue.problems:
        click.echo(f"onnx-ci: {problem.source}: {problem.message}", err=True)
    if not matrix.cells:
        click.echo(f"onnx-ci: no cells: {why_nothing(catalogue, whole, settings, ran=matrix)}", err=True)
    sys.exit(ExitCode.USAGE if catalogue.problems else ExitCode.PASSED if matrix.cells else ExitCode.NOTHING_RAN)
