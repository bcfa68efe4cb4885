"""What every command needs: the options of the table, errors as one line, exit codes, colour, and how results are shown."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from onnx_ci.config import OPTIONS, Settings, find_root, load_settings
from onnx_ci.discovery import Catalogue, Found, discover
from onnx_ci.environment import leave_cuda_to_forks
from onnx_ci.errors import ConfigurationError, ExitCode, OnnxCiError, did_you_mean
from onnx_ci.matrix import Matrix, plan, why_empty
from onnx_ci.records import Cell, CellResult, RunReport, Status
from onnx_ci.report.text import COLOURS, conclusion, explain, left_out, one_line, outcome, particulars, summary_lines

Command = Callable[..., Any]
QUIET, VERBOSE = "quiet", "verbose"


def options_of(*names: str, paths: bool = True) -> Callable[[Command], Command]:
    """The paths, unless there are none, and the options of the table that are named; all if none is."""

    def decorate(command: Command) -> Command:
        for option in reversed(OPTIONS):
            if not names or option.name in names:
                value: dict[str, Any] = {"flag_value": "true"} if option.is_switch else {"metavar": option.metavar}
                command = click.option(f"--{option.name}", help=option.help, **value)(command)
        return click.argument("paths", nargs=-1, type=click.Path(path_type=Path))(command) if paths else command

    return decorate


def with_colour(command: Command) -> Command:
    """The option that says whether there are colours. click's context hands the choice on to all that is printed."""

    def choose(context: click.Context, _: click.Parameter, when: str | None) -> None:
        if when in ("always", "never"):
            context.color = when == "always"
        elif when == "auto" or context.parent is None:
            context.color = False if os.environ.get("NO_COLOR") else None

    return click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        callback=choose,
        expose_value=False,
        help="Whether to use colours. Default: auto, on a terminal, unless NO_COLOR is set.",
    )(command)


def with_verbosity(command: Command) -> Command:
    """How much is said of each cell, as :func:`show` and :func:`show_summary` know it. Of several words the last counts."""
    quiet = click.option("-q", "--quiet", "verbosity", flag_value=QUIET, help="Show failures and the last line only.")
    help = "Show the notes, times and log of each cell."
    return quiet(click.option("-v", "--verbose", "verbosity", flag_value=VERBOSE, help=help)(command))


def with_exit_code(command: Command) -> Command:
    """Turn a user's mistake into one line and its exit code, and an error of onnx-ci into one that is not a cell's."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except OnnxCiError as error:
            click.echo(f"onnx-ci: {one_line(str(error))}", err=True)
            sys.exit(error.exit_code)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception:
            click.echo(f"{traceback.format_exc()}onnx-ci: this is an error of onnx-ci itself; please report it", err=True)
            sys.exit(ExitCode.INTERNAL)

    # A backspace tells click to keep the lines that follow; docstrings hold it as two characters that can be read.
    wrapped.__doc__ = (command.__doc__ or "").replace("\\b\n", "\b\n")
    return wrapped


def settle(flags: Mapping[str, str | None]) -> Settings:
    """The settings of the project that holds the current directory, with the command's flags over them."""
    return load_settings(find_root(Path.cwd()), flags=flags)


def find_quietly(settings: Settings, paths: tuple[Path, ...]) -> Catalogue:
    """The recipes, as :func:`discover` finds them; what recipe files print goes to standard error."""
    leave_cuda_to_forks()
    with _output_as_error():
        return discover(settings, paths)


def recipe_named(name: str, catalogue: Catalogue) -> Found:
    """The recipe of this name.

    Raises:
        ConfigurationError: there is none; the message has the nearest one.
    """
    if name not in catalogue.recipes:
        show_problems(catalogue)
        raise ConfigurationError(f"there is no recipe {name!r}{did_you_mean(name, catalogue.recipes)}")
    return catalogue.recipes[name]


@contextlib.contextmanager
def _output_as_error() -> Iterator[None]:
    """Let nothing that is printed in the block, by this process or by one that it starts, stand in the output."""
    if sys.stdout is None or sys.stderr is None:  # whoever closed one of them
        yield
        return
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)


def style(text: str, status: Status | None) -> str:
    """``text`` in the colour of ``status``; bold where it has none."""
    return click.style(text, bold=True) if status is None else click.style(text, fg=COLOURS.get(status, "red"))


def show(result: CellResult, repeat: Callable[[Cell], str], verbosity: str | None, *, before: str = "") -> None:
    """Print what became of a cell and, if it failed, all that helps."""
    if verbosity == QUIET and not result.status.is_bad:
        return
    click.echo(f"{before}{result.cell.id} {style(outcome(result), result.status)}")
    if result.status.is_bad:
        click.echo(explain(result, repeat(result.cell)))
    for line in particulars(result) if verbosity == VERBOSE else ():
        click.echo(line)


def show_problems(catalogue: Catalogue) -> None:
    """Print, beside the output, what kept recipes from being found."""
    for problem in catalogue.problems:
        click.echo(one_line(f"onnx-ci: {problem.source}: {problem.message}"), err=True)


def show_summary(report: RunReport, verbosity: str | None) -> None:
    """Print the grid, what else is to be said of the run, and the counts."""
    for line in conclusion(report, style) if verbosity == QUIET else ["", *summary_lines(report, style)]:
        click.echo(line)


def exit_code(report: RunReport) -> ExitCode:
    """What the command ends with."""
    if any(each.rule == "internal-error" for result in report.cells for each in result.findings):
        return ExitCode.INTERNAL
    if report.lacks:
        return ExitCode.ENVIRONMENT
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


def why_nothing(catalogue: Catalogue, matrix: Matrix, settings: Settings, *, ran: Matrix | None = None) -> str:
    """Why no cell of ``matrix``, or of the shard ``ran`` of it, was judged."""
    if not catalogue.recipes:
        patterns = ", ".join(settings.recipe_files)
        return f"no recipe was found; recipe files are {patterns} (recipe-files in [tool.onnx-ci]), or files given as PATHS"
    if matrix.cells:
        if settings.shard is not None and ran is not None and not ran.cells:
            return why_empty(matrix, settings.shard)
        return "every cell was skipped"
    if settings.tags is not None:
        tags = {tag for each in catalogue.recipes.values() for tag in each.recipe.tags}
        if not tags & set(settings.tags):
            meant = next(filter(None, (did_you_mean(tag, tags) for tag in settings.tags)), "")
            return f"no recipe has a tag of --tags={','.join(settings.tags)}{meant}"
    if settings.select is not None:
        cells = all_cells(catalogue, settings)
        names = [*catalogue.recipes, *(name for cell in cells for name in (f"{cell.recipe}::{cell.label}", cell.id))]
        meant = next(filter(None, (did_you_mean(glob, names) for glob in settings.select)), "")
        return f"no cell matches --select={','.join(settings.select)}{meant}; onnx-ci list shows the cells' ids"
    return "; ".join(f"left out {each}" for each in left_out(matrix.exclusions))


def all_cells(catalogue: Catalogue, settings: Settings) -> list[Cell]:
    """The cells that there are to select from."""
    return [planned.cell for planned in plan(catalogue.recipes.values(), replace(settings, select=None)).cells]
