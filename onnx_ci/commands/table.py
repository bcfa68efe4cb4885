"""``onnx-ci table``: what works from which opset, from the reports of real runs, and whether a page still says so."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import click

from onnx_ci.commands.common import with_exit_code
from onnx_ci.errors import ConfigurationError, ExitCode, did_you_mean
from onnx_ci.report.json_file import read_reports, write_text
from onnx_ci.report.merge import merge
from onnx_ci.report.support import BEGIN, END, render, replaced


@click.command(name="table")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Write the table into FILE, between its marks.")
@click.option("--check", type=click.Path(path_type=Path), metavar="FILE", help="Fail if FILE has another table.")
@with_exit_code
def print_table(reports: tuple[Path, ...], write: Path | None, check: Path | None) -> None:
    r"""Show which recipes work, with which exporter, from which opset.

    REPORTS are files that `onnx-ci run --report` wrote, or folders of them. The table is Markdown. A page holds it between
    two marks, each on a line of its own:

    \b
      <!-- onnx-ci table: begin -->
      <!-- onnx-ci table: end -->

    \b
    Examples:
      onnx-ci run --opsets=9-23 --exporters=torchscript,dynamo --report=r.json
      onnx-ci table r.json                            on standard output
      onnx-ci table r.json --write=docs/support.md    into a page
      onnx-ci table r.json --check=docs/support.md    exit code 1 if the page says something else
    """
    report = merge(read_reports(reports))
    if not report.cells:
        click.echo("onnx-ci: there is no cell in the reports, so there is no table", err=True)
        sys.exit(ExitCode.NOTHING_RAN)
    if report.not_run:
        raise ConfigurationError(
            f"the run was stopped before {len(report.not_run)} of its cells, first {report.not_run[0]}: a table of the others "
            "would pass for all; run it to its end"
        )
    table = render(report)
    if write is None and check is None:
        click.echo(table, nl=False)
    if write is not None:
        write_text(_replaced(write, table), write)
    if check is not None and (stale := _first_difference(check, table)) is not None:
        click.echo(stale)
        click.echo(f"onnx-ci: {check} is stale; write it anew with onnx-ci table … --write={check}", err=True)
        sys.exit(ExitCode.FAILED)


def _first_difference(page: Path, table: str) -> str | None:
    """How the table in ``page`` differs, line by line; ``None`` if it does not."""
    now, then = _read(page), _replaced(page, table)
    if now == then:
        return None
    lines = difflib.unified_diff(now.splitlines(), then.splitlines(), str(page), "the reports", n=0, lineterm="")
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
        siblings = [each.name for each in page.parent.iterdir()] if page.parent.is_dir() else []
        meant = did_you_mean(page.name, siblings)
        raise ConfigurationError(f"there is no file {page}{meant}; make it, with the lines {BEGIN} and {END}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{page} cannot be read: {error}") from None
