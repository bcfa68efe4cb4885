"""The annotations of a report, as many as GitHub shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx_ci.github.runner import ANNOTATION_LIMIT
from onnx_ci.report.annotations import Annotation, failures_of, warnings_of
from onnx_ci.results.run_report import RunReport


def annotations_of(report: RunReport, directory: Path, workspace: Path) -> list[Annotation]:
    """The annotations for ``report``, failures first. The arguments are those of ``failures_of``."""
    return [*_first(failures_of(report, directory, workspace)), *_first(warnings_of(report, directory, workspace))]


def _first(found: Sequence[Annotation]) -> list[Annotation]:
    """As many as GitHub shows; the last one counts the rest."""
    if len(found) <= ANNOTATION_LIMIT:
        return list(found)
    shown = found[: ANNOTATION_LIMIT - 1]
    more = f"… and {len(found) - len(shown)} more, in the summary and the report"
    return [*shown, Annotation(level=found[0].level, message=more)]
