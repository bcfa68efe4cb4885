"""``onnx-ci matrix``: a run as the jobs of GitHub's matrix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.commands.common import find_quietly, options_of, settle, show_problems, why_nothing, with_exit_code
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.matrix import plan
from onnx_ci.shards import read_seconds
from onnx_ci.strategy import as_github, as_text, jobs_by_opset, jobs_by_shard


@click.command(name="matrix")
@options_of("opsets", "devices", "exporters", "select", "durations", "recipe-files", "packages")
@click.option(
    "--shards", type=click.IntRange(min=1), metavar="N", help="N jobs for each device, instead of one for each opset."
)
@click.option("--cuda-runner", metavar="LABEL", help="The label of your machines with CUDA, for runs-on.")
@click.option(
    "--format", "form", type=click.Choice(["github", "text"]), default="github", show_default=True, help="JSON, or a table."
)
@with_exit_code
def print_matrix(
    paths: tuple[Path, ...], shards: int | None, cuda_runner: str | None, form: str, **flags: str | None
) -> NoReturn:
    r"""Print the jobs of a GitHub `strategy.matrix` as JSON.

    Together they run the cells of the recipes in PATHS. Each entry has an id, a device, a runner, and an opset for
    `onnx-ci run --opsets=… --devices=…` or, with --shards, a shard for `onnx-ci run --shard=… --devices=…`. Where jobs run
    shards, give them the same PATHS, settings and durations.

    \b
    Examples:
      onnx-ci matrix --format=text                      what would run where
      onnx-ci matrix --shards=4 --durations=old.json    four jobs of equal times
      onnx-ci matrix --devices=cpu,cuda --cuda-runner=my-gpu
      echo "matrix=$(onnx-ci matrix)" >> "$GITHUB_OUTPUT"
    """
    settings = settle(flags)
    seconds = {} if settings.durations is None else read_seconds(settings.durations)
    catalogue = find_quietly(settings, paths)
    matrix = plan(catalogue.recipes.values(), settings)
    if catalogue.problems:
        show_problems(catalogue)
        raise ConfigurationError("no matrix: the recipes of these files would be missing from it; mend the files first")
    if not matrix.cells:
        click.echo(f"onnx-ci: no cells: {why_nothing(catalogue, matrix, settings)}", err=True)
        sys.exit(ExitCode.NOTHING_RAN)
    cells = [planned.cell for planned in matrix.cells]
    if shards is None:
        jobs = jobs_by_opset(cells, cuda_runner)
    else:
        jobs = jobs_by_shard(cells, cuda_runner, shards=shards, seconds=seconds)
        for device in dict.fromkeys(job.device for job in jobs):
            count = sum(job.device == device for job in jobs)
            if count < shards:
                click.echo(f"onnx-ci: {count} shards instead of {shards}: {device} has no more cells", err=True)
    for line in [as_github(jobs)] if form == "github" else as_text(jobs, seconds):
        click.echo(line)
    sys.exit(ExitCode.PASSED)
