"""``onnx-ci ops``: all operators of a model that cannot be exported, at each opset; or those of a file."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from onnx_ci.cli.common import (
    find_recipes,
    options_of,
    recipe_named,
    settings_from,
    show_problems,
    with_exit_code,
)
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.recipes import Recipes
from onnx_ci.errors import ConfigurationError, ExitCode, existing_file
from onnx_ci.matrix.plan import CellPlan, plan_of, with_recipe
from onnx_ci.matrix.scope import RecipeScope
from onnx_ci.opsets import EXPORTERS, FIRST_DYNAMO_OPSET, format_opsets
from onnx_ci.processes.control_groups import usable_cores
from onnx_ci.processes.limits import default_jobs, process_limits
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Cell, Finding
from onnx_ci.text import count, one_line

if TYPE_CHECKING:
    from onnx_ci.onnx_model.operators import OperatorUse
    from onnx_ci.stages.export.unsupported_ops import OperatorSupport


@click.command()
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE|FILE.onnx…")
@options_of("opsets", "exporters", "recipe-files", "packages", "isolation", "jobs", "timeout", "memory-limit", paths=False)
@with_exit_code
def ops(recipes: tuple[str, ...], **flags: str | None) -> NoReturn:
    r"""List the operators that cannot be exported, or those of a file.

    An export stops at the first operator that it cannot convert; this command lists all, opset by opset, and the lowest opset
    that works. RECIPE is the name of a recipe, a file (all its recipes), or FILE::NAME. Without --opsets, every opset that
    torch and onnx support is tried. The exit code is 1 if an operator cannot be exported at one of them.

    For a FILE.onnx, its operators are listed with their counts, including those in subgraphs and functions, with the least
    opset that has them, and the first release of onnx that knows the file's opset and IR version.

    \b
    Examples:
      onnx-ci ops lstm
      onnx-ci ops recipes/models/lstm.py --exporters=torchscript
      onnx-ci ops models.py::net --opsets=13
      onnx-ci ops model.onnx
    """
    settings = settings_from(flags)
    if files := [Path(each) for each in recipes if each.endswith(".onnx")]:
        if len(files) < len(recipes):
            raise ConfigurationError("recipes and files are listed in different ways; name them in two commands")
        if given := [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is not None]:
            raise ConfigurationError(f"a file is listed as it is, without {', '.join(given)}")
        sys.exit(_list_files(files))
    found = _found(recipes, settings)
    from onnx_ci.stages.export.unsupported_ops import known_opsets  # loads torch

    opsets = settings.opsets or known_opsets()
    cells = {
        (scope.name, exporter): list(_cells(scope, exporter, opsets))
        for scope, _ in found.values()
        for exporter in settings.exporters or scope.exporters or EXPORTERS
    }
    if not any(cells.values()):
        raise ConfigurationError(f"dynamo supports no opset below {FIRST_DYNAMO_OPSET}; pass a higher one with --opsets")
    listings: dict[Cell, OperatorSupport] = {}
    for scope, of_file in found.values():
        plans = [plan_of(cell, scope, settings) for (name, _), group in cells.items() if name == scope.name for cell in group]
        listings |= {listing.cell: listing for listing in _listings(plans, of_file)}
    for of_file in {id(each): each for _, each in found.values()}.values():
        of_file.close()
    for (name, exporter), group in cells.items():
        if group:
            of_group = [listings[cell] for cell in group]
            span = format_opsets(listing.cell.opset for listing in of_group)
            click.echo(f"{name}, {exporter} at opset{'s' * (len(of_group) > 1)} {span}:")
            for line in _lines(of_group):
                click.echo(f"  {one_line(line)}")
    sys.exit(ExitCode.PASSED if all(listing.is_supported for listing in listings.values()) else ExitCode.FAILED)


def _listings(plans: Sequence[CellPlan], recipes: Recipes) -> Iterator[OperatorSupport]:
    """The support of each cell's operators, in any order; each from its own process, unless the settings disable isolation.

    Raises:
        EnvironmentLacksError: no process could be started.
    """
    from onnx_ci.stages.export.unsupported_ops import OperatorSupport, operator_support

    settings = recipes.settings
    if settings.isolation == "none":
        for each in plans:
            recipe = recipes.recipe_here(each.cell.recipe)
            if recipe is not None:
                yield operator_support(with_recipe(each, recipe, settings))
        return
    works = {each.cell: (each.cell.recipe, functools.partial(_send_support, each, settings)) for each in plans}
    jobs = settings.jobs or default_jobs(usable_cores())
    for cell, event in recipes.run_all(works, process_limits(settings.timeout, settings.memory_limit), jobs=jobs):
        if isinstance(event, Death):
            yield OperatorSupport(cell=cell, failure=f"the exporter's process {event.message}")
        else:
            yield from_json(OperatorSupport, event[LAST])


def _send_support(planned: CellPlan, settings: Settings, recipe: Recipe, send: Send) -> None:
    import torch

    from onnx_ci.stages.export.unsupported_ops import operator_support

    torch.set_num_threads(1)
    send({LAST: to_json(operator_support(with_recipe(planned, recipe, settings)))})


def _cells(scope: RecipeScope, exporter: str, opsets: Iterable[int]) -> Iterator[Cell]:
    for opset in opsets:
        # For lower opsets, dynamo exports at its first one and converts the file: there is no list of their operators.
        if exporter != "dynamo" or opset >= FIRST_DYNAMO_OPSET:
            yield Cell(source=scope.source, recipe=scope.name, exporter=exporter, opset=opset, device="cpu")


def _lines(listings: Sequence[OperatorSupport]) -> list[str]:
    """The lines for a recipe with one exporter."""
    rows: dict[tuple[str, str], list[int]] = {}
    messages: dict[str, str] = {}
    for listing in listings:
        for operator, words in listing.unsupported.items():
            messages.setdefault(operator, words)  # the exporter's message contains the opset: keep the first
            rows.setdefault((operator, messages[operator]), []).append(listing.cell.opset)
        if listing.failure:
            rows.setdefault(("(the export)", listing.failure), []).append(listing.cell.opset)
    first = max((len(name) for name, _ in rows), default=0)
    places = {key: f"not at {format_opsets(opsets)}" for key, opsets in rows.items()}
    second = max(map(len, places.values()), default=0)
    lines = [f"{key[0].ljust(first)}  {places[key].ljust(second)}  {key[1]}" for key in rows]
    fine = [listing.cell.opset for listing in listings if listing.is_supported]
    if not rows:
        return ["every operator can be exported"]
    return [*lines, f"the lowest opset that works is {min(fine)}" if fine else "no opset works"]


# --- files ---------------------------------------------------------------------------------------------------------


def _list_files(files: Iterable[Path]) -> ExitCode:
    """Print the operators of each file.

    Raises:
        ConfigurationError: one is not an ONNX file.
    """
    from onnx_ci.onnx_model.operators import least_release, operators_of
    from onnx_ci.onnx_model.signature import read_model

    for path in map(existing_file, files):
        model = read_model(path)
        if isinstance(model, Finding):
            raise ConfigurationError(f"{path}: {model.message}. {model.remedy}")
        uses = operators_of(model)
        nodes = count(sum(use.count for use in uses), "node")
        used = {"", *(use.domain for use in uses)}
        imports = ", ".join(f"{each.domain or 'opset'} {each.version}" for each in model.opset_import if each.domain in used)
        click.echo(one_line(f"{path}: {nodes}, {count(len(uses), 'operator')}; {imports}, IR version {model.ir_version}"))
        names, counts = (max((len(text) for text in texts), default=0) for texts in zip(*map(_cells_of, uses), strict=True))
        for use in uses:
            name, number = _cells_of(use)
            click.echo(one_line(f"  {name.ljust(names)}  {number.rjust(counts)}  {_known_by(use)}"))
        if least := max((use.since for use in uses if use.since and not use.domain), default=None):
            release = least_release(model)
            known = f"onnx {release} or newer knows" if release else "no release that the installed onnx lists knows"
            click.echo(f"  the lowest opset with these operators is {least}; {known} the file's operator sets and IR version")
    return ExitCode.PASSED


def _cells_of(use: OperatorUse) -> tuple[str, str]:
    return use.name, str(use.count)


def _known_by(use: OperatorUse) -> str:
    if use.is_function:
        return "a function in the file"
    if use.since is None:
        return "not defined by onnx: the runtime must have it"
    return f"since {use.domain or 'opset'} {use.since}"


# --- which recipes --------------------------------------------------------------------------------------------------


def _found(words: Iterable[str], settings: Settings) -> dict[str, tuple[RecipeScope, Recipes]]:
    """The recipes that the command line names, each with those among which it was found.

    Raises:
        ConfigurationError: a file or a recipe does not exist, or two recipes have the same name.
    """
    found: dict[str, tuple[RecipeScope, Recipes]] = {}
    for word in words:
        file, _, name = word.rpartition("::")
        if not file and (name.endswith(".py") or os.sep in name):
            file, name = name, ""
        recipes = find_recipes(settings, (Path(file),) if file else ())
        chosen = [recipe_named(name, recipes)] if name else list(recipes.scopes.values())
        if not chosen:
            show_problems(recipes.problems)
            raise ConfigurationError(f"there is no recipe in {file}")
        for each in chosen:
            same, _ = found.setdefault(each.name, (each, recipes))
            if same.source != each.source:
                raise ConfigurationError(
                    f"{same.source} and {each.source} each have a recipe {each.name!r}; name them in two commands"
                )
    return found
