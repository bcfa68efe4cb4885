"""``onnx-ci verify``: judge existing files, with or without a recipe."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import (
    GroupedCommand,
    find_recipes,
    options_of,
    recipe_named,
    settings_from,
    style,
    with_colour,
    with_exit_code,
)
from onnx_ci.cli.file_check import check_files
from onnx_ci.report.text import describe_outcome, describe_result
from onnx_ci.results.verdict import exit_code
from onnx_ci.text import one_line

_OF_EVERY_FILE = ("rules", "isolation", "timeout", "memory-limit")
_OF_A_RECIPE = ("recipe-files", "packages", "runtimes", "weights", "max-drift", "inputs", "report", "save-inputs")


@click.command(cls=GroupedCommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--recipe", "name", metavar="NAME", help="The recipe that FILE is an export of.")
@click.option("--opset", type=int, metavar="N", help="The opset that the file should have. Default: the opset of the file.")
@click.option("--device", metavar="DEVICE", help="Where to run the file. Default: cpu.")
@click.option("--exporter", metavar="NAME", help="torchscript or dynamo. Default: the opset's default exporter.")
@click.option(
    "--pass",
    "graph_pass",
    metavar="NAME",
    help="The pass in the recipe's then= that made the file. Default: none, the exporter did.",
)
@click.option("--no-load", is_flag=True, help="Without a recipe, do not load the files with ONNX Runtime.")
@options_of(*_OF_EVERY_FILE, *_OF_A_RECIPE)
@with_colour
@with_exit_code
def verify(
    file: Path,
    name: str | None,
    opset: int | None,
    device: str | None,
    exporter: str | None,
    graph_pass: str | None,
    no_load: bool,
    paths: tuple[Path, ...],
    **flags: str | None,
) -> NoReturn:
    r"""Judge existing ONNX files, with or without a recipe.

    With --recipe, FILE is judged as an export of that recipe, which is searched for in PATHS, or in the project's recipe files.
    The file must contain the recipe's own weights. It may be optimized or converted: a difference that the rounding of float16,
    bfloat16, int8 or int4 explains is a note. With --pass, the file is judged as a run judges the file of that pass.

    Without a recipe, FILE and PATHS are files. Each must pass onnx.checker with full shape inference, have its external data
    next to it, contain no absolute paths and no probe weights, and load in ONNX Runtime. What it computes is not compared with
    anything.

    \b
    Examples:
      onnx-ci verify lstm.onnx --recipe=lstm
      onnx-ci verify resnet.onnx --recipe=resnet18 --weights=resnet18=trained.pt recipes
      onnx-ci verify optimized.onnx --recipe=lstm --rules=foreign-domain=note
      onnx-ci verify int8.onnx --recipe=quantized --pass=int8-static
      onnx-ci verify --no-load models/*.onnx               without a recipe, and without ONNX Runtime
      onnx-ci verify --rules=absolute-path=note model.onnx dynamo writes paths into every node
    """
    own = {"opset": opset, "device": device, "exporter": exporter, "pass": graph_pass}
    if name is None:
        of_recipe = own | {name: flags[name.replace("-", "_")] for name in _OF_A_RECIPE}
        if given := next((name for name, value in of_recipe.items() if value is not None), None):
            raise click.UsageError(f"--{given} is about the export of a recipe; name it: --recipe=NAME")
        sys.exit(check_files([file, *paths], settings_from(flags), load=not no_load))
    if no_load:
        raise click.UsageError("--no-load is about files without a recipe")
    settings = settings_from(flags)
    from onnx_ci.api import verify_recipe

    with find_recipes(settings, paths) as recipes:
        recipe_named(name, recipes)
        result = verify_recipe(
            file,
            recipes,
            name,
            opset=opset,
            exporter=exporter,
            device=device or "cpu",
            graph_pass=graph_pass,
            report=settings.report,
            save_inputs=settings.save_inputs,
        )
    click.echo(f"{one_line(str(file))} {style(describe_outcome(result), result.status)}")
    if result.findings:
        click.echo(describe_result(result, shlex.join(["onnx-ci", *sys.argv[1:]])))
    sys.exit(exit_code([result]))
