"""``onnx-ci list``: the cells, without building any model; with ``-v``, what inputs they get."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cache.folder import Folder
from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cli.common import (
    GroupedCommand,
    find_recipes,
    options_of,
    settings_from,
    show_problems,
    with_exit_code,
    with_no_cache,
)
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.recipes import Recipes
from onnx_ci.matrix.plan import CellSpec, cells_in_shard, with_recipe
from onnx_ci.matrix.scope import CellChoice, choose_cells, has_tag, unselected_cells
from onnx_ci.matrix.shards import Durations, partition, recorded_durations
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.report.nothing_ran import why_nothing_ran
from onnx_ci.results.records import Cell
from onnx_ci.results.verdict import exit_code_of_plan
from onnx_ci.text import one_line


@click.command(name="list", cls=GroupedCommand)
@options_of()
@click.option("--why", is_flag=True, help="Also show what is left out and why, and why the cells of the last run ran.")
@click.option("-v", "--verbose", is_flag=True, help="Build each model, and show its inputs and which values they get.")
@with_no_cache("Import every recipe file; same as --cache=off.")
@with_exit_code
def list_cells(paths: tuple[Path, ...], why: bool, verbose: bool, **flags: str | None) -> NoReturn:
    r"""List the cells that `run` would run, one id per line.

    No model is built, except with -v. If something has changed, the recipe files are imported, each in a process of its own.

    \b
    Examples:
      onnx-ci list recipes --opsets=13
      onnx-ci list --select='*-cuda'
      onnx-ci list recipes -v
      onnx-ci list --shard=2/5 --why
    """
    settings = settings_from(flags)
    durations = recorded_durations(settings)
    cache = VerdictCache.open(settings)
    with find_recipes(settings, paths, cache) as recipes:
        scopes = tuple(recipes.scopes.values())
        choice = choose_cells(scopes, settings)
        shard = None if settings.shard is None else cells_in_shard(choice.cells, settings.shard, durations)
        cells = [cell for cell in choice.cells if shard is None or cell in shard]
        inputs = _inputs(recipes, frozenset(cells)) if verbose else {}
    if cache is not None:
        cache.close()
    for cell in cells:
        click.echo(cell.id)
        for line in inputs.pop((cell.source, cell.recipe), ()):
            click.echo(f"    {one_line(line)}")
    for line in _left_out(recipes, choice, settings, durations) if why else ():
        click.echo(one_line(f"left out {line}"))
    if why and settings.cache_folder is not None and (run := Folder(settings.cache_folder).last_run()) is not None:
        click.echo(one_line(f"last run: {run}"))
    show_problems(recipes.problems)
    if not cells:
        reason = why_nothing_ran(scopes, settings, is_planned=False)
        click.echo(f"onnx-ci: no cells: {reason}", err=True)
    sys.exit(exit_code_of_plan(cells, problems=recipes.problems))


def _inputs(recipes: Recipes, cells: Collection[Cell]) -> dict[tuple[str, str], list[str]]:
    """A line for each input of each recipe that has one of the cells, by file and recipe; or why the inputs are unknown."""
    settings = recipes.settings
    plans: dict[tuple[str, str], CellSpec] = {}
    for spec in recipes.plan().cells:
        if spec.cell in cells:
            plans.setdefault((spec.cell.source, spec.cell.recipe), spec)
    inputs = {}
    works = {key: (key[1], functools.partial(_send_inputs, spec, settings)) for key, spec in plans.items()}
    for key, event in recipes.run_all(works, Limits.of(settings)):
        inputs[key] = [f"unknown: building the model {event.message}"] if isinstance(event, Death) else event[LAST]
    return inputs


def _send_inputs(spec: CellSpec, settings: Settings, recipe: Recipe, send: Send) -> None:
    from onnx_ci.pipeline.model.call import PrepareError, SkippedByRecipeError
    from onnx_ci.pipeline.prepare.prepare import describe_inputs
    from onnx_ci.processes.capture import captured

    try:
        with captured():
            lines = [each.in_words for each in describe_inputs(with_recipe(spec, recipe, settings))]
    except PrepareError as error:
        lines = [f"unknown: {error.finding.message}"]
    except SkippedByRecipeError as error:
        lines = [f"unknown: the recipe skips itself: {error}"]
    send({LAST: lines})


def _left_out(recipes: Recipes, choice: CellChoice, settings: Settings, durations: Durations) -> Iterator[str]:
    """What does not run, with the reason: excluded by its recipe, not selected, or in another shard."""
    for exclusion in choice.exclusions:
        yield f"{exclusion.recipe} at {exclusion.reason}"
    for scope in recipes.scopes.values():
        if not has_tag(scope, settings):
            yield f"{scope.name}: it has no tag from --tags={','.join(settings.tags or ())}"
    if settings.select is not None:
        cells = frozenset(choice.cells)
        for cell in unselected_cells(recipes.scopes.values(), settings):
            if cell not in cells:
                yield f"{cell.id}: --select={','.join(settings.select)} does not match it"
    if settings.shard is not None:
        for index, part in enumerate(partition(choice.cells, settings.shard.count, durations), start=1):
            for cell in part if index != settings.shard.index else ():
                yield f"{cell.id}: it is in shard {index}/{settings.shard.count}"
