"""The results of a run as they come, in a file beside its report, so that a run that is killed loses none.

A journal is a text file with one JSON object in each line; a last line without an end is not read. It is removed once the
report is written: one that is there belongs to a run that goes on, or was ended before it could write its report.
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
    return report.with_name(report.name + SUFFIX)


class Journal:
    """Writes a journal. What cannot be written, as on a full disk, costs the run nothing but its journal.

    Args:
        report: the path of the report; a device or a pipe has no journal.
        revision: as in the report.
        environment: as in the report.
        settings: as in the report.
    """

    def __init__(
        self,
        report: Path,
        *,
        revision: Revision | None,
        environment: Mapping[str, str],
        settings: Mapping[str, SettingValue],
    ) -> None:
        self.path = journal_of(report)
        self._file: IO[bytes] | None = None
        if report.exists() and not report.is_file():
            return
        with contextlib.suppress(OSError):
            self._file = self.path.open("wb", buffering=0)
        self._write(
            schema_version=SCHEMA_VERSION,
            revision=to_json(revision),
            environment=dict(environment),
            settings=to_json(settings),
        )
        if self._file is None:
            with contextlib.suppress(OSError):  # without its first line it cannot be read
                self.path.unlink()

    def expect(self, cells: Sequence[str]) -> None:
        """Add cells that are expected, by their ids."""
        self._write(expected=list(cells))

    def add(self, entry: CellResult | Problem | Exclusion, seconds: float) -> None:
        """Add what was found ``seconds`` after the run began."""
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
    """What a journal holds, as the report that its run would have written at that time; it has a problem that says so.

    Args:
        data: the content of the file.
        path: the path of the file, for that problem.

    Raises:
        ValueError: it is not a journal; the message says what is wrong, and where.
    """
    whole = data.split(b"\n")[:-1]
    if not whole:
        raise ValueError("it is empty")
    entries = [_entry(line, number) for number, line in enumerate(whole, start=1)]

    def all_of(key: str) -> list[Any]:
        return [entry[key] for entry in entries if key in entry]

    expected = dict.fromkeys(id for ids in all_of("expected") for id in from_json(tuple[str, ...], ids, "expected"))
    cells = {from_json(str, field_of(each, "id", "cell"), "cell.id"): each for each in all_of("cell")}
    places = {id: place for place, id in enumerate(expected)}
    ended = Problem(source=str(path), message="the run was ended before it could write its report; this is what it had found")
    return RunReport.from_json(
        {
            **entries[0],
            "cells": [cells[id] for id in sorted(cells, key=lambda each: places.get(each, len(places)))],
            "problems": [*all_of("problem"), to_json(ended)],
            "exclusions": all_of("exclusion"),
            "not_run": [id for id in expected if id not in cells],
            "merged_from": [],
            "summary": {"seconds": max((from_json(float, each, "seconds") for each in all_of("seconds")), default=0.0)},
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
