"""From a report to annotations: what is wrong, at the recipe's line in the caller's repository."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.config import find_root
from onnx_ci.github.runner import ANNOTATION_LIMIT
from onnx_ci.opsets import format_opsets
from onnx_ci.records import Cell, CellResult, Finding, Problem, RunReport, Severity, Status

_LINE = re.compile(r"\((?:(?P<file>[^()]+), )?line (?P<line>\d+)\)")
"""Where a problem is, as messages tell it."""


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """One message at one place."""

    level: str
    """``error`` or ``warning``."""
    message: str
    """The first line says what is wrong."""
    title: str = "onnx-ci"
    file: str | None = None
    """Relative to the root of the repository; ``None`` where the file is not part of it."""
    line: int | None = None


def annotations_of(report: RunReport, directory: Path, workspace: Path) -> list[Annotation]:
    """What GitHub should show of ``report``, failures first, as many as it shows.

    A rule that a recipe breaks in several cells is one annotation.

    Args:
        report: of one run, or merged.
        directory: where the command ran.
        workspace: the root of the repository.
    """
    root = find_root(directory)
    failures = [
        *_problems(report.problems, root, directory, workspace),
        *_failures(report.cells, root, workspace),
        *_stopped(report.not_run),
    ]
    return [*_first(failures), *_first(_skipped(report.cells))]


def _first(found: Sequence[Annotation]) -> list[Annotation]:
    """As many as GitHub shows; the last one says how many there are beside it."""
    if len(found) <= ANNOTATION_LIMIT:
        return list(found)
    shown = found[: ANNOTATION_LIMIT - 1]
    more = f"… and {len(found) - len(shown)} more, in the summary and the report"
    return [*shown, Annotation(level=found[0].level, message=more)]


def _failures(results: Iterable[CellResult], root: Path, workspace: Path) -> list[Annotation]:
    broken: dict[tuple[str, str, str], list[tuple[Cell, Finding]]] = {}
    for result in results:
        if result.status.is_bad:
            for finding in result.findings:
                if finding.severity is Severity.ERROR:
                    key = result.cell.source, result.cell.recipe, finding.rule
                    broken.setdefault(key, []).append((result.cell, finding))
    found = []
    lines: dict[str, Mapping[str, int]] = {}
    for (source, recipe, rule), places in broken.items():
        if source not in lines:
            lines[source] = recipe_lines(root / source)
        first = places[0][1]
        found.append(
            Annotation(
                level="error",
                title=f"{recipe}: {rule}",
                message=f"{first.message}\n{_cells(cell for cell, _ in places)}\nremedy: {first.remedy}",
                file=_in_repository(root / source, workspace),
                line=lines[source].get(recipe),
            )
        )
    return found


def _cells(cells: Iterable[Cell]) -> str:
    """``at opsets 9-12 on cpu, at opset 18 on cuda``."""
    opsets: dict[str, list[int]] = {}
    for cell in cells:
        kind = cell.label.removeprefix(f"opset{cell.opset}-").replace("-", " with ")
        opsets.setdefault(kind, []).append(cell.opset)
    return ", ".join(
        f"at opset{'s' * (len(each) > 1)} {format_opsets(tuple(sorted(each)))} on {kind}" for kind, each in opsets.items()
    )


def _problems(problems: Iterable[Problem], root: Path, directory: Path, workspace: Path) -> list[Annotation]:
    found = []
    for problem in problems:
        file, line = root / problem.source, None
        if match := _LINE.search(problem.message):
            named = directory / match["file"] if match["file"] else file
            if named.is_file():
                file, line = named, int(match["line"])
        found.append(
            Annotation(
                level="error",
                title=f"{problem.source} cannot be used",
                message=problem.message,
                file=_in_repository(file, workspace),
                line=line,
            )
        )
    return found


def _stopped(not_run: Sequence[str]) -> list[Annotation]:
    if not not_run:
        return []
    message = f"The run was stopped: {len(not_run)} of its cells did not run, first {not_run[0]}"
    return [Annotation(level="error", message=message)]


def _skipped(results: Iterable[CellResult]) -> list[Annotation]:
    """Devices that were asked for and are not here. A recipe that skips itself knows why."""
    missing = Counter(
        result.reason
        for result in results
        if result.status is Status.SKIPPED and result.reason.startswith(f"no {result.cell.device}: ")
    )
    return [
        Annotation(level="warning", message=f"{reason}\n{count} cells were skipped, so they prove nothing")
        for reason, count in missing.items()
    ]


def _in_repository(file: Path, workspace: Path) -> str | None:
    """``file`` as GitHub names it, or ``None`` if it is not part of the repository, such as a file of an installed package."""
    relative = os.path.relpath(os.path.realpath(file), os.path.realpath(workspace))
    return None if relative.startswith(os.pardir) or not file.is_file() else Path(relative).as_posix()


def recipe_lines(file: Path) -> dict[str, int]:
    """The line on which each recipe of a file begins, by its name. The file is read and not run.

    A recipe is known by the decorated function that has its name, or whose decorator is told ``name=``. Of one that a
    function makes the line is where the file spells the name. What is not found is left out.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the file's own syntax is warned of was said when it was imported
            tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    declared: dict[str, int] = {}
    spelt: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.decorator_list:
            declared.setdefault(_name(node), node.decorator_list[0].lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            spelt.setdefault(node.value, node.lineno)
    return spelt | declared


def _name(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The name that the function's decorators give to the recipe, or its own."""
    for decorator in function.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else []:
            if keyword.arg == "name" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
                return keyword.value.value
    return function.name
