"""``onnx-ci run``: the gate."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.commands.common import exit_code, options_of, settle, style, why_nothing, with_exit_code
from onnx_ci.config import OFF, Settings, check_writable
from onnx_ci.discovery import discover
from onnx_ci.environment import require_runtime, versions
from onnx_ci.matrix import Matrix, in_shard, plan, seconds_for_shard
from onnx_ci.records import CellResult, RunReport
from onnx_ci.report import markdown
from onnx_ci.report.json_file import write_json
from onnx_ci.report.repeat import repeat_with_cli
from onnx_ci.report.text import explain, outcome, summary_lines


@click.command()
@options_of()
@click.option("--no-cache", is_flag=True, help="Run every cell; the same as --cache=off.")
@click.option("--summary", type=click.Path(path_type=Path), metavar="PATH", help="Write the summary as Markdown.")
@with_exit_code
def run(paths: tuple[Path, ...], summary: Path | None, no_cache: bool, **flags: str | None) -> NoReturn:
    r"""Export, check and compare every cell of the recipes in PATHS.

    \b
    Examples:
      onnx-ci run                                     the project's recipes
      onnx-ci run recipes --opsets=9-17               a folder, at nine opsets
      onnx-ci run --select='resnet*::opset13-cpu'     one cell of each ResNet
      onnx-ci run --report=report.json                and the whole report as JSON
      onnx-ci run --shard=2/5 --durations=old.json    the second of five parts, of equal times
    """
    settings = settle(flags | {"cache": OFF} if no_cache else flags)
    require_runtime()
    check_writable(settings)
    start = time.perf_counter()
    seconds = seconds_for_shard(settings)
    catalogue = discover(settings, paths)
    whole = plan(catalogue.recipes.values(), settings)
    matrix = in_shard(whole, settings.shard, seconds)
    if matrix is not whole:
        click.echo(f"shard {settings.shard}: {len(matrix.cells)} of {len(whole.cells)} cells")
    results, not_run = _run_cells(matrix, settings)
    report = RunReport(
        environment=versions(),
        settings=settings.as_json(),
        cells=tuple(results),
        problems=tuple(catalogue.problems),
        not_run=not_run,
        seconds=time.perf_counter() - start,
    )
    click.echo()
    for line in summary_lines(report, matrix.exclusions, style):
        click.echo(line)
    if settings.report is not None:
        write_json(report, settings.report)
    if summary is not None:
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(markdown.render(report, lambda cell: repeat_with_cli(cell, settings)), encoding="utf-8")
    if report.verdict == "nothing-ran":
        click.echo(f"onnx-ci: nothing ran: {why_nothing(catalogue, whole, settings, ran=matrix)}", err=True)
    sys.exit(exit_code(report))


def _run_cells(matrix: Matrix, settings: Settings) -> tuple[list[CellResult], tuple[str, ...]]:
    """Run the cells with a line for each. Ctrl-C stops the run and keeps what was done."""
    from onnx_ci.isolation import open_engine  # loads torch, which listing cells and refusing bad settings never need

    results: list[CellResult] = []
    total = len(matrix.cells)
    with open_engine(settings) as engine:
        try:
            for result in engine.run(matrix.cells):
                results.append(result)
                click.echo(f"[{len(results)}/{total}] {result.cell.id} {style(outcome(result), result.status)}")
                if result.status.is_bad:
                    click.echo(explain(result, repeat_with_cli(result.cell, settings)))
        except KeyboardInterrupt:
            click.echo("onnx-ci: interrupted", err=True)
    return results, tuple(planned.cell.id for planned in matrix.cells[len(results) :])
