"""``onnx-ci matrix``: the jobs of a GitHub matrix."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cli.common import find_recipes, options_of, settings_from, show_problems, with_exit_code, with_no_cache
from onnx_ci.environment.versions import versions
from onnx_ci.errors import ConfigurationError
from onnx_ci.matrix.scope import choose_cells
from onnx_ci.matrix.shards import Durations, read_durations
from onnx_ci.report.nothing_ran import why_nothing_ran
from onnx_ci.results.files import write_json
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import exit_code_of_plan
from onnx_ci.tools.matrix.jobs import as_github, as_text, jobs_by_opset, jobs_by_shard


def _takes_flags_of_run(command: Callable[..., object]) -> Callable[..., object]:
    """Let the command take flags that only ``onnx-ci run`` needs, because a workflow passes the same flags to both."""
    for names in (("-q", "--quiet"), ("-v", "--verbose"), ("-x", "--exitfirst")):
        command = click.option(*names, is_flag=True, hidden=True, expose_value=False)(command)
    for name in ("--summary", "--color"):
        command = click.option(name, hidden=True, expose_value=False)(command)
    return command


@click.command(name="matrix")
@options_of(
    *("opsets", "sample", "devices", "exporters", "select", "tags", "durations", "recipe-files", "packages"), takes_all=True
)
@_takes_flags_of_run
@with_no_cache("Import every recipe file; same as --cache=off.")
@click.option(
    "--shards", type=click.IntRange(min=1), metavar="N", help="N jobs for each device, instead of one for each opset."
)
@click.option("--cuda-runner", metavar="LABEL", help="The runs-on label of your machines with CUDA.")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write the cells of all jobs as a report. Merged with the reports of the jobs, it shows which cells are missing.",
)
@click.option(
    "--format", "form", type=click.Choice(["github", "text"]), default="github", show_default=True, help="JSON, or a table."
)
@with_exit_code
def print_matrix(
    paths: tuple[Path, ...], shards: int | None, cuda_runner: str | None, plan: Path | None, form: str, **flags: str | None
) -> NoReturn:
    r"""Print the jobs of a GitHub `strategy.matrix` as JSON.

    Together, the jobs run the cells of the recipes in PATHS. Each has an id, a device, a runner, and an opset for
    `onnx-ci run --opsets=… --devices=…` or, with --shards, a shard for `onnx-ci run --shard=… --devices=…`. All jobs with
    shards must use the same PATHS, settings and durations. The other flags of `onnx-ci run` are accepted, too.

    \b
    Examples:
      onnx-ci matrix --format=text                      what would run where
      onnx-ci matrix --shards=4 --durations=old.json    four jobs of equal duration
      onnx-ci matrix --devices=cpu,cuda --cuda-runner=my-gpu
      echo "matrix=$(onnx-ci matrix)" >> "$GITHUB_OUTPUT"
    """
    settings = settings_from(flags)
    durations = Durations() if settings.durations is None else read_durations(settings.durations)
    cache = VerdictCache.open(settings)
    with find_recipes(settings, paths, cache) as recipes:
        scopes = tuple(recipes.scopes.values())
    if cache is not None:
        cache.close()
    cells = choose_cells(scopes, settings).cells
    if recipes.problems:
        show_problems(recipes.problems)
        raise ConfigurationError("no matrix: something of what was asked for would be missing from it; fix that first")
    if not cells:
        reason = why_nothing_ran(scopes, settings, is_planned=False)
        click.echo(f"onnx-ci: no cells: {reason}", err=True)
        sys.exit(exit_code_of_plan(cells))
    if shards is None:
        jobs = jobs_by_opset(cells, cuda_runner)
    else:
        jobs = jobs_by_shard(cells, cuda_runner, shards=shards, durations=durations)
        for device in dict.fromkeys(job.device for job in jobs):
            count = sum(job.device == device for job in jobs)
            if count < shards:
                click.echo(f"onnx-ci: {count} shards instead of {shards}: {device} has no more cells", err=True)
    if plan is not None:
        ids = tuple(cell.id for cell in cells)
        write_json(RunReport(environment=versions(), settings=settings.shown(), cells=(), in_other_jobs=ids), plan)
    for line in [as_github(jobs)] if form == "github" else as_text(jobs, durations.seconds):
        click.echo(line)
    sys.exit(exit_code_of_plan(cells))
