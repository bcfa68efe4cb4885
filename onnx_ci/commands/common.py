"""What every command needs: the options of the table, errors as one line, exit codes, colour."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from onnx_ci.config import OPTIONS, Settings, find_root, load_settings
from onnx_ci.discovery import Catalogue
from onnx_ci.errors import ExitCode, OnnxCiError
from onnx_ci.matrix import Matrix, why_empty
from onnx_ci.records import RunReport, Status
from onnx_ci.report.text import COLOURS


def options_of(*names: str, paths: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The paths, unless there are none, and the options of the table that are named; all if none is."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(OPTIONS):
            if not names or option.name in names:
                command = click.option(f"--{option.name}", metavar=option.metavar, help=option.help)(command)
        return click.argument("paths", nargs=-1, type=click.Path(path_type=Path))(command) if paths else command

    return decorate


def with_exit_code(command: Callable[..., Any]) -> Callable[..., Any]:
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


def settle(flags: dict[str, str | None]) -> Settings:
    """The settings of the project that holds the current directory, with the command's flags over them."""
    return load_settings(find_root(Path.cwd()), flags=flags)


def style(text: str, status: Status | None) -> str:
    """``text`` in the colour of ``status``; bold where it has none."""
    return click.style(text, bold=True) if status is None else click.style(text, fg=COLOURS.get(status, "red"))


def exit_code(report: RunReport) -> ExitCode:
    """What the command ends with."""
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


def why_nothing(catalogue: Catalogue, matrix: Matrix, settings: Settings, *, ran: Matrix | None = None) -> str:
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
