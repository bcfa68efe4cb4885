"""One report of several runs that shared the cells of a project out, such as the jobs of a matrix."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence

from onnx_ci.errors import ConfigurationError
from onnx_ci.records import CellResult, Part, RunReport, Status, to_json
from onnx_ci.report.text import gathered, in_words, outcome

_OF_THE_RUN = ("timings", "cached", "log", "artifact", "facts")
"""What a result tells of its run; the rest is what it says of the export. Facts are compared by who keeps baselines."""


def merge(reports: Sequence[tuple[str, RunReport]]) -> RunReport:
    """One report with every cell of ``reports``, recipe by recipe.

    A cell that one run judged and another skipped, or did not come to, is judged. Results that say the same are one.

    Args:
        reports: at least one, each with the name of its file. One alone, or the same one several times, stays as it is.

    Raises:
        ConfigurationError: two runs judged one cell differently. The message names the cell and both files.
    """
    first = reports[0][1]
    if all(report.as_json() == first.as_json() for _, report in reports[1:]):
        return first
    chosen: dict[str, tuple[int, CellResult]] = {}
    for place, (name, report) in enumerate(reports):
        for result in report.cells:
            at, known = chosen.get(result.cell.id, (place, None))
            if known is None or (known.status is Status.SKIPPED and result.status is not Status.SKIPPED):
                chosen[result.cell.id] = place, result
            elif result.status is not Status.SKIPPED:
                _make_sure_of_agreement((reports[at][0], known), (name, result))
    judged = {id for id, (_, result) in chosen.items() if result.status is not Status.SKIPPED}
    not_run = tuple(dict.fromkeys(id for _, report in reports for id in report.not_run if id not in judged))
    kept = {id: each for id, each in chosen.items() if id not in not_run}
    parts = _parts(reports, {id: place for id, (place, _) in kept.items()})
    return RunReport(
        environment={name: in_words(values) for name, values in gathered(part.environment for part in parts).items()},
        settings=_settings(parts),
        cells=tuple(_in_order(result for _, result in kept.values())),
        problems=tuple(dict.fromkeys(each for _, report in reports for each in report.problems)),
        exclusions=tuple(dict.fromkeys(each for _, report in reports for each in report.exclusions)),
        not_run=not_run,
        merged_from=parts,
        seconds=sum(part.seconds for part in parts),
    )


def _make_sure_of_agreement(one: tuple[str, CellResult], other: tuple[str, CellResult]) -> None:
    """Refuse two results of one cell that say different things of the export."""
    (file, result), (other_file, other_result) = one, other
    said, other_said = result.as_json(), other_result.as_json()
    differing = [name for name in said if name not in _OF_THE_RUN and said[name] != other_said[name]]
    if differing:
        raise ConfigurationError(
            f"{file} and {other_file} contradict each other about {result.cell.id}: {outcome(result)} and "
            f"{outcome(other_result)}; they differ in {in_words(differing)}. A report has one result for a cell: leave one of "
            "the files out, or give each cell to one job alone"
        )


def _parts(reports: Iterable[tuple[str, RunReport]], owners: Mapping[str, int]) -> tuple[Part, ...]:
    """Every run behind ``reports`` once, with the cells whose results are its.

    Args:
        owners: the place of the report that each cell's result was taken from.
    """
    parts: dict[str, Part] = {}
    for place, (name, report) in enumerate(reports):
        ids = tuple(result.cell.id for result in report.cells)
        whole = Part(name=name, environment=report.environment, settings=report.settings, cells=ids, seconds=report.seconds)
        for part in report.merged_from or (whole,):
            # A run may come twice: in its own report, and in one that was merged before.
            run = json.dumps({**to_json(part), "name": "", "cells": []}, sort_keys=True)
            known = parts.setdefault(run, dataclasses.replace(part, cells=()))
            own = tuple(id for id in part.cells if owners.get(id) == place)
            parts[run] = dataclasses.replace(known, cells=known.cells + own)
    return tuple(parts.values())


def _settings(parts: Iterable[Part]) -> dict[str, dict[str, str | None]]:
    """The settings of all runs; those that are not the same everywhere in words."""
    values = gathered({name: each["value"] or "none" for name, each in part.settings.items()} for part in parts)
    origins = gathered({name: str(each["from"]) for name, each in part.settings.items()} for part in parts)
    return {
        name: {"value": None if values[name] == ["none"] else in_words(values[name]), "from": in_words(origins[name])}
        for name in values
    }


def _in_order(results: Iterable[CellResult]) -> list[CellResult]:
    """Results as one run would give them: recipes and devices as they first appear, then opsets."""
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
