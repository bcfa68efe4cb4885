"""``onnx-ci table``: the support table from the reports of real runs, and whether a page is up to date."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import click

from onnx_ci.cli.common import with_exit_code
from onnx_ci.errors import ConfigurationError, ExitCode, nearest_file
from onnx_ci.report.merge import merge
from onnx_ci.report.support_table import BEGIN, END, render, replaced
from onnx_ci.results.files import read_reports, write_text


@click.command(name="table")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Write the table into FILE, between its marks.")
@click.option("--check", type=click.Path(path_type=Path), metavar="FILE", help="Fail if FILE has a different table.")
@with_exit_code
def print_table(reports: tuple[Path, ...], write: Path | None, check: Path | None) -> None:
    r"""Show which recipes work, with which exporter, from which opset.

    REPORTS are files written by `onnx-ci run --report`, or folders of them. The table is Markdown. A page contains it between
    two marks, each on its own line:

    \b
      <!-- onnx-ci table: begin -->
      <!-- onnx-ci table: end -->

    \b
    Examples:
      onnx-ci run --opsets=9-23 --exporters=torchscript,dynamo --report=r.json
      onnx-ci table r.json                            to standard output
      onnx-ci table r.json --write=docs/support.md    into a page
      onnx-ci table r.json --check=docs/support.md    exit code 1 if the page differs
    """
    report = merge(read_reports(reports))
    if not report.cells:
        click.echo("onnx-ci: the reports contain no cells, so there is no table", err=True)
        sys.exit(ExitCode.NOTHING_RAN)
    if report.not_run:
        raise ConfigurationError(
            f"the run was stopped before {len(report.not_run)} of its cells ran, first {report.not_run[0]}: a table of the "
            "others would look complete; let the run finish"
        )
    table = render(report)
    if write is None and check is None:
        click.echo(table, nl=False)
    if write is not None:
        write_text(_replaced(write, table), write)
    if check is not None and (stale := _outdated(check, table)) is not None:
        click.echo(stale)
        click.echo(f"onnx-ci: {check} is outdated; rewrite it with onnx-ci table … --write={check}", err=True)
        sys.exit(ExitCode.FAILED)


def _outdated(page: Path, table: str) -> str | None:
    """A diff of the table in ``page``; ``None`` if it is up to date."""
    present, expected = _read(page), _replaced(page, table)
    if present == expected:
        return None
    lines = difflib.unified_diff(present.splitlines(), expected.splitlines(), str(page), "the reports", n=0, lineterm="")
    return "\n".join(lines)


def _replaced(page: Path, table: str) -> str:
    text = _read(page)
    try:
        return replaced(text, table)
    except ConfigurationError as error:
        raise ConfigurationError(f"{page} has no place for a table: {error}") from None


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except FileNotFoundError:
        message = f"there is no file {page}{nearest_file(page)}; create it with the lines {BEGIN} and {END}"
        raise ConfigurationError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{page} cannot be read: {error}") from None
