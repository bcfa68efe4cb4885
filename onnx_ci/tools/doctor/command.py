"""``onnx-ci doctor``: what is installed, what does not work, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import options_of, style, with_exit_code
from onnx_ci.config.settings import find_root, read_settings
from onnx_ci.errors import ExitCode
from onnx_ci.results.json_data import to_json
from onnx_ci.results.records import Status
from onnx_ci.tools.doctor.diagnosis import describe, diagnose, examine


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@options_of("opsets", "devices", "isolation", "cache", paths=False)
@with_exit_code
def doctor(as_json: bool, **flags: str | None) -> NoReturn:
    r"""Show what is installed, what does not work here, and why.

    Each package is imported in its own process, so that a crash or a hang is reported, too. The exit code is 4 if a run with
    these settings cannot work.

    \b
    Examples:
      onnx-ci doctor
      onnx-ci doctor --devices=cuda    why cells cannot run on the GPU
      onnx-ci doctor --json            for a bug report
    """
    facts = examine(*read_settings(find_root(Path.cwd()), flags=flags))
    environment, troubles = describe(facts), diagnose(facts)
    works = not any(trouble.stops for trouble in troubles)
    if as_json:
        packages = to_json(facts.packages)
        data = {"works": works, "environment": environment, "packages": packages, "troubles": to_json(troubles)}
        click.echo(json.dumps(data, indent=2))
    else:
        width = max(map(len, environment))
        for name, text in environment.items():
            click.echo(f"{style(name.ljust(width), None)}  {text}")
        click.echo()
        for trouble in troubles:
            word = style("error", Status.FAILED) if trouble.stops else style("note", Status.SKIPPED)
            click.echo(f"{word} {trouble.subject}: {trouble.message}\n    remedy: {trouble.remedy}")
        click.echo(style("Cells can run here.", Status.PASSED) if works else style("Cells cannot run here.", Status.FAILED))
    sys.exit(ExitCode.PASSED if works else ExitCode.ENVIRONMENT)
