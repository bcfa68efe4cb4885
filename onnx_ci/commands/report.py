"""``onnx-ci report``: the reports of several jobs as one, for every kind of reader."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.commands.common import VERBOSE, exit_code, settle, show, show_summary, with_colour, with_exit_code, with_verbosity
from onnx_ci.commands.history import past_of
from onnx_ci.config import find_root
from onnx_ci.records import Cell, RunReport
from onnx_ci.report import html, markdown
from onnx_ci.report.json_file import as_text, read_reports, write_text
from onnx_ci.report.merge import merge
from onnx_ci.report.repeat import repeat_from

_OUTPUT = Path("-")


def _target(name: str, help: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(f"--{name}", type=click.Path(path_type=Path, allow_dash=True), metavar="PATH", help=help)


@click.command(name="report")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@_target("markdown", "Write it as Markdown, for a job's summary.")
@_target("html", "Write it as one page for a browser.")
@_target("json", "Write it as JSON, like the report of a single run.")
@click.option("--history", is_flag=True, help="Draw the baselines over the commits into the page.")
@with_verbosity
@with_colour
@with_exit_code
def show_report(reports: tuple[Path, ...], history: bool, verbosity: str | None, **targets: Path | None) -> NoReturn:
    r"""Merge the JSON reports of many jobs, and show the result.

    REPORTS are files that `--report` wrote, or folders: every *.json below them. A cell that one job judged counts as judged,
    whichever jobs skipped it; jobs that contradict each other are refused. With `-` in place of a PATH, what is written goes
    to standard output, and nothing else does. The exit code is that of one run with all the cells.

    \b
    Examples:
      onnx-ci report report.json                                 what a run said, once more
      onnx-ci report reports --markdown=- >> "$GITHUB_STEP_SUMMARY"
      onnx-ci report cpu.json cuda.json --html=report.html       one page of two jobs
      onnx-ci report report.json --html=r.html --history         with the baselines over the commits
      onnx-ci report reports --json=all.json -q                  one report, as of a single run
    """
    if sum(target == _OUTPUT for target in targets.values()) > 1:
        raise click.UsageError("only one of --markdown, --html and --json can go to standard output")
    if history and targets["html"] is None:
        raise click.UsageError("--history is drawn into the page of --html=PATH")
    report = merge(read_reports(reports))
    past = past_of(settle({})) if history else None
    renderings: dict[str, Callable[[RunReport, Callable[[Cell], str]], str]] = {
        "markdown": markdown.render,
        "html": functools.partial(html.render, past=past),
        "json": lambda report, repeat: as_text(report),
    }
    repeat = repeat_from(report, find_root(Path.cwd()))
    if _OUTPUT not in targets.values():
        for result in report.cells:
            if result.status.is_bad or verbosity == VERBOSE:
                show(result, repeat, verbosity)
        show_summary(report, verbosity)
    for form, target in targets.items():
        if target is None:
            continue
        text = renderings[form](report, repeat)
        if target == _OUTPUT:
            click.echo(text, nl=False)
        else:
            write_text(text, target)
    if report.verdict == "nothing-ran":
        why = "every cell was skipped" if report.cells else "there is no cell in it"
        click.echo(f"onnx-ci: nothing ran: {why}", err=True)
    sys.exit(exit_code(report))
