"""The report of a run: its results, its problems, the installed versions and the settings."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from onnx_ci.errors import ExitCode
from onnx_ci.results.json_data import field_of, from_json, shortened, to_json
from onnx_ci.results.records import LONGEST_TIME, CellResult, Exclusion, Problem, Revision, SettingValue, Status
from onnx_ci.results.verdict import RunVerdict, broken_rules, exit_code, missing_device, run_verdict

SCHEMA_VERSION = 1
"""The version of the JSON report's layout; incremented when readers of the old layout would misread it."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""A full hash of git: SHA-1 or SHA-256."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the runs whose reports were merged."""

    name: str
    """The file name of its report."""
    revision: Revision | None
    environment: Mapping[str, str]
    settings: Mapping[str, SettingValue]
    cells: tuple[str, ...]
    """The ids of its cells."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The results of one run, or of several whose reports were merged."""

    environment: Mapping[str, str]
    """The versions of installed packages; missing ones are left out. Where merged runs differ, a text with all of them."""
    settings: Mapping[str, SettingValue]
    """Each setting by its name. Where merged runs differ, a text with all of their values."""
    cells: tuple[CellResult, ...]
    problems: tuple[Problem, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    not_run: tuple[str, ...] = ()
    """The ids of cells that did not run, because the run was stopped or a job is missing."""
    in_other_jobs: tuple[str, ...] = ()
    """The ids of the cells that other jobs judge, if this is one of several; in a plan, all. Merging accounts for them."""
    merged_from: tuple[Part, ...] = ()
    """The runs that this report is merged from; empty in the report of a single run."""
    revision: Revision | None = None
    """``None`` if the project is not in a git repository with a commit, or if merged runs differ."""
    seconds: float = 0.0
    """How long the run took; the total of merged runs."""

    @property
    def part_of(self) -> Mapping[str, Part]:
        """The merged run that a cell's result is from, by the id of the cell."""
        return {id: part for part in self.merged_from for id in part.cells}

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have each status, in the order of :class:`Status`; statuses without cells are left out."""
        counter = Counter(result.status for result in self.cells)
        return {status.value: counter[status] for status in Status if counter[status]}

    @property
    def warned(self) -> int:
        """How many cells passed with warnings."""
        return sum(bool(result.warnings) for result in self.cells)

    @property
    def verdict(self) -> RunVerdict:
        """``passed``, ``failed``, or ``nothing-ran`` if no cell was judged, which is never a success."""
        return run_verdict(self.cells, problems=len(self.problems), not_run=len(self.not_run))

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for this verdict."""
        return exit_code(self.cells, problems=len(self.problems), not_run=len(self.not_run))

    @property
    def missing_device(self) -> str:
        """The required device that is missing, if nothing else is wrong; otherwise empty."""
        return missing_device(self.cells, problems=len(self.problems), not_run=len(self.not_run))

    @property
    def summary(self) -> dict[str, str | int | float]:
        """The verdict and the counts."""
        return {
            "verdict": self.verdict.value,
            "cells": len(self.cells),
            **self.counts,
            "warned": self.warned,
            "problems": len(self.problems),
            "not_run": len(self.not_run),
            "seconds": self.seconds,
        }

    def as_json(self, *, with_cells: bool = True) -> dict[str, Any]:
        """The report as data that :mod:`json` can write. Its cells take almost all of the memory."""
        return {
            "schema_version": SCHEMA_VERSION,
            "revision": to_json(self.revision),
            "environment": dict(self.environment),
            "settings": to_json(self.settings),
            "cells": [result.as_json() for result in self.cells] if with_cells else [],
            "problems": to_json(self.problems),
            "exclusions": to_json(self.exclusions),
            "not_run": list(self.not_run),
            "in_other_jobs": list(self.in_other_jobs),
            "merged_from": to_json(self.merged_from),
            "summary": self.summary,
        }

    @classmethod
    def from_json(cls, data: Any, *, has_summary: bool = True) -> Self:
        """The report that :meth:`as_json` returned, also of a later version. Raises ``ValueError``, which says why."""
        version = field_of(data, "schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"it has schema_version {shortened(version)}, but this onnx-ci reads {SCHEMA_VERSION}")
        results = field_of(data, "cells")
        if not isinstance(results, list):
            raise ValueError(f"cells is {shortened(results)} and should be list")
        cells = tuple(CellResult.from_json(result, f"cells[{index}]") for index, result in enumerate(results))
        if repeated := [id for id, count in Counter(result.cell.id for result in cells).items() if count > 1]:
            raise ValueError(f"it has two results for {repeated[0]}")
        for result in cells:
            if result.status is Status.PASSED and (broken := broken_rules(result.findings)):
                raise ValueError(f"{result.cell.id} passed, although it breaks {', '.join(sorted(broken))}")
        summary = field_of(data, "summary")
        without_cells = from_json(cls, {**data, "cells": [], "seconds": field_of(summary, "seconds", "summary")})
        report: Self = dataclasses.replace(without_cells, cells=cells)
        revisions = {"": report.revision, **{f"merged_from[{n}].": part.revision for n, part in enumerate(report.merged_from)}}
        for place, revision in revisions.items():
            if revision is not None and not _COMMIT.fullmatch(revision.commit):
                raise ValueError(f"{place}revision.commit is {shortened(revision.commit)} and should be a full hash")
        if not 0 <= report.seconds <= LONGEST_TIME:
            raise ValueError(f"it took {report.seconds:g} s, which is not possible")
        if has_summary and report.summary != {key: summary.get(key) for key in report.summary}:
            raise ValueError("its summary does not match its cells")
        return report
