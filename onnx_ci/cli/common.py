"""What all commands share: options, errors in one line, exit codes, colours, and how results are shown."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cli.output import lasting_output
from onnx_ci.config.options import FLAGS, Group, joined
from onnx_ci.config.settings import Settings, find_root, load_settings
from onnx_ci.config.values import OFF
from onnx_ci.engine.recipes import Recipes
from onnx_ci.engine.recipes import find_recipes as find
from onnx_ci.environment.versions import describe_bug, require_torch
from onnx_ci.errors import INTERRUPTED, ConfigurationError, ExitCode, OnnxCiError, did_you_mean
from onnx_ci.matrix.scope import RecipeScope
from onnx_ci.processes.signals import interrupts_noted, was_interrupted
from onnx_ci.report.causes import common_causes, failure_key, shared_failures
from onnx_ci.report.findings import remedy_lines
from onnx_ci.report.text import (
    COLOURS,
    conclusion_lines,
    describe_outcome,
    describe_result,
    detail_lines,
    format_cells,
    summary_lines,
    warning_lines,
)
from onnx_ci.results.records import Cell, CellResult, Problem, Severity, Status
from onnx_ci.results.run_report import RunReport
from onnx_ci.text import listed_shortly, one_line

Command = Callable[..., Any]
QUIET, VERBOSE = "quiet", "verbose"


class GroupedOption(click.Option):
    """An option that help shows under the heading of a group."""

    def __init__(self, *arguments: Any, group: Group, **values: Any) -> None:
        super().__init__(*arguments, **values)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows its own options first, then those of each group, and ``--help`` last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        first, last = "Options", "Other"
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (first, *(group.value for group in Group), last)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                group = parameter.group.value if isinstance(parameter, GroupedOption) else None
                heading = group or (last if "--help" in parameter.opts else first)
                rows[heading].append(record)
        for heading, records in rows.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def options_of(*names: str, paths: bool = True, takes_all: bool = False) -> Callable[[Command], Command]:
    """Add PATHS and options for settings, by default for all. With ``takes_all``, the others are there, too, but hidden."""

    def decorate(command: Command) -> Command:
        for option in reversed(FLAGS):
            is_shown = not names or option.name in names
            if is_shown or takes_all:
                keywords: dict[str, Any] = {"flag_value": "true"} if option.is_switch else {"metavar": option.metavar}
                keywords |= {"multiple": True, "callback": lambda _, __, values: joined(values)} if option.is_list else {}
                keywords |= {"help": option.help, "hidden": not is_shown, "group": option.group}
                command = click.option(f"--{option.name}", cls=GroupedOption, **keywords)(command)
        return click.argument("paths", nargs=-1, type=click.Path(path_type=Path))(command) if paths else command

    return decorate


def with_colour(command: Command) -> Command:
    """Add ``--color``. click applies the choice to everything that is printed."""

    def choose(context: click.Context, _: click.Parameter, when: str | None) -> None:
        if when in ("always", "never"):
            context.color = when == "always"
        elif when == "auto" or context.parent is None:
            context.color = False if os.environ.get("NO_COLOR") else None

    return click.option(
        "--color",
        cls=GroupedOption,
        group=Group.OUTPUT,
        type=click.Choice(["auto", "always", "never"]),
        callback=choose,
        expose_value=False,
        help="Whether to use colours. Default: auto, on a terminal, unless NO_COLOR is set.",
    )(command)


def with_verbosity(command: Command) -> Command:
    """Add ``-q`` and ``-v``. The last of them on the command line counts."""

    def flag(*names: str, value: str, help: str) -> Callable[[Command], Command]:
        return click.option(*names, "verbosity", cls=GroupedOption, group=Group.OUTPUT, flag_value=value, help=help)

    verbose = flag("-v", "--verbose", value=VERBOSE, help="Show each cell on its own line, with its notes, times and log.")
    return flag("-q", "--quiet", value=QUIET, help="Show failures and the last line only.")(verbose(command))


def with_no_cache(help: str = "Run every cell; same as --cache=off.") -> Callable[[Command], Command]:
    """Add ``--no-cache``, which the command receives as ``--cache=off``."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(*, no_cache: bool, **values: Any) -> Any:
            return command(**(values | {"cache": OFF} if no_cache else values))

        return click.option("--no-cache", cls=GroupedOption, group=Group.MACHINE, is_flag=True, help=help)(run)

    return decorate


