"""``onnx-ci ops``: all operators of a model that cannot be exported, at each opset; or the operators of a file."""

from __future__ import annotations

import functools
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from onnx_ci.cli.common import find_recipes, options_of, recipe_named, settings_from, show_problems, with_exit_code
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.recipes import Recipes
from onnx_ci.errors import ConfigurationError, ExitCode, existing_file
from onnx_ci.matrix.plan import CellSpec, spec_of, with_recipe
from onnx_ci.matrix.scope import RecipeScope
from onnx_ci.opsets import FIRST_DYNAMO_OPSET, OF_TORCH, format_opsets
from onnx_ci.processes.limits import Limits, default_jobs
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Cell, Finding
from onnx_ci.text import count, one_line

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnx_ci.onnx_model.operators import OperatorUse
    from onnx_ci.tools.ops.unsupported_ops import OperatorSupport


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RECIPE|FILE.py|FILE.onnx…")
@options_of("opsets", "exporters", "recipe-files", "packages", "isolation", "jobs", "timeout", "memory-limit", paths=False)
@with_exit_code
def ops(words: tuple[str, ...], **flags: str | None) -> NoReturn:
    r"""List the operators that cannot be exported, or those of a file.

    An export stops at the first operator that it cannot convert. This command lists all of them, opset by opset, and the lowest
    opset that works. RECIPE is the name of a recipe in FILE.py, or in the project's recipe files. Without RECIPE, all recipes
    of FILE.py are listed. Without --opsets, every opset that torch and onnx support is tried. The exit code is 1 if an operator
    cannot be exported at one of them.

    For a FILE.onnx, its operators are listed with their counts, including those in subgraphs and functions, with the lowest
    opset that has them, and the first release of onnx that supports the file's opset and IR version.

    \b
    Examples:
      onnx-ci ops lstm
      onnx-ci ops recipes/models/lstm.py --exporters=torchscript
      onnx-ci ops net models.py --opsets=13
      onnx-ci ops model.onnx
    """
    settings = settings_from(flags)
    if files := [Path(word) for word in words if word.endswith(".onnx")]:
        if len(files) < len(words):
            raise ConfigurationError("recipes and ONNX files are listed in different ways; name them in two commands")
        if unused := [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is not None]:
            raise ConfigurationError(f"an ONNX file is listed as it is; leave out {', '.join(unused)}")
        sys.exit(_list_files(files))
    paths = [word for word in words if word.endswith(".py") or os.sep in word]
    with find_recipes(settings, tuple(map(Path, paths))) as recipes:
        names = list(dict.fromkeys(word for word in words if word not in paths))
        scopes = [recipe_named(name, recipes) for name in names] or list(recipes.scopes.values())
        if recipes.problems and (paths or not scopes):
            show_problems(recipes.problems)
            raise ConfigurationError(f"not all recipes in {', '.join(paths) or 'the project'} can be listed")
        if not scopes:
            raise ConfigurationError(f"there is no recipe in {', '.join(paths)}")
        plans = list(_plans(scopes, settings))
        if not plans:
            raise ConfigurationError(f"dynamo supports no opset below {FIRST_DYNAMO_OPSET}; pass a higher one with --opsets")
        support = {listing.cell: listing for listing in _supports(plans, recipes)}
    _show(plans, support)
    sys.exit(ExitCode.PASSED if all(listing.is_supported for listing in support.values()) else ExitCode.FAILED)


def _plans(scopes: Iterable[RecipeScope], settings: Settings) -> Iterator[CellSpec]:
    """A cell for each recipe, exporter and opset, whatever the recipes declare about opsets."""
    from onnx_ci.tools.ops.unsupported_ops import known_opsets  # loads torch

    opsets = settings.opsets or known_opsets()
    for scope in scopes:
        for exporter in filter(scope.has_exporter, settings.exporters or scope.exporters or OF_TORCH):
            for opset in opsets:
                # For lower opsets, dynamo exports at its first one and converts the file: there is no list of their operators.
                if exporter != "dynamo" or opset >= FIRST_DYNAMO_OPSET:
                    cell = Cell(source=scope.source, recipe=scope.name, exporter=exporter, opset=opset, device="cpu")
                    yield spec_of(cell, scope, settings)


def _supports(plans: Sequence[CellSpec], recipes: Recipes) -> Iterator[OperatorSupport]:
    """Which operators of each cell are supported, in any order."""
    from onnx_ci.tools.ops.unsupported_ops import OperatorSupport

    settings = recipes.settings
    works = {spec.cell: (spec.cell.recipe, functools.partial(_send_support, spec, settings)) for spec in plans}
    jobs = settings.jobs or default_jobs()
    for cell, event in recipes.run_all(works, Limits.of(settings), jobs=jobs):
        if isinstance(event, Death):
            yield OperatorSupport(cell=cell, failure=f"the exporter's process {event.message}")
        else:
            yield from_json(OperatorSupport, event[LAST])


