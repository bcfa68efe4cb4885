"""``onnx-ci statement``: the verdict beside the file, as an in-toto statement.

A statement names each file by its SHA-256 and says, in the predicate for results of tests, which cells judged it, with which
versions, limits and numbers: https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md. It is not
signed; a signature would say who ran the cells.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import click

from onnx_ci.cli.common import with_exit_code
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.report.merge import merge
from onnx_ci.results.files import read_reports, write_text
from onnx_ci.results.json_data import read_document
from onnx_ci.results.records import CellResult, Status
from onnx_ci.results.run_report import RunReport
from onnx_ci.text import listed, one_line
from onnx_ci.whole_files import read_regular

_STATEMENT = "https://in-toto.io/Statement/v1"
_TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
_SUFFIX = ".intoto.json"
_NO_PACKAGES = ("python", "platform")
"""What an environment names beside packages."""
_LARGEST = 16 * 1024**2
"""The bytes of the longest statement that is read."""


@click.group(name="statement")
@with_exit_code
def statement() -> None:
    r"""Write the verdict beside each file, or check a file against it.

    \b
    Examples:
      onnx-ci statement write report.json
      onnx-ci statement verify files/net/opset17-cpu.onnx
    """


@statement.command()
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@with_exit_code
def write(reports: tuple[Path, ...]) -> None:
    r"""Write a statement beside each file that a run has kept.

    That of net.onnx is net.onnx.intoto.json, in the format of in-toto. A file that has changed since it was judged gets none.

    \b
    Examples:
      onnx-ci run --artifacts=files --report=report.json
      onnx-ci statement write report.json
    """
    read = read_reports(reports)
    report = read[0][1] if len(read) == 1 else merge(read)
    judged: dict[str, list[CellResult]] = {}
    for result in report.cells:
        if result.artifact is not None:
            judged.setdefault(result.artifact, []).append(result)
    if not judged:
        raise ConfigurationError("the run has kept no file; repeat it with onnx-ci run --artifacts=DIR --report=PATH")
    changed = {file: _changes(results[0].digests, Path(file)) for file, results in judged.items()}
    for file, results in judged.items():
        if not changed[file]:
            path = _statement_of(Path(file))
            write_text(json.dumps(_statement(results, report), indent=2) + "\n", path, "the statement")
            click.echo(one_line(f"{path}: {_result(results)}"))
    if problems := [f"{file}: {listed(changes)}" for file, changes in changed.items() if changes]:
        raise ConfigurationError(
            f"no statement is written for files that have changed since the run; run again: {'; '.join(problems)}"
        )


@statement.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@with_exit_code
def verify(files: tuple[Path, ...]) -> NoReturn:
    r"""Check that files are those that passed.

    Each FILE, with its external data, must be the one that the statement beside it is about.
    Nothing is exported or run, and no network is used. The exit code is 1 if a file differs, or if its cells did not pass.

    \b
    Examples:
      onnx-ci statement verify files/net/opset17-cpu.onnx
    """
    is_right = True
    for file in files:
        judged, predicate = _read(_statement_of(file))
        changes = _changes(judged, file)
        is_right = is_right and not changes and predicate["result"] != "FAILED"
        verdict = f"not the judged file: {listed(changes)}" if changes else predicate["result"].lower()
        cells = [*predicate["passedTests"], *predicate["warnedTests"], *predicate["failedTests"]]
        click.echo(one_line(f"{file}: {verdict} ({listed(map(str, cells))})"))
    raise SystemExit(ExitCode.PASSED if is_right else ExitCode.FAILED)


def _statement_of(file: Path) -> Path:
    return file.with_name(file.name + _SUFFIX)


def _changes(judged: Mapping[str, str], file: Path) -> list[str]:
    """What is not as it was judged."""
    from onnx_ci.onnx_model.files import digests_of  # with onnx

    try:
        now = digests_of(file)
    except OSError as error:
        return [f"it cannot be read: {error.strerror or error}"]
    changed = [f"{name} has changed" for name in judged if name in now and now[name] != judged[name]]
    missing = [f"{name} is missing" for name in judged if name not in now]
    return [*changed, *missing, *(f"{name} was not judged" for name in now if name not in judged)]


def _statement(results: Sequence[CellResult], report: RunReport) -> dict[str, Any]:
    """The statement about a file from the results of the cells that judged it."""
    tests: dict[str, list[str]] = {"PASSED": [], "WARNED": [], "FAILED": []}
    for result in results:
        tests[_result([result])].append(result.cell.id)
    return {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in results[0].digests.items()],
        "predicateType": _TEST_RESULT,
        "predicate": {
            "result": _result(results),
            "configuration": list(_configuration(results, report)),
            "passedTests": tests["PASSED"],
            "warnedTests": tests["WARNED"],
            "failedTests": tests["FAILED"],
        },
    }


def _result(results: Sequence[CellResult]) -> str:
    """The word of the predicate for the results. A failure that the recipe declares is one nevertheless."""
    if any(result.status is not Status.PASSED for result in results):
        return "FAILED"
    return "WARNED" if any(result.warnings for result in results) else "PASSED"


def _configuration(results: Sequence[CellResult], report: RunReport) -> Iterator[dict[str, Any]]:
    """The packages, as purls. That of onnx-ci also has the commit, the machine, the settings that were set, and the drifts."""
    part = report.part_of.get(results[0].cell.id, report)
    settings = {name: each.value for name, each in part.settings.items() if each.origin.source.value != "default"}
    numbers = {
        result.cell.id: {each.name: {"drift": each.drift, "limit": each.limit, "input": each.probe} for each in result.outputs}
        for result in results
    }
    packages = {name: version for name, version in part.environment.items() if name not in _NO_PACKAGES}
    for name, version in packages.items():
        described: dict[str, Any] = {"name": name, "uri": f"pkg:pypi/{name}@{quote(version, safe='')}"}
        if name == "onnx-ci":
            commit = part.revision.commit if part.revision is not None else None
            machine = {name: part.environment[name] for name in _NO_PACKAGES if name in part.environment}
            described["annotations"] = {"commit": commit, **machine, "settings": settings, "cells": numbers}
        yield described


def _read(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The digests of the files that a statement is about, and its predicate. Raises ``ConfigurationError``."""
    remedy = "write it with onnx-ci statement write REPORT"
    try:
        content = read_document(read_regular(path, _LARGEST))
    except FileNotFoundError:
        raise ConfigurationError(f"there is no statement {path}; {remedy}") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the statement {path} cannot be read: {error}; {remedy}") from None
    match content:
        case {
            "_type": kind,
            "predicateType": predicate_type,
            "subject": [*subjects],
            "predicate": {
                "result": "PASSED" | "WARNED" | "FAILED",
                "passedTests": [*_],
                "warnedTests": [*_],
                "failedTests": [*_],
            } as predicate,
        } if (kind, predicate_type) == (_STATEMENT, _TEST_RESULT):
            judged = {}
            for subject in subjects:
                match subject:
                    case {"name": str(name), "digest": {"sha256": str(digest)}}:
                        judged[name] = digest
            if len(judged) == len(subjects) > 0:
                return judged, predicate
    raise ConfigurationError(f"{path} is no statement of onnx-ci about the result of tests; {remedy}")
