"""The files that a run writes beside its JSON report, as its settings request them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx_ci.config.reproduce import repeat_from
from onnx_ci.config.settings import Settings
from onnx_ci.environment.git import repository_of
from onnx_ci.errors import ConfigurationError
from onnx_ci.report import junit, markdown
from onnx_ci.report.annotations import code_quality
from onnx_ci.results.records import Cell
from onnx_ci.results.run_report import RunReport

Rendering = Callable[[RunReport], str]
"""A report as the text of a file."""


def page(report: RunReport, repeat: Callable[[Cell], str], **context: Any) -> str:
    """The report as an HTML page; the arguments are those of :func:`onnx_ci.report.html.render`."""
    from onnx_ci.report import html  # loads jinja2

    return html.render(report, repeat, **context)


def written_files(settings: Settings, summary: Path | None = None) -> dict[Path, Rendering]:
    """What to write into each file that the settings request.

    The paths are absolute, because a recipe may change the current directory.

    Args:
        settings: the settings of the run.
        summary: where to write the summary as Markdown.

    Raises:
        ConfigurationError: one file would be written twice.
    """
    directory = Path.cwd()
    repository = repository_of(directory) or directory
    requested: tuple[tuple[Path | None, Rendering], ...] = (
        (settings.html, lambda report: page(report, repeat_from(report, settings.root), code_in=directory)),
        (settings.junit, lambda report: junit.render(report, repeat_from(report, settings.root))),
        (settings.code_quality, lambda report: code_quality(report, directory, repository)),
        (summary, lambda report: markdown.render(report, repeat_from(report, settings.root))),
    )
    files: dict[Path, Rendering] = {}
    for path, render in requested:
        if path is not None:
            if path.absolute() in (*files, settings.report and settings.report.absolute()):
                raise ConfigurationError(f"{path} would be written twice, in two formats; name two files")
            files[path.absolute()] = render
    return files
