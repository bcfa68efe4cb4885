"""``onnx-ci report``: merge the reports of several jobs, and show the result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import (
    VERBOSE,
    Commands,
    settings_from,
    show,
    show_failures,
    show_in_short,
    show_summary,
    with_colour,
    with_exit_code,
    with_verbosity,
)
from onnx_ci.config.reproduce import repeat_from
from onnx_ci.config.settings import find_root
from onnx_ci.report.comparison import compare_runs
from onnx_ci.report.merge import merge
from onnx_ci.report.written import renderings
from onnx_ci.results.files import as_text, read_reports, write_json, write_text

_OUTPUT = Path("-")


def _target(name: str, help: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(f"--{name}", type=click.Path(path_type=Path, allow_dash=True), metavar="PATH", help=help)


@click.command(name="report")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@_target("markdown", "Write it as Markdown, for a job summary.")
@_target("html", "Write it as an HTML page.")
@_target("junit", "Write it as JUnit's XML, which CI systems show as one test for each cell.")
@_target("code-quality", "Write what is wrong as GitLab's code quality.")
@_target("json", "Write it as JSON, like the report of a single run.")
@click.option("--part", is_flag=True, help="Other jobs have further reports; cells that only those have are not missing.")
@click.option(
    "--since",
    type=click.Path(path_type=Path),
    metavar="REPORT",
    help="Compare with an earlier report, or a folder of them, in the HTML page.",
)
@with_verbosity
@with_colour
@with_exit_code
def show_report(
    reports: tuple[Path, ...], part: bool, since: Path | None, verbosity: str | None, **targets: Path | None
) -> NoReturn:
    r"""Merge the JSON reports of many jobs, and show the result.

    REPORTS are files written by `--report`, or folders that are searched for *.json. A cell that one job judged counts as
    judged, even if other jobs skipped it. Jobs that contradict each other are an error, unless their versions differ: then the
    cells of each environment stand side by side. Cells of a shard or of a plan whose report is missing did not run. With `-` as
    PATH, only that form is written to standard output. The exit code is that of a single run with all the cells.

    \b
    Examples:
      onnx-ci report report.json                                 show a run again
      onnx-ci report reports --markdown=- >> "$GITHUB_STEP_SUMMARY"
      onnx-ci report cpu.json cuda.json --html=report.html       one page for two jobs
      onnx-ci report torch213.json torch215.json                 two versions side by side
      onnx-ci report reports --junit=onnx.xml                    for the list of tests in CI
      onnx-ci report report.json --html=r.html --since=main.json with what moved since an earlier run
      onnx-ci report reports --code-quality=gl-code-quality.json  for GitLab's merge requests
      onnx-ci report reports --json=all.json -q                  one report, like that of a single run
    """
    paths = [target.absolute() for target in targets.values() if target is not None]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        where = "standard output" if twice == _OUTPUT.absolute() else twice
        raise click.UsageError(f"only one form of the report can go to {where}")
    if targets["html"] is None and since is not None:
        raise click.UsageError("--since needs --html=PATH")
    report = merge(read_reports(reports), is_part=part)
    moved = None
    if since is not None:
        moved = compare_runs(report, merge(read_reports([since]), is_part=True), settings_from({}).baseline_limits)
    root = find_root(Path.cwd())
    forms = {**renderings(root, moved, str(since)), "json": as_text}
    commands = Commands(repeat=repeat_from(report, root))
    if _OUTPUT not in targets.values():
        for result in report.cells if verbosity == VERBOSE else ():
            show(result, commands, verbosity)
        if verbosity != VERBOSE:
            show_in_short(result for result in report.cells if result.status.is_bad)
        show_failures(report.cells, commands, verbosity)
        show_summary(report, verbosity)
    for form, target in targets.items():
        if target == _OUTPUT:
            click.echo(forms[form](report), nl=False)
        elif target is not None and form == "json":
            write_json(report, target)  # cell by cell: the text of a large report need not fit into memory
        elif target is not None:
            write_text(forms[form](report), target)
    if report.verdict == "nothing-ran":
        why = "every cell was skipped" if report.cells else "the reports contain no cells"
        click.echo(f"onnx-ci: nothing ran: {why}", err=True)
    sys.exit(report.exit_code)
