"""``onnx-ci runtimes``: which runtimes, and which versions of ONNX Runtime, compute the files right."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click
from packaging.version import InvalidVersion, Version

from onnx_ci.cli.common import GroupedCommand, options_of, settings_from, style, with_colour, with_exit_code
from onnx_ci.config.options import Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.environment.versions import runtime_version, version_of
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.plugins import RUNTIMES, variant_in_name, version_in_name
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.report.causes import describe_cells_by_recipe
from onnx_ci.report.grid import format_result
from onnx_ci.report.text import table_lines
from onnx_ci.results.files import write_text
from onnx_ci.results.records import Cell, CellResult, Finding, Problem, Severity, Status
from onnx_ci.text import listed, one_line
from onnx_ci.tools.runtimes.matrix import INSTALLED, RuntimeMatrix, Verdict, matrix_of
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.runs import flags_for, flags_of, reported

_OPTIONS = [
    option.name
    for option in options_with(Role.MATRIX, Role.SELECTION, Role.DISCOVERY, Role.VERDICT, Role.EXECUTION)
    if option.name not in ("shard", "devices", "require-devices")
]
_UNKNOWN = "-"
"""The mark of a cell without such a version."""


@click.command(cls=GroupedCommand)
@click.option(
    "--since", default="1.15", metavar="VERSION", show_default=True, help="The oldest version of ONNX Runtime that is tried."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="PATH", help="Write the matrix as JSON.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), metavar="PATH", help="Write the matrix as an HTML page.")
@click.option(
    "--fail-on",
    default="wrong,refused",
    show_default=True,
    metavar="LIST",
    help="The outcomes in the matrix for which the exit code is 1: wrong and refused, one of them, or none.",
)
@click.option("--read", "only_reads", is_flag=True, help="Do not run other versions: what is known of the files alone.")
@click.option("--nodes/--no-nodes", default=True, show_default=True, help="Search for the nodes at which runtimes go wrong.")
@options_of("cache", *_OPTIONS)
@with_colour
@with_exit_code
def runtimes(
    since: str,
    json_file: Path | None,
    html_file: Path | None,
    fail_on: str,
    only_reads: bool,
    nodes: bool,
    paths: tuple[Path, ...],
    **flags: str | None,
) -> NoReturn:
    r"""Show which runtimes compute each file right.

    With --runtimes, each file is exported once, and each of these runtimes runs it on all inputs, as the installed ONNX Runtime
    does. The matrix says where it is right, wrong and by how much, or refused; below it stands why, and at which nodes. The
    exit code is 1 for what --fail-on names.

    Without, the first release of each minor version of ONNX Runtime runs the files. The table names the oldest version from
    which on all are right; below it stands what goes wrong with older ones. The exit code is 1 if a file is wrong with the
    installed version.

    Nothing is installed: other versions of ONNX Runtime are kept in the user's cache. With --read, no other runtime than the
    installed one is used: a file is refused if its IR version or its opset is too new, wrong if it has nodes that the version
    is known to compute wrong, and otherwise not judged.

    \b
    Examples:
      onnx-ci runtimes
      onnx-ci runtimes --since=1.20 --opsets=13,18 --exporters=torchscript,dynamo
      onnx-ci runtimes --runtimes=onnxruntime@1.17,openvino --fail-on=wrong --html=runtimes.html
      onnx-ci runtimes --runtimes=onnxruntime@1.17,onnxruntime@1.20 --read
    """
    settings = settings_from(flags)
    installed = runtime_version()
    if installed is None:
        raise ConfigurationError("ONNX Runtime is not installed; install onnx-ci[cpu]")
    if flags["runtimes"] is not None:
        failing = _verdicts_in(fail_on)
        names = tuple(dict.fromkeys((INSTALLED, *(settings.runtimes or ()))))  # what is right with that, is the model's
        make = _read_matrix if only_reads else functools.partial(_matrix, searches=nodes)
        matrix, problems = make(names, {**flags, "devices": "cpu", "locate": "false"}, paths, settings)
        for problem in problems:
            click.echo(one_line(f"{problem.source}: {problem.message}"), err=True)
        for line in matrix.lines():
            click.echo(one_line(line))
        if json_file is not None:
            write_text([json.dumps(matrix.as_json(), indent=1, ensure_ascii=False) + "\n"], json_file)
        if html_file is not None:
            write_text([matrix.page()], html_file)
        is_wrong = problems or not matrix.outcomes or any(matrix.has(verdict) for verdict in failing)
        sys.exit(ExitCode.FAILED if is_wrong else ExitCode.PASSED)
    if json_file is not None or html_file is not None:
        raise click.UsageError("--json and --html write the matrix: name the runtimes, --runtimes=LIST")
    try:
        versions = releases(Version(since), Version(installed))
    except InvalidVersion:
        raise ConfigurationError(f"--since must be a version such as 1.18, not {since!r}") from None
    if not versions:
        raise ConfigurationError(f"--since={since}: no release from there on is older than the installed {installed}")
    tried = [INSTALLED, *(f"{INSTALLED}@{version}" for version in versions)]
    fixed = {"runtimes": ",".join(tried), "devices": "cpu", "locate": "false"}
    report = reported(None, [*flags_of({**flags, **fixed}), *map(str, paths)], settings)
    supports = {result.cell: support_of(result, versions, installed) for result in report.cells}

    def word_of(result: CellResult | None) -> str:
        return format_result(None) if result is None else supports[result.cell].oldest or _UNKNOWN

    for problem in report.problems:
        click.echo(one_line(f"{problem.source}: {problem.message}"), err=True)
    for line in table_lines(report.cells, word_of, style):
        click.echo(line)
    heading = f"the oldest ONNX Runtime from which on all are right; tried: {listed([*versions, installed])}"
    is_known = all(each.oldest for each in supports.values())
    click.echo(f"({heading}{'' if is_known else f'; {_UNKNOWN} none, because the installed one is not: see onnx-ci run'})")
    for line in _reasons(supports):
        click.echo(one_line(line))
    is_right = report.cells and not report.problems and not any(each.is_wrong for each in supports.values())
    sys.exit(ExitCode.PASSED if is_right else ExitCode.FAILED)


def _verdicts_in(text: str) -> list[Verdict]:
    allowed = {verdict.value: verdict for verdict in (Verdict.WRONG, Verdict.REFUSED)}
    words = [word for word in text.split(",") if word not in ("", "none")]
    if unknown := [word for word in words if word not in allowed]:
        raise ConfigurationError(f"--fail-on takes {listed(allowed)} or none, not {unknown[0]!r}")
    return [allowed[word] for word in words]


def _matrix(
    names: tuple[str, ...], flags: dict[str, str | None], paths: tuple[Path, ...], settings: Settings, *, searches: bool
) -> tuple[RuntimeMatrix, tuple[Problem, ...]]:
    """The matrix of runtimes with the nodes at which they go wrong, and the problems of recipe files."""
    versions = {name: _version_of_runtime(name) for name in names}
    fixed = {**flags, "runtimes": ",".join(names)}
    report = reported(None, [*flags_of(fixed), *map(str, paths)], settings)
    matrix = matrix_of(report.cells, versions)
    wrong = [cell for cell, of in matrix.outcomes.items() if any(outcome.is_fault for outcome in of.values())]
    if searches and wrong:  # again, because the files and the inputs were not kept
        with scratch_folder() as folder:
            again = {**fixed, **flags_for(wrong, settings), "artifacts": str(folder), "save_inputs": str(folder)}
            with_files = reported(None, [*flags_of(again), *map(str, paths)], settings)
            matrix = matrix.with_nodes([each for each in with_files.cells if each.cell in wrong], folder, settings)
    return matrix, report.problems


def _read_matrix(
    names: tuple[str, ...], flags: dict[str, str | None], paths: tuple[Path, ...], settings: Settings
) -> tuple[RuntimeMatrix, tuple[Problem, ...]]:
    """The matrix with what the files alone tell: only the installed ONNX Runtime runs them."""
    with scratch_folder() as folder:
        fixed = {**flags, "runtimes": INSTALLED, "artifacts": str(folder)}
        report = reported(None, [*flags_of(fixed), *map(str, paths)], settings)
        matrix = matrix_of(report.cells, {name: _version_of_runtime(name) for name in names})
        return matrix.with_what_is_known(report.cells), report.problems


def _version_of_runtime(name: str) -> str:
    """The installed version of a runtime; empty if its name says which version it is, or if it belongs to no package."""
    if variant_in_name(name):
        return ""
    if name == INSTALLED:
        return runtime_version() or ""
    own = getattr(RUNTIMES.load(name), "versions", {})
    return next(filter(None, (*own.values(), version_of(RUNTIMES.distribution(name) or name))), "")


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