def with_exit_code(command: Command) -> Command:
    """Report an error of the user as one line with its exit code, and any other error as an internal one of onnx-ci.

    If nobody reads the output to its end, the command still finishes. If the output cannot be written, the command does not
    succeed.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with lasting_output() as output, interrupts_noted():
            code = _exit_code_of(functools.partial(command, *args, **kwargs))
            output.flush()
            if output.is_incomplete:
                click.echo(f"onnx-ci: the output is incomplete: {output.error and output.error.strerror}", err=True)
                code = code or ExitCode.ENVIRONMENT
        if code is not None:
            sys.exit(code)

    # A backspace makes click keep the line breaks that follow. The docstrings are raw, so they contain it as two characters.
    wrapped.__doc__ = (command.__doc__ or "").replace("\\b\n", "\b\n")
    return wrapped


def _exit_code_of(command: Callable[[], None]) -> int | None:
    """The exit code with which the command ends; ``None`` if it just returns."""
    try:
        command()
    except OnnxCiError as error:
        click.echo(f"onnx-ci: {one_line(str(error))}", err=True)
        return error.exit_code
    except SystemExit as error:
        return error.code if isinstance(error.code, int) or error.code is None else ExitCode.FAILED
    except (click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, KeyboardInterrupt) or was_interrupted():
            click.echo("onnx-ci: interrupted", err=True)
            return INTERRUPTED
        click.echo(f"{traceback.format_exc()}onnx-ci: {describe_bug()}", err=True)
        return ExitCode.INTERNAL
    return None


def settings_from(flags: Mapping[str, str | None]) -> Settings:
    """The settings of the project around the current directory, overridden by the command's flags."""
    return load_settings(find_root(Path.cwd()), flags=flags)


def find_recipes(settings: Settings, paths: tuple[Path, ...], cache: VerdictCache | None = None) -> Recipes:
    """Find the recipes. What recipe files print goes to standard error."""
    require_torch()
    with _stdout_to_stderr():
        return find(settings, paths, cache=cache)


def recipe_named(name: str, recipes: Recipes) -> RecipeScope:
    """What the recipe called ``name`` declares. For an unknown name, the error suggests the nearest one."""
    if name not in recipes.scopes:
        show_problems(recipes.problems)
        raise ConfigurationError(f"there is no recipe {name!r}{did_you_mean(name, recipes.scopes)}")
    return recipes.scopes[name]


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Within the block, what this process and its children print goes to standard error."""
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
    """``text`` in the colour of ``status``, or bold without a status."""
    return click.style(text, bold=True) if status is None else click.style(text, fg=COLOURS.get(status, "red"))


@dataclass(frozen=True, kw_only=True)
class Commands:
    """The commands that a failure is shown with."""

    repeat: Callable[[Cell], str]
    about: Callable[[str, Cell], str] | None = None
    """As for :func:`describe_result`."""


def show(
    result: CellResult, commands: Commands, verbosity: str | None, *, before: str = "", has_remedies: bool = False
) -> None:
    """Print the result of a cell in one line, with its remedies if asked for, and with ``-v`` all that is known about it."""
    if verbosity == QUIET and not result.status.is_bad:
        return
    click.echo(f"{before}{one_line(result.cell.id)} {style(describe_outcome(result), result.status)}")
    if verbosity != VERBOSE:
        errors = (each for each in result.findings if each.severity is Severity.ERROR)
        for line in remedy_lines(errors) if has_remedies else ():
            click.echo(one_line(line))
        return
    if result.status.is_bad:
        click.echo(_explained(result, commands, has_notes=True))
    for line in detail_lines(result):
        click.echo(line)


def show_in_short(results: Iterable[CellResult], *, before: str = "") -> None:
    """Print one line for the cells of a recipe that have the same status and, if they fail, the same causes."""
    by_outcome: dict[tuple[Status, object], list[CellResult]] = {}
    for result in results:
        cause = failure_key(result) if result.status.is_bad else None
        by_outcome.setdefault((result.status, cause), []).append(result)
    for (status, _), group in by_outcome.items():
        cells = f"{one_line(group[0].cell.id)} " if len(group) == 1 else f"{format_cells(group)}  "
        click.echo(f"{before}{cells}{style(describe_outcome(*group), status)}")


def show_failures(results: Iterable[CellResult], commands: Commands, verbosity: str | None) -> None:
    """Print each cause of failures once, with what helps to fix it. With ``-v``, :func:`show` has done so for each cell."""
    for cause in common_causes(shared_failures(results)) if verbosity != VERBOSE else ():
        first, *others = cause
        click.echo(f"\n{style(one_line(first.title), first.first.status)}")
        click.echo(_explained(first.first, commands, has_notes=False))
        if others:
            click.echo(one_line(f"the same cause: {listed_shortly([each.title for each in others])}"))


def _explained(result: CellResult, commands: Commands, *, has_notes: bool) -> str:
    return describe_result(result, commands.repeat(result.cell), about=commands.about, has_notes=has_notes)


def show_problems(problems: Iterable[Problem]) -> None:
    """Print problems with recipe files to standard error."""
    for problem in problems:
        click.echo(one_line(f"onnx-ci: {problem.source}: {problem.message}"), err=True)


def show_summary(report: RunReport, verbosity: str | None) -> None:
    """Print the grid, remarks on the run, and the counts; if little is printed, the warnings and the counts."""
    in_short = [*map(one_line, warning_lines(report.cells)), *conclusion_lines(report, style)]
    for line in in_short if verbosity == QUIET else ["", *summary_lines(report, style)]:
        click.echo(line)
