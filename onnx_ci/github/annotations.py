"""The annotations of a report, as many as GitHub shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx_ci.github.runner import ANNOTATION_LIMIT
from onnx_ci.report.annotations import Annotation, failures_of, warnings_of
from onnx_ci.results.run_report import RunReport


def annotations_of(report: RunReport, directory: Path, workspace: Path) -> list[Annotation]:
    """The annotations of ``report``, failures first.

    Args:
        report: the report.
        directory: the folder that the run worked in.
        workspace: the root of the checkout, to which the paths of annotations are relative.
    """
    return [*_first(failures_of(report, directory, workspace)), *_first(warnings_of(report, directory, workspace))]


def _first(annotations: Sequence[Annotation]) -> list[Annotation]:
    """As many as GitHub shows. If there are more, the last one counts the rest."""
    if len(annotations) <= ANNOTATION_LIMIT:
        return list(annotations)
    shown = annotations[: ANNOTATION_LIMIT - 1]
    rest = f"… and {len(annotations) - len(shown)} more, in the summary and the report"
    return [*shown, Annotation(level=shown[0].level, message=rest)]
