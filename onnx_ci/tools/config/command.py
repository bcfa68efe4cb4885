"""``onnx-ci config``: the settings and their schema, and a check of the settings and of the syntax of recipe files."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import GroupedCommand, options_of, settings_from, with_exit_code
from onnx_ci.collection.discovery import all_recipe_files, relative_source
from onnx_ci.config.settings import Settings, find_root, read_settings, tool_schema
from onnx_ci.errors import ExitCode, OnnxCiError
from onnx_ci.results.json_data import to_json
from onnx_ci.results.records import Problem
from onnx_ci.results.verdict import exit_code_of_plan
from onnx_ci.text import count


@click.command(cls=GroupedCommand)
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of [tool.onnx-ci] instead.")
@click.option("--check", is_flag=True, help="Check the settings, and the syntax of the recipe files or of those in PATHS.")
@options_of()
@with_exit_code
def config(paths: tuple[Path, ...], as_json: bool, schema: bool, check: bool, **flags: str | None) -> NoReturn:
    r"""Show every setting, its value and where it comes from.

    With --check, show what is wrong with the settings and which recipe files are not valid Python instead, each problem with
    its line. The files are not imported, so torch is not needed. `onnx-ci list` imports them and shows what is wrong with their
    recipes.

    \b
    Examples:
      onnx-ci config                          the settings of this project
      onnx-ci config --opsets=13 --json       the settings with a flag, as JSON
      onnx-ci config --check                  check the settings and the syntax of recipe files
      onnx-ci config --check exports/nets.py
      onnx-ci config --schema > onnx-ci.json  the JSON Schema, for editors
    """
    if check + schema + as_json > 1:
        raise click.UsageError("--check, --schema and --json exclude each other")
    if paths and not check:
        raise click.UsageError("only --check takes PATHS")
    if check:
        sys.exit(_check(paths, flags))
    if schema:
        click.echo(json.dumps(tool_schema(), indent=2))
    elif as_json:
        click.echo(json.dumps(to_json(settings_from(flags).shown()), indent=2))
    else:
        for line in _table(settings_from(flags)):
            click.echo(line)
    sys.exit(ExitCode.PASSED)


def _table(settings: Settings) -> list[str]:
    """The settings in three columns."""
    has_file = (settings.root / "pyproject.toml").is_file()
    why = "the nearest folder, upwards, with a pyproject.toml" if has_file else "this folder: no pyproject.toml here or above"
    rows = [("(root)", str(settings.root), why)]
    rows += [(name, setting.value or "-", str(setting.origin)) for name, setting in settings.shown().items()]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [f"{name.ljust(names)}  {value.ljust(values)}  {origin}" for name, value, origin in rows]


def _check(paths: tuple[Path, ...], flags: dict[str, str | None]) -> ExitCode:
    """Print every problem with the settings and the recipe files."""
    settings, errors = read_settings(find_root(Path.cwd()), flags=flags)
    pyproject = relative_source(settings.root / "pyproject.toml", Path.cwd())
    problems = [
        Problem(source="settings" if error.line is None else pyproject, message=str(error), line=error.line) for error in errors
    ]
    files: list[Path] = []
    try:
        files += all_recipe_files(settings, paths)
    except OnnxCiError as error:
        problems.append(Problem(source="settings", message=str(error)))
    problems += filter(None, map(_syntax_problem, files))
    for problem in problems:
        click.echo(f"{problem.source}{'' if problem.line is None else f':{problem.line}'}: {problem.message}")
    if not problems and not files:
        patterns = ", ".join(settings.recipe_files)
        click.echo(f"onnx-ci: no recipe file was found; recipe files are {patterns}; onnx-ci init writes one", err=True)
    elif not problems:
        click.echo(f"settings and {count(len(files), 'recipe file')} are well-formed; onnx-ci list checks the recipes")
    return exit_code_of_plan(files, problems=problems)


def _syntax_problem(path: Path) -> Problem | None:
    """Why a file is not valid Python, if it is not."""
    source = relative_source(path, Path.cwd())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings are left to other tools
            compile(path.read_bytes(), source, "exec")
    except SyntaxError as error:
        return Problem(source=source, message=f"{type(error).__name__}: {error.msg}", line=error.lineno or 1)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return Problem(source=source, message=f"cannot be read: {error or type(error).__name__}", line=1)
    return None
