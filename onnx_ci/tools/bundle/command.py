"""``onnx-ci bundle``: a bug report that stands alone."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import GroupedCommand, find_recipes, options_of, settings_from, with_colour, with_exit_code
from onnx_ci.config.reproduce import OF_ONE_CELL
from onnx_ci.config.settings import Settings
from onnx_ci.config.values import DEFAULT_ISOLATION
from onnx_ci.errors import ConfigurationError
from onnx_ci.results.records import CellResult
from onnx_ci.results.verdict import exit_code
from onnx_ci.text import one_line
from onnx_ci.tools.named_cells import NamedCell
from onnx_ci.tools.why.command import judged_cell


@click.command(cls=GroupedCommand)
@click.argument("target", metavar="CELL")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@options_of("recipe-files", "packages", *(option.name for option in OF_ONE_CELL))
@with_colour
@with_exit_code
def bundle(target: str, folder: Path, paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""Write a bug report about a failing cell.

    DIR receives a script that shows the fault without your model, the data that it needs, the ONNX file, and a text to paste.
    A CELL is an id as shown by `onnx-ci list`, with or without the recipe file. The exit code is that of the cell.

    \b
    Examples:
      onnx-ci bundle net::opset13-cpu report
    """
    settings = settings_from(flags)
    subject, result = judged_cell(target, settings, paths)
    click.echo(f"\n{one_line(_bundled(subject, result, folder, settings))}")
    sys.exit(exit_code([result]))


def _bundled(subject: NamedCell, result: CellResult, folder: Path, settings: Settings) -> str:
    """Write the bug report, and return what to say about it."""
    from onnx_ci.tools.bundle.bundle import NoBundleError, write_bundle  # with torch

    recipes = subject.recipes
    if settings.isolation == "none":  # what a bug report tries may crash
        settings = dataclasses.replace(settings, isolation=DEFAULT_ISOLATION)
        recipes = find_recipes(settings, (settings.root / recipes.scopes[subject.spec.cell.recipe].source,))
    try:
        with recipes:
            return write_bundle(subject.spec, result.findings, folder, recipes)
    except NoBundleError as error:
        return f"no bug report is written: {error}"
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror or error}") from None
