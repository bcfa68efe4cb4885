"""``onnx-ci list``: the cells, without building any model; with ``-v``, what inputs they get."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import (
    find_recipes,
    options_of,
    settings_from,
    show_problems,
    with_exit_code,
)
from onnx_ci.cli.grouped_help import GroupedCommand
from onnx_ci.collection.discovery import Catalogue
from onnx_ci.config.settings import Settings
from onnx_ci.errors import EnvironmentLacksError, ExitCode
from onnx_ci.matrix.plan import Matrix, PlannedCell, in_shard, plan, unselected_cells
from onnx_ci.matrix.shards import Durations, partition, recorded_durations
from onnx_ci.processes.apart import run_apart
from onnx_ci.processes.limits import process_limits
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.report.nothing_ran import why_nothing_ran
from onnx_ci.text import one_line


@click.command(name="list", cls=GroupedCommand)
@options_of()
@click.option("--why", is_flag=True, help="Also show what is left out, and why.")
@click.option("-v", "--verbose", is_flag=True, help="Build each model, and show its inputs and which values they get.")
@with_exit_code
def list_cells(paths: tuple[Path, ...], why: bool, verbose: bool, **flags: str | None) -> NoReturn:
    r"""List the cells that `run` would run, one id per line.

    No model is built, except with -v.

    \b
    Examples:
      onnx-ci list recipes --opsets=13
      onnx-ci list --select='*-cuda'
      onnx-ci list recipes -v
      onnx-ci list --shard=2/5 --why
    """
    settings = settings_from(flags)
    durations = recorded_durations(settings)
    catalogue = find_recipes(settings, paths)
    whole = plan(catalogue.recipes.values(), settings)
    matrix = in_shard(whole, settings.shard, durations)
    inputs = _inputs(matrix, settings) if verbose else {}
    for planned in matrix.cells:
        click.echo(planned.cell.id)
        for line in inputs.pop((planned.cell.source, planned.cell.recipe), ()):
            click.echo(f"    {one_line(line)}")
    for line in _left_out(catalogue, whole, settings, durations) if why else ():
        click.echo(one_line(f"left out {line}"))
    show_problems(catalogue)
    if not matrix.cells:
        click.echo(f"onnx-ci: no cells: {why_nothing_ran(catalogue, settings, whole=whole, part=matrix)}", err=True)
    sys.exit(ExitCode.USAGE if catalogue.problems else ExitCode.PASSED if matrix.cells else ExitCode.NOTHING_RAN)


def _inputs(matrix: Matrix, settings: Settings) -> dict[tuple[str, str], list[str]]:
    """What the inputs of each recipe are, one line each; or why that is unknown.

    With isolation, each model is built in its own process: that can crash, and affect the next one.
    """
    first: dict[tuple[str, str], PlannedCell] = {}
    for each in matrix.cells:
        first.setdefault((each.cell.source, each.cell.recipe), each)
    if settings.isolation == "none":
        return {key: _described(planned) for key, planned in first.items()}
    found = {}
    works = {key: functools.partial(_send_described, planned) for key, planned in first.items()}
    try:
        for key, event in run_apart(works, process_limits(settings.timeout, settings.memory_limit), settings.isolation):
            found[key] = [f"unknown: building the model {event.message}"] if isinstance(event, Death) else event[LAST]
    except OSError as error:
        raise EnvironmentLacksError(f"no process could be started: {error}; use --isolation=none") from None
    return found


def _send_described(planned: PlannedCell, send: Send) -> None:
    send({LAST: _described(planned)})


def _described(planned: PlannedCell) -> list[str]:
    from onnx_ci.processes.capture import captured
    from onnx_ci.stages.prepare.live_model import PrepareError, SkippedByRecipeError
    from onnx_ci.stages.prepare.prepare import describe_inputs

    try:
        with captured():
            return [each.in_words for each in describe_inputs(planned)]
    except PrepareError as error:
        return [f"unknown: {error.finding.message}"]
    except SkippedByRecipeError as error:
        return [f"unknown: the recipe skips itself: {error}"]


def _left_out(catalogue: Catalogue, whole: Matrix, settings: Settings, durations: Durations) -> Iterator[str]:
    """What does not run, with the reason: excluded by its recipe, not selected, or in another shard."""
    for each in whole.exclusions:
        yield f"{each.recipe} at {each.reason}"
    for found in catalogue.recipes.values() if settings.tags is not None else ():
        if not set(settings.tags or ()) & set(found.recipe.tags):
            yield f"{found.recipe.name}: it has no tag from --tags={','.join(settings.tags or ())}"
    cells = dict.fromkeys(planned.cell for planned in whole.cells)
    if settings.select is not None:
        for cell in unselected_cells(catalogue.recipes.values(), settings):
            if cell not in cells:
                yield f"{cell.id}: --select={','.join(settings.select)} does not match it"
    if settings.shard is not None:
        for index, part in enumerate(partition(cells, settings.shard.count, durations), start=1):
            for cell in part if index != settings.shard.index else ():
                yield f"{cell.id}: it is in shard {index}/{settings.shard.count}"
