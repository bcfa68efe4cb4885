"""The journal of a run: its results as they come, in a file beside its report.

Whatever ends a run, every verdict that it reached is on disk, and the exit code says so. Each result is written as soon as it
is decided, in any order. The report replaces the journal: a journal that exists belongs to a run that goes on, or that was
ended before it wrote its report, and is never a success. Only a power failure can cost results: nothing waits for the disk.

A journal is a text file with one JSON object in each line. A last line without an end is not read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from onnx_ci.results.json_data import NotJsonError, field_of, from_json, read_document, to_json
from onnx_ci.results.records import CellResult, Exclusion, Problem, Revision, SettingValue
from onnx_ci.results.run_report import SCHEMA_VERSION, RunReport

SUFFIX = ".journal"


def journal_of(report: Path) -> Path:
    """The journal of a run that writes ``report``: ``report.json.journal``."""
    return report.parent / (report.name + SUFFIX)


class Journal:
    """Writes a journal, unless the report is a device or a pipe. If that fails, as on a full disk, the run goes on."""

    def __init__(
        self, report: Path, *, revision: Revision | None, environment: Mapping[str, str], settings: Mapping[str, SettingValue]
    ) -> None:
        self.path = journal_of(report)
        self._file: IO[bytes] | None = None
        if report.exists() and not report.is_file():
            return
        with contextlib.suppress(OSError):
            self._file = self.path.open("wb", buffering=0)
        self._write(
            schema_version=SCHEMA_VERSION, revision=to_json(revision), environment=dict(environment), settings=to_json(settings)
        )
        if self._file is None:
            with contextlib.suppress(OSError):  # without its first line it cannot be read
                self.path.unlink()

    def expect(self, cells: Sequence[str]) -> None:
        """Add cells that are expected, by their ids."""
        self._write(expected=list(cells))

    def add(self, entry: CellResult | Problem | Exclusion, seconds: float) -> None:
        """Add an entry, ``seconds`` after the run began."""
        if isinstance(entry, CellResult):
            self._write(cell=entry.as_json(), seconds=seconds)
        else:
            self._write(**{"problem" if isinstance(entry, Problem) else "exclusion": to_json(entry)}, seconds=seconds)

    def close(self) -> None:
        """Write no more; the file stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, **entry: Any) -> None:
        if self._file is None:
            return
        line = json.dumps(entry, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        try:
            while line:  # without a buffer, so that nothing is lost if this process is killed
                line = line[self._file.write(line) or 0 :]
        except OSError:
            self.close()


def read_journal(data: bytes, path: Path) -> RunReport:
    """The report of a run that was ended, with a problem that says so. Raises ``ValueError``."""
    lines = data.split(b"\n")[:-1]
    if not lines:
        raise ValueError("it is empty")
    entries = [_entry(line, number) for number, line in enumerate(lines, start=1)]

    def all_of(key: str) -> list[Any]:
        return [entry[key] for entry in entries if key in entry]

    expected = dict.fromkeys(id for ids in all_of("expected") for id in from_json(tuple[str, ...], ids, "expected"))
    cells = {from_json(str, field_of(cell, "id", "cell"), "cell.id"): cell for cell in all_of("cell")}
    order = {id: number for number, id in enumerate(expected)}
    problem = Problem(source=str(path), message="the run was ended before it could write its report; this is what it had found")
    return RunReport.from_json(
        {
            **entries[0],
            "cells": [cells[id] for id in sorted(cells, key=lambda cell: order.get(cell, len(order)))],
            "problems": [*all_of("problem"), to_json(problem)],
            "exclusions": all_of("exclusion"),
            "not_run": [id for id in expected if id not in cells],
            "in_other_jobs": [],  # a journal is never a success, whatever it is merged with
            "merged_from": [],
            "summary": {"seconds": max((from_json(float, seconds, "seconds") for seconds in all_of("seconds")), default=0.0)},
        },
        has_summary=False,
    )


def _entry(line: bytes, number: int) -> Mapping[str, Any]:
    try:
        entry = read_document(line)
    except NotJsonError as error:
        raise ValueError(f"line {number} is {error}") from None
    if not isinstance(entry, Mapping):
        raise ValueError(f"line {number} is not an object")
    return entry
