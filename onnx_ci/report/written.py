"""The files that a run writes beside its JSON report, as the settings request them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx_ci.config.reproduce import repeat_from
from onnx_ci.config.settings import Settings
from onnx_ci.environment.git import repository_of
from onnx_ci.report import junit, sarif
from onnx_ci.results.run_report import RunReport

Rendering = Callable[[RunReport], str]
"""A report as the text of a file."""


def written_files(settings: Settings) -> dict[Path, Rendering]:
    """The files that ``settings`` request, by their absolute paths, because a recipe may change directory."""
    files: dict[Path, Rendering] = {}
    if settings.junit is not None:
        files[settings.junit.absolute()] = lambda report: junit.render(report, repeat_from(report, settings.root))
    if settings.sarif is not None:
        directory = Path.cwd()
        repository = repository_of(directory) or directory
        files[settings.sarif.absolute()] = lambda report: sarif.render(report, directory, repository)
    return files
