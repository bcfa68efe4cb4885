"""``onnx-ci run``: the gate."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.baseline.check import Baselines
from onnx_ci.commands.common import (
    QUIET,
    exit_code,
    find_quietly,
    options_of,
    settle,
    show,
    show_summary,
    why_nothing,
    with_colour,
    with_exit_code,
    with_verbosity,
)
from onnx_ci.commands.progress import Progress
from onnx_ci.config import OFF, Settings, check_writable
from onnx_ci.environment import require_runtime, versions
from onnx_ci.errors import ConfigurationError
from onnx_ci.matrix import Matrix, in_shard, plan, seconds_for_shard
from onnx_ci.records import CellResult, RunReport
from onnx_ci.report import markdown
from onnx_ci.report.json_file import write_json, write_text
from onnx_ci.report.repeat import repeat_with_cli
from onnx_ci.report.text import lacks_line
from onnx_ci.shards import read_seconds


@click.command()
@options_of()
@click.option("--no-cache", is_flag=True, help="Run every cell; the same as --cache=off.")
@click.option("--summary", type=click.Path(path_type=Path), metavar="PATH", help="Write the summary as Markdown.")
@with_verbosity
@with_colour
@with_exit_code
def run(paths: tuple[Path, ...], summary: Path | None, no_cache: bool, verbosity: str | None, **flags: str | None) -> NoReturn:
    r"""Export, check and compare every cell of the recipes in PATHS.

    \b
    Examples:
      onnx-ci run                                     the project's recipes
      onnx-ci run recipes --opsets=9-17               a folder, at nine opsets
      onnx-ci run --select='resnet*::opset13-cpu'     one cell of each ResNet
      onnx-ci run --report=report.json                and the whole report as JSON
      onnx-ci run --shard=2/5 --durations=old.json    the second of five parts, of equal times
      onnx-ci run -q                                  only what failed, and the last line
    """
    gate(paths, settle(flags | {"cache": OFF} if no_cache else flags), summary, verbosity)


def gate(paths: tuple[Path, ...], settings: Settings, summary: Path | None, verbosity: str | None) -> NoReturn:
    """Run every cell of the recipes in ``paths``, say what becomes of them, and end with the exit code that this is."""
    require_runtime(settings.runtimes)
    check_writable(settings, summary)
    start = time.perf_counter()
    seconds = seconds_for_shard(settings)
    catalogue = find_quietly(settings, paths)
    whole = plan(catalogue.recipes.values(), settings)
    matrix = in_shard(whole, settings.shard, seconds)
    if matrix is not whole and verbosity != QUIET:
        click.echo(f"shard {settings.shard}: {len(matrix.cells)} of {len(whole.cells)} cells")
    baselines = Baselines(settings)
    baselines.open(dict.fromkeys(planned.cell.recipe for planned in matrix.cells))
    results, not_run = _run_cells(matrix, settings, baselines, verbosity)
    report = RunReport(
        environment=versions(),
        settings=settings.as_json(),
        cells=tuple(results),
        problems=tuple(catalogue.problems),
        exclusions=matrix.exclusions,
        not_run=not_run,
        seconds=time.perf_counter() - start,
    )
    show_summary(report, verbosity)
    for path in baselines.strangers(catalogue.recipes) if not paths and not catalogue.problems else ():
        click.echo(f"baseline: {path.name} belongs to no recipe of the project; onnx-ci baseline prune removes it")
    if baselines.is_recording:
        for line in baselines.record(results) if not not_run else ["nothing is recorded of a run that was interrupted"]:
            click.echo(f"baseline: {line}")
    if settings.report is not None:
        write_json(report, settings.report)
    if summary is not None:
        write_text(markdown.render(report, functools.partial(repeat_with_cli, settings=settings)), summary)
    if report.verdict == "nothing-ran":
        click.echo(f"onnx-ci: nothing ran: {why_nothing(catalogue, whole, settings, ran=matrix)}", err=True)
    if report.lacks:
        click.echo(f"onnx-ci: {lacks_line(report)}", err=True)
    sys.exit(exit_code(report))


def _run_cells(
    matrix: Matrix, settings: Settings, baselines: Baselines, verbosity: str | None
) -> tuple[list[CellResult], tuple[str, ...]]:
    """Run the cells, hold each against its baseline and show it. Ctrl-C stops the run and keeps what was done."""
    results: list[CellResult] = []
    cells = [planned.cell for planned in matrix.cells]
    repeat = functools.partial(repeat_with_cli, settings=settings)
    is_live = sys.stdout.isatty() and verbosity != QUIET
    progress = Progress(cells, _known_seconds(settings) if is_live else {}, is_live=is_live)
    progress.show()
    from onnx_ci.isolation import open_engine  # loads torch, which listing cells and refusing bad settings never need

    with open_engine(settings, watch=progress.show if is_live else None) as engine:
        try:
            for planned, found in zip(matrix.cells, engine.run(matrix.cells), strict=True):
                result = baselines.judge(found, planned.recipe.allow)
                results.append(result)
                progress.add(result)
                show(result, repeat, verbosity, before=f"[{len(results)}/{len(cells)}] ")
                progress.show()
        except KeyboardInterrupt:
            progress.clear()
            click.echo("onnx-ci: interrupted", err=True)
    return results, tuple(cell.id for cell in cells[len(results) :])


def _known_seconds(settings: Settings) -> Mapping[str, float]:
    """How long cells took in earlier runs, for an estimate, which is worth no error."""
    with contextlib.suppress(ConfigurationError):
        return {} if settings.durations is None else read_seconds(settings.durations)
    return {}
