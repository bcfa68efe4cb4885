"""What is wrong in a report, each cause once, at its line in the repository: for annotations, and as GitLab's code quality."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.config.settings import find_root
from onnx_ci.report.causes import cause_key, causes_of, describe_cells
from onnx_ci.report.findings import describe_finding
from onnx_ci.results.records import CellResult, Finding, Severity, SkipCause
from onnx_ci.results.run_report import RunReport


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """One message at one location."""

    level: str
    """``error`` or ``warning``."""
    message: str
    """The first line says what is wrong."""
    title: str = "onnx-ci"
    file: str | None = None
    """Relative to the root of the repository; ``None`` if the file is not part of it."""
    line: int | None = None
    rule: str | None = None
    """The rule that cells break; ``None`` for what is wrong with a file or the run."""

    @property
    def fingerprint(self) -> str:
        """What stays the same from run to run: numbers and opsets change, and lines move with every edit."""
        text = f"{self.title}\n{_NUMBER.sub('#', self.message)}\n{self.file}"
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def code_quality(report: RunReport, directory: Path, workspace: Path) -> str:
    """The failures, and the warnings that have a place in the repository, as GitLab's code quality, which merge requests show.

    The arguments are those of :func:`failures_of`. Source: GitLab's documentation, section "Code Quality report format".
    """
    warnings = (each for each in warnings_of(report, directory, workspace) if each.file is not None)
    annotations = [*failures_of(report, directory, workspace), *warnings]
    fingerprints = [each.fingerprint for each in annotations]
    violations = [
        {
            "check_name": f"onnx-ci/{each.rule or 'run'}",
            "description": f"{each.title}: {each.message}",
            # Two lines that differ in a number only are two violations.
            "fingerprint": fingerprint + str(fingerprints[:index].count(fingerprint) or ""),
            "severity": "major" if each.level == "error" else "minor",
            # A violation must have a place.
            "location": {"path": each.file or "pyproject.toml", "lines": {"begin": (each.file and each.line) or 1}},
        }
        for index, (each, fingerprint) in enumerate(zip(annotations, fingerprints, strict=True))
    ]
    return json.dumps(violations, indent=1, ensure_ascii=False) + "\n"


def failures_of(report: RunReport, directory: Path, workspace: Path) -> list[Annotation]:
    """What fails a run in ``directory``. If a recipe breaks a rule in several cells for one cause, that is one annotation.

    ``workspace`` is the root of the repository.
    """
    root = find_root(directory)
    failures = [
        Annotation(
            level="error",
            title=f"{problem.source} cannot be used",
            message=problem.message,
            file=_in_repository(root / (problem.file or problem.source), workspace),
            line=problem.line,
        )
        for problem in report.problems
    ]
    failures += _broken(report.cells, Severity.ERROR, root, directory, workspace)
    if not_run := report.not_run:
        message = f"The run was stopped, or a job is missing: {len(not_run)} of the cells did not run, first {not_run[0]}"
        failures.append(Annotation(level="error", message=message))
    return failures


def warnings_of(report: RunReport, directory: Path, workspace: Path) -> list[Annotation]:
    """What does not fail the run but should be known; the arguments are those of :func:`failures_of`."""
    root = find_root(directory)
    # A cell that its recipe skips is skipped on purpose and needs no annotation.
    missing = Counter(result.reason for result in report.cells if result.skip_cause is SkipCause.MISSING_DEVICE)
    return [
        *_broken(report.cells, Severity.WARNING, root, directory, workspace),
        *(
            Annotation(level="warning", message=f"{reason}\n{count} cells were skipped and not verified")
            for reason, count in missing.items()
        ),
    ]


def _broken(
    results: Iterable[CellResult], severity: Severity, root: Path, directory: Path, workspace: Path
) -> list[Annotation]:
    """The errors of cells that fail, or the warnings of cells that pass."""
    causes: dict[tuple[str, str, object], list[tuple[CellResult, Finding]]] = {}
    for result in results:
        if result.status.is_bad if severity is Severity.ERROR else result.warnings:
            for cause in causes_of(each for each in result.findings if each.severity is severity):
                key = result.cell.source, result.cell.recipe, cause_key(cause.finding)
                causes.setdefault(key, []).append((result, cause.finding))
    annotations = []
    for (source, recipe, _), findings in causes.items():
        result, first = findings[0]
        at_fault = ((_in_repository(directory / each.file, workspace), each.line) for each in first.lines)
        of_recipe = _in_repository(root / source, workspace), result.line
        file, line = next((place for place in at_fault if place[0] is not None), of_recipe)
        annotations.append(
            Annotation(
                level=severity.value,
                title=f"{recipe}: {first.rule}",
                message="\n".join(
                    [describe_finding(first), describe_cells(each.cell for each, _ in findings), f"remedy: {first.remedy}"]
                ),
                file=file,
                line=line,
                rule=first.rule,
            )
        )
    return annotations


def _in_repository(file: Path, workspace: Path) -> str | None:
    """The path of ``file`` in the repository, or ``None`` if it is not part of it, such as a file of an installed package."""
    try:
        relative = os.path.relpath(os.path.realpath(file), os.path.realpath(workspace))
        return None if relative.startswith(os.pardir) or not file.is_file() else Path(relative).as_posix()
    except (OSError, ValueError):  # no file can have this name
        return None