def _send_support(spec: CellSpec, settings: Settings, recipe: Recipe, send: Send) -> None:
    import torch

    from onnx_ci.tools.ops.unsupported_ops import operator_support

    torch.set_num_threads(1)
    send({LAST: to_json(operator_support(with_recipe(spec, recipe, settings)))})


def _show(plans: Iterable[CellSpec], support: dict[Cell, OperatorSupport]) -> None:
    """Print a table for each recipe with one exporter."""
    groups: dict[tuple[str, str], list[OperatorSupport]] = defaultdict(list)
    for spec in plans:
        groups[spec.cell.recipe, spec.cell.exporter].append(support[spec.cell])
    for (name, exporter), listings in groups.items():
        opsets = format_opsets(listing.cell.opset for listing in listings)
        click.echo(f"{name}, {exporter} at opset{'s' * (len(listings) > 1)} {opsets}:")
        for line in _lines(listings):
            click.echo(f"  {one_line(line)}")


def _lines(listings: Sequence[OperatorSupport]) -> list[str]:
    """The lines for a recipe with one exporter: an operator, the opsets that lack it, and the exporter's message."""
    rows: dict[tuple[str, str], list[int]] = {}
    messages: dict[str, str] = {}
    for listing in listings:
        for operator, message in listing.unsupported.items():
            messages.setdefault(operator, message)  # the exporter's message contains the opset: keep the first
            rows.setdefault((operator, messages[operator]), []).append(listing.cell.opset)
        if listing.failure:
            rows.setdefault(("(the export)", listing.failure), []).append(listing.cell.opset)
    if not rows:
        return ["every operator can be exported"]
    lacking = [f"not at {format_opsets(opsets)}" for opsets in rows.values()]
    first, second = max(len(operator) for operator, _ in rows), max(map(len, lacking))
    lines = [
        f"{operator.ljust(first)}  {opsets.ljust(second)}  {message}"
        for (operator, message), opsets in zip(rows, lacking, strict=True)
    ]
    working = [listing.cell.opset for listing in listings if listing.is_supported]
    return [*lines, f"the lowest opset that works is {min(working)}" if working else "no opset works"]


def _list_files(files: Iterable[Path]) -> ExitCode:
    """Print the operators of each file."""
    from onnx_ci.onnx_model.operators import operators_of
    from onnx_ci.onnx_model.signature import read_model

    for path in map(existing_file, files):
        model = read_model(path)
        if isinstance(model, Finding):
            raise ConfigurationError(f"{path}: {model.message}. {model.remedy}")
        uses = operators_of(model)
        nodes = count(sum(use.count for use in uses), "node")
        domains = {"", *(use.domain for use in uses)}
        imports = ", ".join(f"{each.domain or 'opset'} {each.version}" for each in model.opset_import if each.domain in domains)
        click.echo(one_line(f"{path}: {nodes}, {count(len(uses), 'operator')}; {imports}, IR version {model.ir_version}"))
        first = max((len(use.name) for use in uses), default=0)
        second = max((len(str(use.count)) for use in uses), default=0)
        for use in uses:
            click.echo(one_line(f"  {use.name.ljust(first)}  {str(use.count).rjust(second)}  {_origin(use)}"))
        if lowest := max((use.since for use in uses if use.since and not use.domain), default=None):
            release = _least_release(model)
            knows = f"onnx {release} or newer knows" if release else "no release that the installed onnx lists knows"
            click.echo(f"  the lowest opset with these operators is {lowest}; {knows} the file's operator sets and IR version")
    return ExitCode.PASSED


def _least_release(model: ModelProto) -> str | None:
    """The first release of onnx that knows the IR version and the standard operator sets of a file; ``None`` if none does."""
    import onnx.helper

    imports = [*model.opset_import, *(each for function in model.functions for each in function.opset_import)]
    needed = dict.fromkeys(range(1, 4), 0)
    needed[1] = model.ir_version
    for opset in imports:
        if (column := _COLUMNS.get(opset.domain)) is not None:
            needed[column] = max(needed[column], opset.version)
    for release, *versions in onnx.helper.VERSION_TABLE:
        if all(int(versions[column - 1]) >= least for column, least in needed.items()):
            return str(release)
    return None


_COLUMNS = {"": 2, "ai.onnx": 2, "ai.onnx.ml": 3}
"""The columns of domains in onnx's table of releases; the first two have the release and the IR version."""


def _origin(use: OperatorUse) -> str:
    """Where the operator is defined."""
    if use.is_function:
        return "a function in the file"
    if use.since is None:
        return "not defined by onnx: the runtime must have it"
    return f"since {use.domain or 'opset'} {use.since}"
