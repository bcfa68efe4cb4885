"""``onnx-ci doctor``: what is here, and what cannot work and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.commands.common import options_of, style, with_exit_code
from onnx_ci.config import find_root, read_settings
from onnx_ci.diagnosis import describe, diagnose, examine
from onnx_ci.errors import ExitCode
from onnx_ci.records import Status, to_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@options_of("opsets", "devices", "isolation", "cache", paths=False)
@with_exit_code
def doctor(as_json: bool, **flags: str | None) -> NoReturn:
    r"""Tell what is installed, what cannot work here, and why.

    Packages are imported in processes of their own, so that one which crashes or hangs is told, too. Ends with exit code 4
    if the run that the settings ask for cannot work.

    \b
    Examples:
      onnx-ci doctor
      onnx-ci doctor --devices=cuda    why cells cannot run on the GPU
      onnx-ci doctor --json            for a bug report
    """
    facts = examine(*read_settings(find_root(Path.cwd()), flags=flags))
    told, troubles = describe(facts), diagnose(facts)
    works = not any(trouble.stops for trouble in troubles)
    if as_json:
        packages = to_json(facts.packages)
        click.echo(json.dumps({"works": works, "told": told, "packages": packages, "troubles": to_json(troubles)}, indent=2))
    else:
        width = max(map(len, told))
        for name, text in told.items():
            click.echo(f"{style(name.ljust(width), None)}  {text}")
        click.echo()
        for trouble in troubles:
            word = style("error", Status.FAILED) if trouble.stops else style("note", Status.SKIPPED)
            click.echo(f"{word} {trouble.subject}: {trouble.message}\n    remedy: {trouble.remedy}")
        click.echo(style("The run can work.", Status.PASSED) if works else style("The run cannot work.", Status.FAILED))
    sys.exit(ExitCode.PASSED if works else ExitCode.ENVIRONMENT)
