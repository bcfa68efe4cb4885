"""``onnx-ci ops``: every operator of a model that cannot be exported, at each opset, in one go."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from onnx_ci.commands.common import find_quietly, options_of, recipe_named, settle, show_problems, with_exit_code
from onnx_ci.config import Settings
from onnx_ci.discovery import Found
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.matrix import PlannedCell
from onnx_ci.opsets import EXPORTERS, FIRST_DYNAMO_OPSET, format_opsets
from onnx_ci.records import Cell
from onnx_ci.report.text import one_line

if TYPE_CHECKING:
    from onnx_ci.unconvertible import Listing


@click.command()
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE…")
@options_of("opsets", "exporters", "recipe-files", "packages", "isolation", "jobs", "timeout", "memory-limit", paths=False)
@with_exit_code
def ops(recipes: tuple[str, ...], **flags: str | None) -> NoReturn:
    r"""List all operators that cannot be exported, opset by opset.

    An export stops at the first of them; this one goes on, and tells the lowest opset that would do. RECIPE is a recipe's
    name, a file (all its recipes), or FILE::NAME. Unless --opsets says otherwise, every opset that torch and onnx know is
    tried. The exit code is 1 if an operator cannot be exported at one of them.

    \b
    Examples:
      onnx-ci ops lstm
      onnx-ci ops recipes/lstm.py --exporters=torchscript
      onnx-ci ops models.py::net --opsets=13
    """
    settings = settle(flags)
    found = _found(recipes, settings)
    from onnx_ci.unconvertible import known_opsets, unconvertible  # loads torch

    opsets = settings.opsets or known_opsets()
    cells = {
        (each.recipe.name, exporter): [
            PlannedCell(cell=cell, recipe=each.recipe) for cell in _cells(each, exporter, opsets, settings)
        ]
        for each in found
        for exporter in settings.exporters or each.recipe.exporters or EXPORTERS
    }
    planned = [each for group in cells.values() for each in group]
    if not planned:
        raise ConfigurationError(f"dynamo writes no lower opset than {FIRST_DYNAMO_OPSET}; name higher ones with --opsets")
    listings = {
        listing.cell: listing for listing in unconvertible(planned, settings, jobs=settings.jobs or os.cpu_count() or 1)
    }
    for (name, exporter), group in cells.items():
        if group:
            of_group = [listings[each.cell] for each in group]
            span = format_opsets(listing.cell.opset for listing in of_group)
            click.echo(f"{name}, {exporter} at opset{'s' * (len(of_group) > 1)} {span}:")
            for line in _lines(of_group):
                click.echo(f"  {one_line(line)}")
    sys.exit(ExitCode.PASSED if all(listing.is_fine for listing in listings.values()) else ExitCode.FAILED)


def _cells(found: Found, exporter: str, opsets: Iterable[int], settings: Settings) -> Iterator[Cell]:
    for opset in opsets:
        # dynamo builds at its first opset and converts the finished file; of lower ones its operators know nothing.
        if exporter != "dynamo" or opset >= FIRST_DYNAMO_OPSET:
            yield Cell(source=found.source, recipe=found.recipe.name, exporter=exporter, opset=opset, device="cpu")


def _lines(listings: Sequence[Listing]) -> list[str]:
    """What is to be said of a recipe with one exporter."""
    rows: dict[tuple[str, str], list[int]] = {}
    said: dict[str, str] = {}
    for listing in listings:
        for operator, words in listing.refused.items():
            said.setdefault(operator, words)  # the exporter puts the opset into its words: one version of them will do
            rows.setdefault((operator, said[operator]), []).append(listing.cell.opset)
        if listing.failure:
            rows.setdefault(("(the export)", listing.failure), []).append(listing.cell.opset)
    first = max((len(name) for name, _ in rows), default=0)
    places = {key: f"not at {format_opsets(opsets)}" for key, opsets in rows.items()}
    second = max(map(len, places.values()), default=0)
    lines = [f"{key[0].ljust(first)}  {places[key].ljust(second)}  {key[1]}" for key in rows]
    fine = [listing.cell.opset for listing in listings if listing.is_fine]
    if not rows:
        return ["every operator can be exported"]
    return [*lines, f"the lowest opset that does is {min(fine)}" if fine else "no opset does"]


# --- which recipes --------------------------------------------------------------------------------------------------


def _found(words: Iterable[str], settings: Settings) -> list[Found]:
    """The recipes that the command line names.

    Raises:
        ConfigurationError: there is no such file, or no such recipe, or two of one name.
    """
    found: dict[str, Found] = {}
    for word in words:
        file, _, name = word.rpartition("::")
        if not file and (name.endswith(".py") or os.sep in name):
            file, name = name, ""
        catalogue = find_quietly(settings, (Path(file),) if file else ())
        chosen = [recipe_named(name, catalogue)] if name else list(catalogue.recipes.values())
        if not chosen:
            show_problems(catalogue)
            raise ConfigurationError(f"there is no recipe in {file}")
        for each in chosen:
            same = found.setdefault(each.recipe.name, each)
            if same.source != each.source:
                raise ConfigurationError(
                    f"{same.source} and {each.source} each have a recipe {each.recipe.name!r}; name them in two commands"
                )
    return list(found.values())
