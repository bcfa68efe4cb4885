"""The ``onnx-ci`` command: a thin front-end over the engine."""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from onnx_ci import __version__
from onnx_ci.cache import VerdictCache
from onnx_ci.config import OFF, OPTIONS, Settings, check_writable, find_root, load_settings
from onnx_ci.discovery import Catalogue, discover
from onnx_ci.environment import require_runtime, versions
from onnx_ci.errors import ConfigurationError, ExitCode, OnnxCiError, did_you_mean
from onnx_ci.matrix import Matrix, in_shard, plan, seconds_for_shard, why_empty
from onnx_ci.records import CellResult, RunReport, Status
from onnx_ci.report import markdown
from onnx_ci.report.json_file import write_json
from onnx_ci.report.repeat import repeat_with_cli
from onnx_ci.report.text import COLOURS, explain, outcome, summary_lines
from onnx_ci.rules import RULES
from onnx_ci.shards import read_seconds
from onnx_ci.strategy import as_github, as_text, jobs_by_opset, jobs_by_shard


def _options_of(*names: str, paths: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The paths, unless there are none, and the options of the table that are named; all if none is."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(OPTIONS):
            if not names or option.name in names:
                command = click.option(f"--{option.name}", metavar=option.metavar, help=option.help)(command)
        return click.argument("paths", nargs=-1, type=click.Path(path_type=Path))(command) if paths else command

    return decorate


def _with_exit_code(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a user's mistake into one line and its exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except OnnxCiError as error:
            click.echo(f"onnx-ci: {error}", err=True)
            sys.exit(error.exit_code)

    # A backspace tells click to keep the lines that follow; docstrings hold it as two characters that can be read.
    wrapped.__doc__ = (command.__doc__ or "").replace("\\b\n", "\b\n")
    return wrapped


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="onnx-ci")
def main() -> None:
    """Prove that PyTorch models export to ONNX and compute the same numbers.

    Exit codes: 0 all passed, 1 a cell failed, 2 usage or configuration, 3 internal error, 4 the environment lacks what
    was asked for, 5 nothing ran.
    """


@main.command()
@_options_of()
@click.option("--no-cache", is_flag=True, help="Run every cell; the same as --cache=off.")
@click.option("--summary", type=click.Path(path_type=Path), metavar="PATH", help="Write the summary as Markdown.")
@_with_exit_code
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
    settings = _load(flags | {"cache": OFF} if no_cache else flags)
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
    for line in summary_lines(report, matrix.exclusions, _style):
        click.echo(line)
    if settings.report is not None:
        write_json(report, settings.report)
    if summary is not None:
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(markdown.render(report, lambda cell: repeat_with_cli(cell, settings)), encoding="utf-8")
    if report.verdict == "nothing-ran":
        click.echo(f"onnx-ci: nothing ran: {_why_nothing(catalogue, whole, settings, ran=matrix)}", err=True)
    sys.exit(_exit_code(report))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--recipe", "name", required=True, metavar="NAME", help="The recipe that the file is an export of.")
@click.option("--opset", type=int, metavar="N", help="The opset that the file should have. Default: the one it has.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Where to run the file.")
@click.option("--exporter", metavar="NAME", help="torchscript or dynamo. Default: the usual one of the opset.")
@_options_of("recipe-files", "packages", "weights", "drift")
@_with_exit_code
def verify(
    file: Path, name: str, opset: int | None, device: str, exporter: str | None, paths: tuple[Path, ...], **flags: str | None
) -> NoReturn:
    r"""Judge an ONNX file that exists, as if the recipe had just been exported to it.

    The recipe is looked for in PATHS, or in the project's recipe files. The file must hold the recipe's own weights.

    \b
    Examples:
      onnx-ci verify lstm.onnx --recipe=lstm
      onnx-ci verify resnet.onnx --recipe=resnet18 --weights=resnet18=trained.pt recipes
    """
    settings = _load(flags)
    require_runtime()
    catalogue = discover(settings, paths)
    if name not in catalogue.recipes:
        for problem in catalogue.problems:
            click.echo(f"onnx-ci: {problem.source}: {problem.message}", err=True)
        raise ConfigurationError(f"there is no recipe {name!r}{did_you_mean(name, catalogue.recipes)}")
    from onnx_ci import api

    options = {key: value for key, value in flags.items() if value is not None}
    result = api.verify(file, catalogue.recipes[name].recipe, opset=opset, exporter=exporter, device=device, **options)
    click.echo(f"{file} {_style(outcome(result), result.status)}")
    if result.findings:
        click.echo(explain(result, shlex.join(["onnx-ci", *sys.argv[1:]])))
    sys.exit(_exit_code(RunReport(environment={}, settings={}, cells=(result,))))


@main.command(name="cache")
@_options_of("cache", paths=False)
@click.option("--clear", is_flag=True, help="Remove every verdict.")
@_with_exit_code
def show_cache(clear: bool, **flags: str | None) -> None:
    r"""Show how many verdicts are kept for cells of which nothing has changed, and where.

    \b
    Examples:
      onnx-ci cache
      onnx-ci cache --clear
    """
    folder = _load(flags).cache_folder
    if folder is None:
        click.echo("verdicts are not kept: cache is off")
        return
    cache = VerdictCache(folder)
    if clear:
        click.echo(f"removed {cache.clear()} verdicts from {folder}")
    else:
        click.echo(f"{len(cache.entries())} verdicts, {cache.size() / 1024:.0f} KiB, in {folder}")


@main.command(name="rules")
def list_rules() -> None:
    """List the rules that a cell can break, with their meaning."""
    width = max(map(len, RULES))
    for rule in RULES.values():
        click.echo(f"{rule.id.ljust(width)}  {rule.meaning}")


@main.command(name="explain")
@click.argument("rule")
@_with_exit_code
def explain_rule(rule: str) -> None:
    """Show a rule's page: what it means, an example that breaks it, and how to fix it."""
    if rule not in RULES:
        raise ConfigurationError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}; onnx-ci rules lists them")
    page = importlib.resources.files("onnx_ci.rule_pages").joinpath(f"{rule}.md")
    click.echo(page.read_text(encoding="utf-8"), nl=False)


