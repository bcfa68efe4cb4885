"""The files that show a report: those that the settings of a run request, and those that ``onnx-ci report`` writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx_ci.config.reproduce import repeat_from
from onnx_ci.config.settings import Settings
from onnx_ci.environment.git import repository_of
from onnx_ci.errors import ConfigurationError
from onnx_ci.report import junit, markdown
from onnx_ci.report.annotations import code_quality
from onnx_ci.report.comparison import RunComparison
from onnx_ci.results.run_report import RunReport

Rendering = Callable[[RunReport], str]
"""A report as the text of a file."""


def renderings(root: Path, since: RunComparison | None = None, since_name: str = "") -> dict[str, Rendering]:
    """The forms of a report of the project in ``root``; the page also shows what moved since an earlier run."""
    directory = Path.cwd()
    repository = repository_of(directory) or directory

    def page(report: RunReport) -> str:
        from onnx_ci.report import html  # loads jinja2

        return html.render(report, repeat_from(report, root), since=since, since_name=since_name, code_in=directory)

    return {
        "html": page,
        "junit": lambda report: junit.render(report, repeat_from(report, root)),
        "code_quality": lambda report: code_quality(report, directory, repository),
        "markdown": lambda report: markdown.render(report, repeat_from(report, root)),
    }


def written_files(settings: Settings, summary: Path | None = None) -> dict[Path, Rendering]:
    """What to write into which absolute path: a recipe may change directory. A file that would be written twice is an error."""
    paths = {"html": settings.html, "junit": settings.junit, "code_quality": settings.code_quality, "markdown": summary}
    files: dict[Path, Rendering] = {}
    for form, render in renderings(settings.root).items():
        if (path := paths[form]) is not None:
            if path.absolute() in (*files, settings.report and settings.report.absolute()):
                raise ConfigurationError(f"{path} would be written twice, in two formats; name two files")
            files[path.absolute()] = render
    return files
