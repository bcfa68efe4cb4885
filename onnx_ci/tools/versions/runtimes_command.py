"""``onnx-ci runtimes``: which versions of ONNX Runtime compute the files right."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click
from packaging.version import InvalidVersion, Version

from onnx_ci.cli.common import GroupedCommand, options_of, settings_from, style, with_colour, with_exit_code
from onnx_ci.config.options import Role, options_with
from onnx_ci.environment.versions import RUNTIME_DISTRIBUTIONS, version_of
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.plugins import version_in_name
from onnx_ci.report.causes import describe_cells_by_recipe
from onnx_ci.report.grid import format_result
from onnx_ci.report.text import table_lines
from onnx_ci.results.records import Cell, CellResult, Finding, Severity, Status
from onnx_ci.text import listed, one_line
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.runs import flags_of, reported

_OPTIONS = [
    option.name
    for option in options_with(Role.MATRIX, Role.SELECTION, Role.DISCOVERY, Role.VERDICT, Role.EXECUTION)
    if option.name not in ("shard", "runtimes", "devices", "require-devices")
]
_UNKNOWN = "-"
"""The mark of a cell without such a version."""


@click.command(cls=GroupedCommand)
@click.option(
    "--since", default="1.15", metavar="VERSION", show_default=True, help="The oldest version of ONNX Runtime that is tried."
)
@options_of("cache", *_OPTIONS)
@with_colour
@with_exit_code
def runtimes(since: str, paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""Show the oldest ONNX Runtime that computes each file right.

    Each file is exported once. The first release of each minor version of ONNX Runtime loads it and runs it on all inputs, as
    the installed version does. The table names the oldest version from which on all are right; below it stands what goes wrong
    with older ones. Nothing is installed: other versions are kept in the user's cache. The exit code is 1 if a file is wrong
    with the installed version, otherwise 0.

    \b
    Examples:
      onnx-ci runtimes
      onnx-ci runtimes --since=1.20 --opsets=13,18 --exporters=torchscript,dynamo
    """
    settings = settings_from(flags)
    installed = next(filter(None, map(version_of, RUNTIME_DISTRIBUTIONS)), None)
    if installed is None:
        raise ConfigurationError("ONNX Runtime is not installed; install onnx-ci[cpu]")
    try:
        versions = releases(Version(since), Version(installed))
    except InvalidVersion:
        raise ConfigurationError(f"--since must be a version such as 1.18, not {since!r}") from None
    if not versions:
        raise ConfigurationError(f"--since={since}: no release from there on is older than the installed {installed}")
    names = ["onnxruntime", *(f"onnxruntime@{version}" for version in versions)]
    fixed = {"runtimes": ",".join(names), "devices": "cpu", "locate": "false"}
    report = reported(None, [*flags_of({**flags, **fixed}), *map(str, paths)], settings)
    supports = {result.cell: support_of(result, versions, installed) for result in report.cells}

    def word_of(result: CellResult | None) -> str:
        return format_result(None) if result is None else supports[result.cell].oldest or _UNKNOWN

    for problem in report.problems:
        click.echo(one_line(f"{problem.source}: {problem.message}"), err=True)
    for line in table_lines(report.cells, word_of, style):
        click.echo(line)
    tried = f"the oldest ONNX Runtime from which on all are right; tried: {listed([*versions, installed])}"
    is_known = all(each.oldest for each in supports.values())
    click.echo(f"({tried}{'' if is_known else f'; {_UNKNOWN} none, because the installed one is not: see onnx-ci run'})")
    for line in _reasons(supports):
        click.echo(one_line(line))
    is_right = report.cells and not report.problems and not any(each.is_wrong for each in supports.values())
    sys.exit(ExitCode.PASSED if is_right else ExitCode.FAILED)


def _reasons(supports: Mapping[Cell, Support]) -> Iterator[str]:
    """What goes wrong with older versions, and in which cells."""
    groups: dict[tuple[str, str], tuple[dict[str, None], dict[Cell, None]]] = {}
    for cell, support in supports.items():
        for version, error in support.wrong.items():
            message = error.message.replace(f"onnxruntime@{version}", "it")
            versions, cells = groups.setdefault((error.rule, message), ({}, {}))
            versions[version], cells[cell] = None, None
    for (rule, message), (versions, cells) in groups.items():
        yield f"{rule} with {listed(versions)}: {message}: {describe_cells_by_recipe(cells)}"


def releases(since: Version, before: Version) -> list[str]:
    """The first release of each minor version of ONNX Runtime that this Python can use, in ascending order.

    Raises:
        ConfigurationError: the package index cannot be asked.
    """
    firsts: dict[tuple[int, int], Version] = {}
    for version in pip.available("onnxruntime"):
        if since <= version < before:
            firsts.setdefault((version.major, version.minor), version)
    return [str(version) for version in firsts.values()]


@dataclass(frozen=True, kw_only=True)
class Support:
    """Which versions compute the file of a cell right."""

    oldest: str
    """The oldest version from which on all do; empty if the installed one does not, or the cell was not judged."""
    is_wrong: bool
    """Whether the installed one does not, and the recipe does not expect that."""
    wrong: Mapping[str, Finding]
    """What goes wrong in other ones, by version."""


def support_of(result: CellResult, versions: Sequence[str], installed: str) -> Support:
    """Which versions compute the file of a cell right. It ran with ``versions``, the oldest first, and the installed."""
    wrong: dict[str, Finding] = {}
    own: list[Finding] = []
    for error in result.findings:
        if error.severity is Severity.ERROR:
            if version := version_in_name(str(error.details.get("runtime", ""))):
                wrong.setdefault(version, error)
            else:
                own.append(error)
    if own or result.status in (Status.SKIPPED, Status.ERROR):
        is_wrong = result.status is Status.ERROR or not all(each.is_expected for each in own)
        return Support(oldest="", is_wrong=is_wrong, wrong={})
    right = installed
    for version in reversed(versions):
        if version in wrong:
            break
        right = version
    return Support(oldest=right, is_wrong=False, wrong=wrong)
