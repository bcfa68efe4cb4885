"""One report from those of several runs, such as the jobs of a matrix."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence

from onnx_ci.errors import ConfigurationError
from onnx_ci.report.environments import gathered, names_of
from onnx_ci.report.text import describe_outcome
from onnx_ci.results.json_data import to_json
from onnx_ci.results.records import CellResult, Origin, Problem, SettingValue, SkipCause, Status, format_versions
from onnx_ci.results.run_report import Part, RunReport
from onnx_ci.text import listed

_RUN_FIELDS = ("timings", "cached", "why_run", "log", "artifact", "digests", "facts")
"""The fields of a result that may differ between runs of one cell. Facts are compared with baselines instead."""


def merge(reports: Sequence[tuple[str, RunReport]], *, is_part: bool = False) -> RunReport:
    """One report with every cell of ``reports``, recipe by recipe.

    A cell that one run judged and another skipped, or did not reach, counts as judged. Equal results are merged. A cell that
    one report leaves to other jobs, and that none of ``reports`` has, did not run. If runs with other versions judged a cell
    differently, or if one of them is not whole, the cells of each environment stay apart, called after its versions. Runs of
    several commits are a problem.

    Each report has the name of its file. The results of a single one, or of copies of it, stay as they are. With ``is_part``,
    other jobs have further reports, so cells which they judge are not missing.

    Raises:
        ConfigurationError: two runs with the same versions judged a cell differently.
    """
    environments = _environments(reports)
    judged = [_judged(group) for group in environments]
    pairs = [pair for pair in itertools.combinations(judged, 2) if not pair[0].keys().isdisjoint(pair[1])]
    apart = _side_by_side(environments, judged, reports) if pairs else None
    disagree = any(_differing(one[id], other[id]) for one, other in pairs for id in one.keys() & other.keys())
    if apart is not None and (disagree or (apart.in_other_jobs and not is_part)):
        merged, expected = apart, [apart]
    else:
        merged, expected = _merged(reports), [report for _, report in reports]
    known = {*(result.cell.id for result in merged.cells), *merged.not_run}
    missing = tuple(dict.fromkeys(id for report in expected for id in report.in_other_jobs if id not in known))
    if is_part:
        return dataclasses.replace(merged, in_other_jobs=missing)
    return dataclasses.replace(merged, not_run=(*merged.not_run, *missing), in_other_jobs=())


_Reports = Sequence[tuple[str, RunReport]]
"""Reports with the names of their files."""


def _environments(reports: _Reports) -> list[_Reports]:
    """The reports by the versions of their runs, without plans; all together if one is merged from several environments."""
    groups: dict[str, list[tuple[str, RunReport]]] = {}
    for name, report in reports:
        versions = {json.dumps(part.environment, sort_keys=True) for part in report.merged_from}
        if len(versions) > 1:
            return [reports]
        if report.cells or not report.in_other_jobs:
            groups.setdefault(json.dumps(dict(report.environment), sort_keys=True), []).append((name, report))
    return [*groups.values()]


def _judged(reports: _Reports) -> dict[str, CellResult]:
    """The results of the cells that were judged, by their ids."""
    results = (result for _, report in reports for result in report.cells)
    return {result.cell.id: result for result in results if result.status is not Status.SKIPPED}


def _side_by_side(environments: Sequence[_Reports], judged: Sequence[Mapping[str, CellResult]], reports: _Reports) -> RunReport:
    """The cells of all environments, which are called after their versions.

    What a plan in ``reports`` has is expected of each environment, but for the cells of devices on which only others judge.
    """
    names = names_of([group[0][1].environment for group in environments])
    planned = [id for _, report in reports if not report.cells for id in report.in_other_jobs]
    named = []
    for name, group, own in zip(names, environments, judged, strict=True):
        whole = _merged(group)
        devices = {result.cell.device for result in own.values()}
        elsewhere = {id for other in judged for id, result in other.items() if result.cell.device not in devices}
        cells = tuple(
            each for each in whole.cells if each.cell.id not in elsewhere or each.skip_cause is not SkipCause.MISSING_DEVICE
        )
        known = {*(result.cell.id for result in whole.cells), *whole.not_run, *elsewhere}
        expected = dict.fromkeys([*planned, *(id for _, report in group for id in report.in_other_jobs)])
        whole = dataclasses.replace(whole, cells=cells, in_other_jobs=tuple(id for id in expected if id not in known))
        named.append((group[0][0], _named(whole, name)))
    merged = _merged(named)
    return dataclasses.replace(merged, in_other_jobs=tuple(id for _, report in named for id in report.in_other_jobs))


def _named(report: RunReport, name: str) -> RunReport:
    """A report whose cells are called after their environment."""

    def ids(of: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{id}@{name}" for id in of)

    return dataclasses.replace(
        report,
        cells=tuple(dataclasses.replace(each, cell=dataclasses.replace(each.cell, environment=name)) for each in report.cells),
        problems=tuple(
            dataclasses.replace(each, message=f"with {format_versions(name)}: {each.message}") for each in report.problems
        ),
        not_run=ids(report.not_run),
        in_other_jobs=ids(report.in_other_jobs),
        merged_from=tuple(dataclasses.replace(part, cells=ids(part.cells)) for part in report.merged_from),
    )


def _merged(reports: _Reports) -> RunReport:
    first = reports[0][1]
    if all(report.as_json() == first.as_json() for _, report in reports[1:]):
        return first
    reports = [(name, report) for name, report in reports if report.cells or not report.in_other_jobs] or reports  # no plans
    chosen: dict[str, tuple[int, CellResult]] = {}
    for place, (name, report) in enumerate(reports):
        for result in report.cells:
            owner, earlier = chosen.get(result.cell.id, (place, None))
            if earlier is None or (earlier.status is Status.SKIPPED and result.status is not Status.SKIPPED):
                chosen[result.cell.id] = place, result
            elif result.status is not Status.SKIPPED:
                differing = _differing(earlier, result)
                if differing:
                    raise ConfigurationError(
                        f"{reports[owner][0]} and {name} contradict each other about {result.cell.id}: "
                        f"{describe_outcome(earlier)} and {describe_outcome(result)}; they differ in {listed(differing)}. "
                        "A report has one result per cell and environment: leave out one of the files, or run each cell in "
                        "one job only"
                    )
    judged = {id for id, (_, result) in chosen.items() if result.status is not Status.SKIPPED}
    not_run = dict.fromkeys(id for _, report in reports for id in report.not_run if id not in judged)
    results = {id: chosen[id] for id in chosen if id not in not_run}
    parts = _parts(reports, {id: place for id, (place, _) in results.items()})
    revisions = {part.revision for part in parts}
    commits = {part.revision.short: part.name for part in parts if part.revision is not None}
    problems = dict.fromkeys(each for _, report in reports for each in report.problems)
    if len(commits) > 1:
        named = listed([f"{name} of {commit}" for commit, name in commits.items()])
        message = f"runs of different commits prove nothing about any: {named}; merge the reports of one"
        problems[Problem(source="merged reports", message=message)] = None
    return RunReport(
        revision=revisions.pop() if len(revisions) == 1 else None,
        environment={name: listed(values) for name, values in gathered(part.environment for part in parts).items()},
        settings=_settings(parts),
        cells=tuple(_in_order(result for _, result in results.values())),
        problems=tuple(problems),
        exclusions=tuple(dict.fromkeys(each for _, report in reports for each in report.exclusions)),
        not_run=tuple(not_run),
        merged_from=parts,
        seconds=sum(part.seconds for part in parts),
    )


def _differing(first: CellResult, second: CellResult) -> list[str]:
    """What two results of a cell say differently about the export."""
    data, others = first.as_json(), second.as_json()
    return [name for name in data if name not in _RUN_FIELDS and data[name] != others[name]]


def _parts(reports: Iterable[tuple[str, RunReport]], owners: Mapping[str, int]) -> tuple[Part, ...]:
    """Each run behind ``reports`` once, with the cells whose results were taken from it: ``owners`` has the report's index."""
    parts: dict[str, Part] = {}
    for place, (name, report) in enumerate(reports):
        shared = {field: getattr(report, field) for field in ("revision", "environment", "settings", "seconds")}
        whole = Part(name=name, cells=tuple(result.cell.id for result in report.cells), **shared)
        for part in report.merged_from or (whole,):
            # A run may occur twice: in its own report, and in one that was merged before.
            run = json.dumps({**to_json(part), "name": "", "cells": []}, sort_keys=True)
            before = parts[run].cells if run in parts else ()
            added = tuple(id for id in part.cells if owners.get(id) == place)
            parts[run] = dataclasses.replace(parts.get(run, part), cells=before + added)
    return tuple(parts.values())


def _settings(parts: Sequence[Part]) -> dict[str, SettingValue]:
    """The settings of all runs; where they differ, a list of all values."""
    values = gathered({name: each.value or "none" for name, each in part.settings.items()} for part in parts)
    origins = gathered({name: str(each.origin) for name, each in part.settings.items()} for part in parts)
    first = {name: each.origin.source for part in reversed(parts) for name, each in part.settings.items()}
    return {
        name: SettingValue(
            value=None if values[name] == ["none"] else listed(values[name]),
            origin=Origin(source=first[name], given_as=listed(origins[name])),
        )
        for name in values
    }


def _in_order(results: Iterable[CellResult]) -> list[CellResult]:
    """Results in the order of a single run: recipes and devices as they first appear, then opsets."""
    results = list(results)
    recipes = list(dict.fromkeys((result.cell.source, result.cell.recipe) for result in results))
    devices = list(dict.fromkeys(result.cell.device for result in results))
    return sorted(
        results,
        key=lambda result: (
            recipes.index((result.cell.source, result.cell.recipe)),
            devices.index(result.cell.device),
            result.cell.opset,
            result.cell.exporter,
        ),
    )
