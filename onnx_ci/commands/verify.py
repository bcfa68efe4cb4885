"""``onnx-ci verify``: the gate for a file that exists."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.commands.common import (
    exit_code,
    find_quietly,
    options_of,
    recipe_named,
    settle,
    style,
    with_colour,
    with_exit_code,
)
from onnx_ci.environment import require_runtime
from onnx_ci.records import RunReport
from onnx_ci.report.text import explain, outcome


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--recipe", "name", required=True, metavar="NAME", help="The recipe that the file is an export of.")
@click.option("--opset", type=int, metavar="N", help="The opset that the file should have. Default: the one it has.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Where to run the file.")
@click.option("--exporter", metavar="NAME", help="torchscript or dynamo. Default: the usual one of the opset.")
@options_of("recipe-files", "packages", "weights", "drift")
@with_colour
@with_exit_code
def verify(
    file: Path, name: str, opset: int | None, device: str, exporter: str | None, paths: tuple[Path, ...], **flags: str | None
) -> NoReturn:
    r"""Judge an ONNX file that exists, as an export of a recipe.

    The recipe is looked for in PATHS, or in the project's recipe files. The file must hold the recipe's own weights.

    \b
    Examples:
      onnx-ci verify lstm.onnx --recipe=lstm
      onnx-ci verify resnet.onnx --recipe=resnet18 --weights=resnet18=trained.pt recipes
    """
    settings = settle(flags)
    require_runtime(settings.runtimes)
    recipe = recipe_named(name, find_quietly(settings, paths)).recipe
    from onnx_ci import api

    options = {key: value for key, value in flags.items() if value is not None}
    result = api.verify(file, recipe, opset=opset, exporter=exporter, device=device, **options)
    click.echo(f"{file} {style(outcome(result), result.status)}")
    if result.findings:
        click.echo(explain(result, shlex.join(["onnx-ci", *sys.argv[1:]])))
    sys.exit(exit_code(RunReport(environment={}, settings={}, cells=(result,))))
