"""``onnx-ci versions``: the version of a package with which a failing cell passes."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import options_of, settings_from, with_colour, with_exit_code
from onnx_ci.cli.grouped_help import GroupedCommand
from onnx_ci.cli.why import judged_cell
from onnx_ci.config.reproduce import OF_ONE_CELL
from onnx_ci.config.values import OFF
from onnx_ci.matrix.scope import runtimes_of
from onnx_ci.results.verdict import broken_rules, exit_code
from onnx_ci.text import listed, one_line
from onnx_ci.tools.versions.overlay import Request, installed
from onnx_ci.tools.versions.packages import TORCH, packages_of
from onnx_ci.tools.versions.repair import repair
from onnx_ci.tools.versions.runs import Trials, flags_of, only


@click.command(cls=GroupedCommand)
@click.argument("target", metavar="CELL")
@click.option("--with-torch", is_flag=True, help="Try other versions of torch, too, the last. Each is a large download.")
@click.option("--pre", is_flag=True, help="Try pre-releases, too.")
@options_of("recipe-files", "packages", *(option.name for option in OF_ONE_CELL))
@with_colour
@with_exit_code
def versions(target: str, with_torch: bool, pre: bool, paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""Look for a version of a package with which a failing cell passes.

    The packages of the exporter and of the runtime are tried, one at a time, newer versions first. A CELL is an id as shown by
    `onnx-ci list`, with or without the recipe file. The exit code is that of the cell.

    \b
    Examples:
      onnx-ci versions net::opset18-cpu
    """
    settings = settings_from(flags | {"cache": OFF})
    subject, result = judged_cell(target, settings, paths)
    click.echo()
    broken = broken_rules(result.findings)
    if not broken:
        click.echo("no other version is tried: the cell does not fail")
        sys.exit(exit_code([result]))
    scope = subject.recipes.scopes[result.cell.recipe]
    cell = dataclasses.replace(result.cell, source=scope.source)  # the command line need not name the file
    packages = packages_of(cell.exporter, runtimes_of(scope, settings), scope.stages if cell.stage else (), installed())
    tried = [name for name in packages if with_torch or name != TORCH]
    file = os.path.relpath(settings.root / cell.source)
    trials = Trials([*flags_of({**flags, **only([cell], settings)}), file], settings, Request(requirements=(), pre=pre))
    found = repair(cell, broken, tried, trials, lambda words: click.echo(f"  {one_line(words)}"), pre=pre)
    if found is not None:
        click.echo(f"\n{found.words}")
    else:
        click.echo(f"\nno other version of {listed(tried) or 'a package'} that was tried repairs it")
        if not with_torch and TORCH in packages:
            click.echo("torch was not tried, because it is a large download: --with-torch tries it")
    sys.exit(exit_code([result]))
