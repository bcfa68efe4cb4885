"""``onnx-ci verify``: judge an existing file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import find_recipes, options_of, recipe_named, settings_from, style, with_colour, with_exit_code
from onnx_ci.cli.grouped_help import GroupedCommand
from onnx_ci.report.text import explain, outcome
from onnx_ci.results.verdict import exit_code
from onnx_ci.text import one_line


@click.command(cls=GroupedCommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--recipe", "name", required=True, metavar="NAME", help="The recipe that the file is an export of.")
@click.option("--opset", type=int, metavar="N", help="The opset that the file should have. Default: the opset of the file.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Where to run the file.")
@click.option("--exporter", metavar="NAME", help="torchscript or dynamo. Default: the opset's default exporter.")
@click.option(
    "--stage", metavar="NAME", help="The stage in the recipe's then= that made the file. Default: none, the exporter did."
)
@options_of("recipe-files", "packages", "runtimes", "weights", "max-drift", "allow", "inputs", "report", "save-inputs")
@with_colour
@with_exit_code
def verify(
    file: Path,
    name: str,
    opset: int | None,
    device: str,
    exporter: str | None,
    stage: str | None,
    paths: tuple[Path, ...],
    **flags: str | None,
) -> NoReturn:
    r"""Judge an existing ONNX file as an export of a recipe.

    The recipe is searched for in PATHS, or in the project's recipe files. The file must contain the recipe's own weights. It
    may be optimized or converted: a difference that the rounding of float16, bfloat16, int8 or int4 explains is a note. With
    --stage, the file is judged as a run judges the file of that stage.

    \b
    Examples:
      onnx-ci verify lstm.onnx --recipe=lstm
      onnx-ci verify resnet.onnx --recipe=resnet18 --weights=resnet18=trained.pt recipes
      onnx-ci verify optimized.onnx --recipe=lstm --allow=foreign-domain
      onnx-ci verify int8.onnx --recipe=quantized --stage=int8-static
    """
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
            device=device,
            stage=stage,
            report=settings.report,
            save_inputs=settings.save_inputs,
        )
    click.echo(f"{one_line(str(file))} {style(outcome(result), result.status)}")
    if result.findings:
        click.echo(explain(result, shlex.join(["onnx-ci", *sys.argv[1:]])))
    sys.exit(exit_code([result]))
