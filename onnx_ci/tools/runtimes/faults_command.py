"""``onnx-ci faults``: which releases of runtimes are known to compute a file wrong, and how that was learned."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import click
from packaging.version import Version

from onnx_ci.cli.common import GroupedCommand, with_exit_code
from onnx_ci.environment.versions import version_of
from onnx_ci.errors import ConfigurationError, ExitCode, existing_file
from onnx_ci.results.files import write_text
from onnx_ci.results.records import Finding
from onnx_ci.text import count, one_line
from onnx_ci.tools.versions import pip


@click.command(cls=GroupedCommand)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--with", "release", type=Version, metavar="VERSION", help="Only the faults of this version of ONNX Runtime.")
@click.option("--renew", type=click.Path(path_type=Path), metavar="PATH", help="Measure all faults again, and write them.")
@click.option("--since", type=Version, default="1.15", show_default=True, metavar="VERSION", help="The oldest for --renew.")
@with_exit_code
def faults(files: tuple[Path, ...], release: Version | None, renew: Path | None, since: Version) -> NoReturn:
    r"""Show what releases of ONNX Runtime compute wrong.

    Nothing is run: the nodes of each file are compared with a table of faults, which was measured. The exit code is 1 if a file
    has such nodes.

    With --renew, thousands of small files are run in every release, and what all of them compute wrong becomes the table.

    \b
    Examples:
      onnx-ci faults                              all that are known
      onnx-ci faults model.onnx --with=1.20       those of one release in one file
      onnx-ci faults --renew=known_faults.toml    in an hour
    """
    if renew is not None:
        _renew(renew, since)
        sys.exit(ExitCode.PASSED)
    from onnx_ci.onnx_model.signature import read_model
    from onnx_ci.tools.runtimes.known_faults import known_faults, matches

    versions = None if release is None else {"onnxruntime": str(release)}
    if not files:
        for row in known_faults():
            if release is None or row.holds_for(str(release)):
                click.echo(one_line(row.words))
        sys.exit(ExitCode.PASSED)
    for path in files:
        if isinstance(unread := read_model(existing_file(path)), Finding):
            raise ConfigurationError(f"{path}: {unread.message}")
    found = [f"{path}: {match}" for path in files for match in matches(path, versions)]
    click.echo("\n".join(map(one_line, found)) or "no node of them is known to be computed wrong")
    sys.exit(ExitCode.FAILED if found else ExitCode.PASSED)


def _renew(path: Path, since: Version) -> None:
    """Measure all releases, and write the table."""
    from onnx_ci.tools.runtimes.fault_cases import write_cases, write_limit_cases
    from onnx_ci.tools.runtimes.fault_survey import as_toml, limits_in, outcomes_in, rows

    installed = version_of("onnxruntime")
    if installed is None:
        raise ConfigurationError(
            "the newest ONNX Runtime must be installed, because it says what is right: pip install onnxruntime"
        )
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as of_limits:
        cases, limits = Path(folder), list[dict[str, Any]]()
        write_limit_cases(Path(of_limits))
        click.echo(f"{count(write_cases(cases), 'case')} in which two implementations agree")
        outcomes = {installed: {int(each.stem): 0.0 for each in cases.glob("*.onnx")}}
        available = pip.available("onnxruntime")
        for release in (str(each) for each in available if since <= each < Version(installed)):
            outcomes[release] = outcomes_in(release, cases)
            limits.append(limits_in(release, Path(of_limits)))
            click.echo(f"onnxruntime {release}: {len(outcomes[release])} run")
        faults = [*rows(cases, outcomes)]
    reference = f"onnxruntime {installed} and the reference evaluator of onnx {version_of('onnx')} both"
    write_text([as_toml(faults, limits, sorted(outcomes, key=Version), reference)], path)
    click.echo(f"{path}: {count(len(faults), 'fault')}")
