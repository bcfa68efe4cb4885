"""Runs in several environments: what sets them apart, and what may be why a cell passes in one of them only."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from onnx_ci.config.reproduce import NARROWING
from onnx_ci.report.causes import describe_cells_by_recipe
from onnx_ci.results.records import Cell, CellResult, Status
from onnx_ci.results.run_report import Part, RunReport
from onnx_ci.text import listed

_FIRST = ("torch", "onnxruntime", "onnxruntime-gpu", "onnxscript", "onnx", "openvino", "torchvision", "python", "numpy")
_LAST = ("onnx-ci", "pytest", "platform")
"""What an environment is called after, if that sets it apart; other packages, such as exporters, come between the two."""
_NOT_IN_ID = re.compile(r"[^\w.+-]")


def names_of(environments: Sequence[Mapping[str, str]]) -> list[str]:
    """``torch==2.13.0`` and ``torch==2.15.0``: each environment by as few versions as set them all apart."""
    chosen: list[str] = []
    for name in sorted({name for each in environments for name in each}, key=_rank):
        if _different(environments, [*chosen, name]) > _different(environments, chosen):
            chosen.append(name)
    return [",".join(f"{name}=={_NOT_IN_ID.sub('_', each.get(name, 'none'))}" for name in chosen) for each in environments]


def _rank(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST) + (1 + _LAST.index(name) if name in _LAST else 0)), name


def _different(environments: Iterable[Mapping[str, str]], names: Sequence[str]) -> int:
    return len({tuple(each.get(name) for name in names) for each in environments})


def differences(parts: Iterable[Part]) -> list[str]:
    """What differs between runs and can change verdicts: ``torch 2.12.0 and 2.13.0``."""
    values_by_name = gathered(
        {
            "commit": "unknown" if part.revision is None else part.revision.in_words,
            **part.environment,
            **{n: each.value or "none" for n, each in part.settings.items() if n not in NARROWING},
        }
        for part in parts
    )
    return [f"{name} {listed(values)}" for name, values in values_by_name.items() if len(values) > 1]


def gathered(mappings: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """The different values of each name, in order."""
    gathered: dict[str, dict[str, None]] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            gathered.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in gathered.items()}


def describe_failing_environments(report: RunReport) -> list[str]:
    """For cells that fail in one environment and pass in another, what these differ in.

    ``lstm at opset 18 on cpu passes with onnxscript 0.7.1 and not with onnxscript 0.7.0: only onnxscript differs``. Of several
    environments in which it passes, the one that differs least counts.
    """
    part_of = report.part_of
    named = [each for each in report.cells if each.cell.environment is not None and each.cell.id in part_of]
    passing: dict[Cell, list[CellResult]] = {}
    for result in named:
        if result.status in (Status.PASSED, Status.XFAILED):
            passing.setdefault(dataclasses.replace(result.cell, environment=None), []).append(result)
    groups: dict[tuple[str, str, tuple[str, ...]], list[Cell]] = {}
    for result in named:
        cell = dataclasses.replace(result.cell, environment=None)
        if not result.status.is_bad or cell not in passing:
            continue
        failing = part_of[result.cell.id]
        apart = {each.cell.versions: tuple(differences([part_of[each.cell.id], failing])) for each in passing[cell]}
        nearest = min(apart, key=lambda versions: len(apart[versions]))
        groups.setdefault((result.cell.versions, nearest, apart[nearest]), []).append(cell)
    sentences = []
    for (failing_versions, passing_versions, differing), cells in groups.items():
        verb = "passes" if len({cell.recipe for cell in cells}) == 1 else "pass"
        first = f"{describe_cells_by_recipe(cells)} {verb} with {passing_versions} and not with {failing_versions}"
        if len(differing) == 1:
            sentences.append(f"{first}: only {differing[0].split()[0]} differs")
        else:
            sentences.append(f"{first}: the runs differ in {listed(differing)}, and onnx-ci upgrade tells which package it is")
    return sentences


def renamed(before: RunReport, after: RunReport) -> RunReport:
    """An earlier report of the same jobs, whose environments are called as in ``after`` if only versions have moved on."""
    then, now = ({result.cell.environment for result in report.cells} for report in (before, after))
    names = dict(zip(sorted(then - now, key=_by_version), sorted(now - then, key=_by_version), strict=False))
    if not names:
        return before
    cells = tuple(
        dataclasses.replace(
            each, cell=dataclasses.replace(each.cell, environment=names.get(each.cell.environment, each.cell.environment))
        )
        for each in before.cells
    )
    return dataclasses.replace(before, cells=cells)


def _by_version(environment: str | None) -> list[tuple[int, str]]:
    return [(int(number or 0), text) for number, text in re.findall(r"(\d+)|([^\d]+)", environment or "")]