@main.command(name="list")
@_options_of()
@_with_exit_code
def list_cells(paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""List the cells that `run` would run, one id a line, without building any model.

    \b
    Examples:
      onnx-ci list recipes --opsets=13
      onnx-ci list --select='*-cuda'
      onnx-ci list --shard=2/5
    """
    settings = _load(flags)
    seconds = seconds_for_shard(settings)
    catalogue = discover(settings, paths)
    whole = plan(catalogue.recipes.values(), settings)
    matrix = in_shard(whole, settings.shard, seconds)
    for planned in matrix.cells:
        click.echo(planned.cell.id)
    for problem in catalogue.problems:
        click.echo(f"onnx-ci: {problem.source}: {problem.message}", err=True)
    if not matrix.cells:
        click.echo(f"onnx-ci: no cells: {_why_nothing(catalogue, whole, settings, ran=matrix)}", err=True)
    sys.exit(ExitCode.USAGE if catalogue.problems else ExitCode.PASSED if matrix.cells else ExitCode.NOTHING_RAN)


@main.command(name="matrix")
@_options_of("opsets", "devices", "exporters", "select", "durations", "recipe-files", "packages")
@click.option(
    "--shards", type=click.IntRange(min=1), metavar="N", help="N jobs for each device, instead of one for each opset."
)
@click.option("--cuda-runner", metavar="LABEL", help="The label of your machines with CUDA, for runs-on.")
@click.option(
    "--format", "form", type=click.Choice(["github", "text"]), default="github", show_default=True, help="JSON, or a table."
)
@_with_exit_code
def print_matrix(
    paths: tuple[Path, ...], shards: int | None, cuda_runner: str | None, form: str, **flags: str | None
) -> NoReturn:
    r"""Print the jobs of a GitHub `strategy.matrix` for the recipes in PATHS, as one line of JSON.

    Each entry has an id, a device, a runner, and an opset for `onnx-ci run --opsets=… --devices=…` or, with --shards, a
    shard for `onnx-ci run --shard=… --devices=…`. Where jobs run shards, give them the same PATHS, settings and durations.

    \b
    Examples:
      onnx-ci matrix --format=text                      what would run where
      onnx-ci matrix --shards=4 --durations=old.json    four jobs of equal times
      onnx-ci matrix --devices=cpu,cuda --cuda-runner=my-gpu
      echo "matrix=$(onnx-ci matrix)" >> "$GITHUB_OUTPUT"
    """
    settings = _load(flags)
    seconds = {} if settings.durations is None else read_seconds(settings.durations)
    with contextlib.redirect_stdout(sys.stderr):  # what recipe files print must not stand in the output
        catalogue = discover(settings, paths)
    matrix = plan(catalogue.recipes.values(), settings)
    if catalogue.problems:
        for problem in catalogue.problems:
            click.echo(f"onnx-ci: {problem.source}: {problem.message}", err=True)
        raise ConfigurationError("no matrix: the recipes of these files would be missing from it; mend the files first")
    if not matrix.cells:
        click.echo(f"onnx-ci: no cells: {_why_nothing(catalogue, matrix, settings)}", err=True)
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


def _load(flags: dict[str, str | None]) -> Settings:
    return load_settings(find_root(Path.cwd()), flags=flags)


def _run_cells(matrix: Matrix, settings: Settings) -> tuple[list[CellResult], tuple[str, ...]]:
    """Run the cells with a line for each. Ctrl-C stops the run and keeps what was done."""
    from onnx_ci.isolation import open_engine  # loads torch, which listing cells and refusing bad settings never need

    results: list[CellResult] = []
    total = len(matrix.cells)
    with open_engine(settings) as engine:
        try:
            for result in engine.run(matrix.cells):
                results.append(result)
                click.echo(f"[{len(results)}/{total}] {result.cell.id} {_style(outcome(result), result.status)}")
                if result.status.is_bad:
                    click.echo(explain(result, repeat_with_cli(result.cell, settings)))
        except KeyboardInterrupt:
            click.echo("onnx-ci: interrupted", err=True)
    return results, tuple(planned.cell.id for planned in matrix.cells[len(results) :])


def _style(text: str, status: Status | None) -> str:
    return click.style(text, bold=True) if status is None else click.style(text, fg=COLOURS.get(status, "red"))


def _exit_code(report: RunReport) -> ExitCode:
    if any(each.rule == "internal-error" for result in report.cells for each in result.findings):
        return ExitCode.INTERNAL
    if any(result.status.is_bad for result in report.cells) or report.not_run:
        return ExitCode.FAILED
    if report.problems:
        return ExitCode.USAGE
    if report.verdict == "passed":
        return ExitCode.PASSED
    # Every cell was skipped: for a device that is not here, or by the recipes themselves.
    return (
        ExitCode.ENVIRONMENT
        if any(r.reason.startswith(f"no {r.cell.device}: ") for r in report.cells)
        else ExitCode.NOTHING_RAN
    )


def _why_nothing(catalogue: Catalogue, matrix: Matrix, settings: Settings, *, ran: Matrix | None = None) -> str:
    """Why no cell of ``matrix``, or of the shard ``ran`` of it, was judged."""
    if not catalogue.recipes:
        patterns = ", ".join(settings.recipe_files)
        return f"no recipe was found; recipe files are {patterns} (recipe-files in [tool.onnx-ci]), or files given as PATHS"
    if matrix.cells:
        if settings.shard is not None and ran is not None and not ran.cells:
            return why_empty(matrix, settings.shard)
        return "every cell was skipped"
    if settings.select is not None:
        return f"no cell matches --select={','.join(settings.select)}; onnx-ci list shows the cells' ids"
    return "; ".join(f"{each.recipe} is left out at {each.reason}" for each in matrix.exclusions)
