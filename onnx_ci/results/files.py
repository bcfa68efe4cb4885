"""Reports as JSON files, which are written whole and validated when they are read."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onnx_ci.errors import ConfigurationError, nearest_file
from onnx_ci.results.journal import SUFFIX, journal_of, read_journal
from onnx_ci.results.json_data import NotJsonError, read_document
from onnx_ci.results.run_report import RunReport
from onnx_ci.whole_files import remove_unfinished, write_whole


def write_json(report: RunReport, path: Path) -> None:
    """Write the report to ``path``, as :func:`write_text` does; it takes the place of a journal beside it."""
    write_text(_pieces(report), path)
    with contextlib.suppress(OSError):
        journal_of(path).unlink()


def as_text(report: RunReport) -> str:
    """The report as a JSON document."""
    return "".join(_pieces(report))


def _pieces(report: RunReport) -> Iterator[str]:
    """The report as a JSON document, cell by cell: the data of all cells would take several times the report's memory."""
    separator = "{\n "
    for name, value in report.as_json(with_cells=False).items():
        yield f"{separator}{_dumped(name)}: "
        if name == "cells" and report.cells:
            for index, result in enumerate(report.cells):
                yield f"{',' if index else '['}\n  {_dumped(result.as_json(), depth=2)}"
            yield "\n ]"
        else:
            yield _dumped(value, depth=1)
        separator = ",\n "
    yield "\n}\n"


def _dumped(value: Any, *, depth: int = 0) -> str:
    """``value`` as JSON at ``depth`` in a document, whose lines are indented by one space for each level."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).replace("\n", "\n" + " " * depth)


_BEGINNING = 4096
"""The bytes at the beginning of a document that show who wrote it."""
_WRITTEN_BY_US = re.compile(
    rb'(?:\s*\{\s*"schema_version": \d+,\s*"revision": '  # a report or its journal
    rb'|\[\]\s*$|\[\s*\{\s*"check_name": "onnx-ci/'  # code quality
    rb'|<\?xml [^>]*>\s*<testsuites name="onnx-ci"'
    rb'|\{\s*"_type": "https://in-toto.io/Statement/v1",[^\0]*"name": "onnx-ci"'
    rb"|## ONNX export: "
    rb'|\s*<!doctype html>[^\0]*<meta name="generator" content="onnx-ci">'
    rb"|(?:#[^\n]*\n)*schema = \d+\s+recipe = )"  # a baseline
)


def check_replaceable(path: Path) -> None:
    """Raise ``ConfigurationError`` if ``path`` is a file that onnx-ci did not write. A device or a pipe is not replaced."""
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
    except OSError:
        return  # writing it fails, too, and reports why
    if beginning and not _WRITTEN_BY_US.match(beginning):
        raise ConfigurationError(f"{path} would be overwritten, but onnx-ci did not write it; name another file, or remove it")


def write_text(text: str | Iterable[str], path: Path, what: str = "the report") -> None:
    """Write a text, or its pieces, whole, and create the folders above it. Raises as :func:`check_replaceable`."""
    check_replaceable(path)
    pieces = [text] if isinstance(text, str) else text
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(path.parent, path.name)
        content = (piece.encode(errors="replace") for piece in pieces)
        if path.exists() and not path.is_file():  # a device or a pipe
            with path.open("wb") as device:
                device.writelines(content)
        else:
            write_whole(path, content)
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be written: {error.strerror or error}; choose another path") from None


def read_reports(paths: Iterable[Path], *, with_journals: bool = True) -> list[tuple[str, RunReport]]:
    """Every report in files, and in folders as ``*.json``, with the name of its file. Raises ``ConfigurationError``."""
    return [(str(file), read_json(file, with_journal=with_journals)) for path in paths for file in _files(path, with_journals)]


def _files(path: Path, with_journals: bool) -> list[Path]:
    if not path.is_dir():
        return [path]
    reports = {file for file in path.rglob("*.json") if file.is_file()}
    reports.update(file.with_suffix("") for file in path.rglob(f"*.json{SUFFIX}") if with_journals and file.is_file())
    files = sorted(file for file in reports if not any(part.startswith(".") for part in file.relative_to(path).parts))
    if not files:
        raise ConfigurationError(f"the folder {path} contains no report: there is no *.json in it; {_REMEDY}")
    return files


_REMEDY = "write one with onnx-ci run --report=PATH"


def read_json(path: Path, *, with_journal: bool = True) -> RunReport:
    """The report in a file, or in its journal unless the report is newer. Raises the errors of :func:`read_reports`."""
    journal = path if path.name.endswith(SUFFIX) else journal_of(path)
    is_journal = with_journal and journal.is_file()
    if is_journal and path.is_file():
        is_journal = path.stat().st_mtime <= journal.stat().st_mtime
    file = journal if is_journal else path
    try:
        content = file.read_bytes()
    except OSError as error:
        suggestion = nearest_file(path) if isinstance(error, FileNotFoundError) else ""
        message = f"the report {path} cannot be read: {error.strerror or error}{suggestion}; {_REMEDY}"
        raise ConfigurationError(message) from None
    return report_in(content, file, is_journal=is_journal)


def report_in(content: bytes, file: Path, *, is_journal: bool = False) -> RunReport:
    """The report in the content of a file, whose name is for messages. Raises the errors of :func:`read_reports`."""
    try:
        return read_journal(content, file) if is_journal else RunReport.from_json(read_document(content))
    except NotJsonError as error:
        raise ConfigurationError(f"{file} is {error}, so it is not a report of onnx-ci; {_REMEDY}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is not a report that this onnx-ci can read: {error}; {_REMEDY}") from None
