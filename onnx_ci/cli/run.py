"""``onnx-ci run``: run every cell."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cli.common import (
    QUIET,
    VERBOSE,
    Commands,
    GroupedCommand,
    GroupedOption,
    find_recipes,
    options_of,
    settings_from,
    show,
    show_failures,
    show_in_short,
    show_summary,
    with_colour,
    with_exit_code,
    with_no_cache,
    with_verbosity,
)
from onnx_ci.cli.progress import Progress
from onnx_ci.config.options import Group
from onnx_ci.config.reproduce import command_about, repeat_with_cli
from onnx_ci.config.settings import Settings
from onnx_ci.engine.events import CellJudged, Waiting
from onnx_ci.engine.session import Session
from onnx_ci.errors import UnwrittenError
from onnx_ci.matrix.plan import Matrix
from onnx_ci.report.causes import failure_key
from onnx_ci.report.nothing_ran import why_nothing_ran
from onnx_ci.report.text import describe_missing_device
from onnx_ci.report.written import written_files
from onnx_ci.results.records import Cell, CellResult
from onnx_ci.results.verdict import RunVerdict
from onnx_ci.text import one_line


@click.command(cls=GroupedCommand)
@options_of()
@with_no_cache()
@click.option(
    "--summary",
    cls=GroupedOption,
    group=Group.OUTPUT,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write the summary as Markdown.",
)
@click.option(
    "-x",
    "--exitfirst",
    cls=GroupedOption,
    group=Group.WHAT,
    is_flag=True,
    help="Stop after the first cell that fails. The others count as not run.",
)
@with_verbosity
@with_colour
@with_exit_code
def run(paths: tuple[Path, ...], summary: Path | None, exitfirst: bool, verbosity: str | None, **flags: str | None) -> NoReturn:
    r"""Export, check and compare every cell of the recipes in PATHS.

    \b
    Examples:
      onnx-ci run                                     the project's recipes
      onnx-ci run recipes --opsets=9-17               a folder, at nine opsets
      onnx-ci run --select='resnet*::opset13-cpu'     one cell of each ResNet
      onnx-ci run --report=r.json --html=r.html       also write the report as JSON and as a page
      onnx-ci run --junit=onnx.xml                    also for the list of tests in CI
      onnx-ci run --shard=2/5 --durations=old.json    the second of five parts of equal duration
      onnx-ci run -q                                  only failures and the last line
    """
    gate(paths, settings_from(flags), summary, verbosity, exitfirst=exitfirst)


def gate(
    paths: tuple[Path, ...], settings: Settings, summary: Path | None, verbosity: str | None, *, exitfirst: bool = False
) -> NoReturn:
    """Run every cell of the recipes in ``paths``, show the results, and exit with the exit code of the run."""
    files = written_files(settings, summary)
    unwritten: UnwrittenError | None = None
    cache = VerdictCache.open(settings)
    try:
        with Session(settings, cache=cache, also_written=files) as session:
            recipes = find_recipes(settings, paths, cache)
            whole, matrix = session.plan(recipes)
            if len(matrix.cells) != len(whole.cells) and verbosity != QUIET:
                click.echo(f"shard {settings.shard}: {len(matrix.cells)} of {len(whole.cells)} cells")
            _show_results(session, matrix, verbosity, exitfirst=exitfirst)
    except UnwrittenError as error:  # the results are complete
        unwritten = error
    report = session.report
    show_failures(report.cells, _commands(settings), verbosity)
    show_summary(report, verbosity)
    for note in session.notes_of_cache if verbosity != QUIET else ():
        click.echo(one_line(f"cache: {note}"))
    for path in session.baselines.orphans(recipes.scopes) if not paths and not report.problems else ():
        click.echo(f"baseline: {path.name} belongs to no recipe of the project; onnx-ci baseline prune removes it")
    for line in session.recorded:
        click.echo(f"baseline: {line}")
    if report.verdict is RunVerdict.NOTHING_RAN:
        reason = why_nothing_ran(tuple(recipes.scopes.values()), settings, paths, is_planned=bool(matrix.cells))
        click.echo(f"onnx-ci: nothing ran: {reason}", err=True)
    if report.missing_device:
        click.echo(f"onnx-ci: {describe_missing_device(report)}", err=True)
    if unwritten is not None:
        click.echo(f"onnx-ci: {one_line(str(unwritten))}", err=True)
    sys.exit(report.exit_code if unwritten is None else report.exit_code or unwritten.exit_code)


def _commands(settings: Settings) -> Commands:
    return Commands(
        repeat=functools.partial(repeat_with_cli, settings=settings.shown(), root=settings.root),
        about=functools.partial(command_about, settings=settings),
    )


def _show_results(session: Session, matrix: Matrix, verbosity: str | None, *, exitfirst: bool) -> None:
    """Show the first failure of each cause at once, other cells after the last of their recipe. Ctrl-C keeps what is there."""
    cells = [spec.cell for spec in matrix.cells]
    commands = _commands(session.settings)
    is_live = sys.stdout.isatty() and verbosity != QUIET
    progress = Progress(cells, session.durations.seconds if is_live else {}, is_live=is_live)
    waiting, shown_causes = WaitingResults(cells), set[object]()

    def show_result(result: CellResult) -> None:
        progress.add(result)
        key = failure_key(result) if result.status.is_bad else None
        has_own_line = verbosity == VERBOSE or (key is not None and key not in shown_causes)
        shown_causes.add(key)
        if has_own_line:
            show(result, commands, verbosity, before=progress.place, has_remedies=not (exitfirst or progress.is_done))
        show_in_short(waiting.add(result, waits=not has_own_line and verbosity != QUIET), before=progress.place)
        progress.show()

    try:
        try:
            for event in session.events():
                match event:
                    case Waiting() if verbosity != QUIET:
                        if overdue := waiting.overdue():
                            progress.clear()
                            show_in_short(overdue, before=progress.place)
                        progress.show(event.doing)
                    case CellJudged():
                        show_result(event.result)
                        if exitfirst and event.result.status.is_bad:
                            break
        finally:
            progress.clear()
            show_in_short(waiting.take(), before=progress.place)
    except KeyboardInterrupt:
        click.echo("onnx-ci: interrupted", err=True)


_TOGETHER = 10.0
"""Seconds. Cells of a recipe that end within this time are shown in one line."""


class WaitingResults:
    """The results of a run that are not shown yet. It is given all cells of the run, in order."""

    def __init__(self, cells: Sequence[Cell], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cells = cells
        self._clock = clock
        self._shown_at = clock()
        self._done = 0
        self._waiting: list[CellResult] = []

    def add(self, result: CellResult, *, waits: bool) -> list[CellResult]:
        """Count the next result, and return those to show now. One that waits for no others is shown already, or not at all."""
        self._done += 1
        if waits:
            self._waiting.append(result)
        is_last = self._done == len(self._cells) or _recipe(self._cells[self._done]) != _recipe(result.cell)
        return self.take() if is_last else self.overdue()

    def overdue(self) -> list[CellResult]:
        """Return the results, and forget them, if it is time to show them."""
        return self.take() if self._waiting and self._clock() - self._shown_at > _TOGETHER else []

    def take(self) -> list[CellResult]:
        """Return the results that wait, and forget them."""
        self._shown_at = self._clock()
        results, self._waiting = self._waiting, []
        return results


def _recipe(cell: Cell) -> tuple[str, str]:
    return cell.source, cell.recipe
