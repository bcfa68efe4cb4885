"""``onnx-ci fix``: what would repair a failing cell, each remedy tried."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from onnx_ci.cli.common import GroupedCommand, options_of, settings_from, style, with_colour, with_exit_code
from onnx_ci.config.reproduce import OF_ONE_CELL
from onnx_ci.config.values import DEFAULT_ISOLATION
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.report.text import describe_outcome
from onnx_ci.results.verdict import exit_code
from onnx_ci.text import one_line
from onnx_ci.tools.named_cells import NamedCell, failing_cell_or_file

if TYPE_CHECKING:
    from onnx_ci.tools.fix.search import Attempt


@click.command(cls=GroupedCommand)
@click.argument("cell", metavar="CELL")
@click.option("--write", is_flag=True, help="Make the change of code that passes, if there is one.")
@options_of("recipe-files", "packages", *(option.name for option in OF_ONE_CELL))
@with_colour
@with_exit_code
def fix(cell: str, write: bool, paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""Try remedies for a failing cell, and show one that passes.

    Tried first is what leaves the model and its declaration as they are: known rewrites of the lines that the failure names,
    such as `int(height)` without `int`, `torch.where` for an `if` on data, and torch's functions for numpy's; a larger
    example, where torch.export may take a size of 1 for a constant; and an option of the exporter. Only if none of these
    passes, other opsets and the other exporter are tried, which change what is shipped. Each is run through the whole gate.
    After a change of code, the file must also compute what the model computes without it, on every input that onnx-ci tries.
    Code is changed in memory only, unless --write is given; look at the change before you commit it. CELL is an id as shown by
    `onnx-ci list`, or the name of a recipe, for its first cell that fails. Recipes are searched for in PATHS, or in the
    project's recipe files. The exit code is 0 if something passes, and 1 if nothing does.

    \b
    Examples:
      onnx-ci fix net
      onnx-ci fix --write onnx_recipes.py::net::opset13-cpu
    """
    from onnx_ci.engine.session import Session
    from onnx_ci.tools.fix.search import Search

    settings = settings_from(flags)
    if settings.isolation == "none":  # what is tried may crash, and changes code
        settings = dataclasses.replace(settings, isolation=DEFAULT_ISOLATION)
    subject = failing_cell_or_file(cell, settings, paths)
    if not isinstance(subject, NamedCell):
        raise ConfigurationError(f"{cell} is a file; name a cell, such as net::opset13-cpu")
    with Session(settings, subject.recipes, is_reporting=False) as session:
        failed = session.judge(dataclasses.replace(subject.spec, expectations=()))
    click.echo(f"{one_line(failed.cell.id)} {style(describe_outcome(failed), failed.status)}")
    if not failed.status.is_bad:
        click.echo(one_line(failed.reason) or "there is nothing to fix")
        sys.exit(exit_code([failed]))
    with subject.recipes as recipes:
        search = Search(subject.spec, recipes, settings)
        passing = _shown(search.of_the_same_export(failed))
        is_corrected = any(each.remedy.corrects_model for each in passing)
        heading = f"passes, with {'what the model computes on its example' if is_corrected else 'the same model'}"
        heading += " and the same declaration"
        if not passing:
            passing = _shown(search.of_another_export())
            heading = "passes, but changes what is shipped"
        change = next((each.remedy for each in reversed(passing) if each.remedy.texts), None)
        broken = [*search.broken_by(change)] if change is not None else []
    if change is not None:
        click.echo(f"\n{change.difference(Path.cwd())}", nl=False)
    for other in broken:
        warning = f"{other.cell.id} passes today, and fails after this change: {describe_outcome(other)}"
        click.echo(f"\n{style(one_line(warning), other.status)}")
    words = "".join(f"\n  {one_line(each.remedy.words)}{' (with a warning)' * bool(each.result.warnings)}" for each in passing)
    click.echo(f"\n{heading}:{words}" if passing else "\nnothing that was tried passes")
    if write and change is None:
        click.echo("no file is written: no change of code passes")
    elif write and change is not None:
        _write(change.texts)
    sys.exit(ExitCode.PASSED if change is not None or (passing and not write) else ExitCode.FAILED)


def _shown(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Print what came of each attempt as soon as it is known, and return those that pass."""
    passing = []
    for attempt in attempts:
        click.echo(f"  {one_line(attempt.remedy.words)}: {style(describe_outcome(attempt.result), attempt.result.status)}")
        passing += [attempt] if attempt.passes else []
    return passing


def _write(texts: Mapping[str, str]) -> None:
    """Write the changed files."""
    for file, text in texts.items():
        try:
            Path(file).write_bytes(text.encode())  # in place: a link stays one, and an executable file executable
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error.strerror or error}") from None
        click.echo(f"written: {one_line(file)}")
