"""Recipe × runtime: whether each runtime computes the file of each cell right, how far off it is, or why it refuses it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from packaging.version import Version

from onnx_ci.config.settings import Settings
from onnx_ci.plugins import base_name, version_in_name
from onnx_ci.report.causes import describe_cells_by_recipe
from onnx_ci.report.templates import asset, fill
from onnx_ci.results.records import Cell, CellResult, Finding, Severity, Status, worst_of
from onnx_ci.text import listed

INSTALLED = "onnxruntime"


class Verdict(enum.StrEnum):
    """What a runtime does with a file."""

    RIGHT = "right"
    WRONG = "wrong"
    """It computes something else than the model."""
    REFUSED = "refused"
    """It does not load the file, or does not run it."""
    NOT_JUDGED = "not judged"
    """There is no file, or every runtime computes it wrong."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one runtime does with the file of one cell."""

    verdict: Verdict
    drift: float | None = None
    """The largest drift, relative to its limit; ``None`` if nothing was compared."""
    rule: str = ""
    reason: str = ""
    """What is wrong, without the name of the runtime; empty if it is right."""
    nodes: tuple[str, ...] = ()
    """The nodes at which it goes wrong, each in a sentence."""

    @property
    def is_fault(self) -> bool:
        """Whether the runtime is wrong or refuses the file."""
        return self.verdict in (Verdict.WRONG, Verdict.REFUSED)

    @property
    def word(self) -> str:
        """``right``, ``wrong 4.6e+06`` or ``refused``."""
        is_measured = self.verdict is Verdict.WRONG and self.drift is not None
        return f"{self.verdict} {self.drift:.2g}" if is_measured else self.verdict.value


def outcome_of(result: CellResult, runtime: str) -> Outcome:
    """What a runtime does with the file of a cell, which ran in it and in the installed ONNX Runtime."""
    if result.status in (Status.SKIPPED, Status.ERROR):
        return Outcome(verdict=Verdict.NOT_JUDGED, reason=result.reason or "there is no file")
    # The faults of a reference runtime are notes, because nobody deploys it.
    own = [each for each in result.findings if each.severity is not Severity.WARNING and _runtime_at_fault(each) == runtime]
    shared = [each for each in result.findings if each.severity is Severity.ERROR and _runtime_at_fault(each) is None]
    drifts = [each for each in result.outputs if each.runtime == runtime]
    worst = worst_of(drifts)
    drift = None if worst is None else worst.drift
    for each in own or shared:
        reason = each.message.replace(runtime, "it")
        if not own:
            return Outcome(verdict=Verdict.NOT_JUDGED, rule=each.rule, reason=f"the file itself is wrong: {reason}")
        verdict = Verdict.REFUSED if {each.rule, each.details.get("breaks")} & {"load-error", "run-error"} else Verdict.WRONG
        return Outcome(verdict=verdict, drift=each.drift, rule=each.rule, reason=reason)
    if not drifts:
        return Outcome(verdict=Verdict.NOT_JUDGED, reason="nothing was compared")
    return Outcome(verdict=Verdict.RIGHT, drift=drift)


def _runtime_at_fault(error: Finding) -> str | None:
    """The runtime at fault, if another one is right there; ``None`` if the file is at fault."""
    return str(error.details.get("runtime")) if "right" in error.details else None


@dataclass(frozen=True, kw_only=True)
class RuntimeMatrix:
    """The outcomes of several cells in several runtimes."""

    versions: Mapping[str, str]
    """The runtimes by their names, each with its version; empty if it has none."""
    outcomes: Mapping[Cell, Mapping[str, Outcome]]
    """By cell and by the name of the runtime."""

    def has(self, verdict: Verdict) -> bool:
        """Whether that is the verdict on any file in any runtime."""
        return any(outcome.verdict is verdict for of in self.outcomes.values() for outcome in of.values())

    def with_nodes(self, results: Iterable[CellResult], folder: Path, settings: Settings) -> Self:
        """The matrix, with the nodes of those cells whose files, and the inputs on which they fail, are in a folder.

        Of versions of one runtime with the same fault, the newest is searched.
        """
        from onnx_ci.tools.runtimes.located import first_errors, wrong_nodes  # with torch

        outcomes = {cell: dict(of) for cell, of in self.outcomes.items()}
        for result in results:
            of, nodes = outcomes[result.cell], dict[tuple[str, str], tuple[str, ...]]()
            errors = first_errors(result)
            versions = {name: Version(version_in_name(name) or "0") for name in errors if of[name].is_fault}
            for name in sorted(versions, key=lambda name: versions[name], reverse=True):
                key = base_name(name), of[name].reason
                if key not in nodes and result.artifact is not None:
                    inputs = folder / result.cell.recipe / result.cell.label
                    nodes[key] = tuple(wrong_nodes(name, errors[name], Path(result.artifact), inputs, settings))
                of[name] = replace(of[name], nodes=nodes.get(key, ()))
        return replace(self, outcomes=outcomes)

    def with_what_is_known(self, results: Iterable[CellResult]) -> Self:
        """The matrix, with what the files of cells tell of other versions of ONNX Runtime, which did not run them."""
        outcomes = {cell: dict(of) for cell, of in self.outcomes.items()}
        for result in results:
            of = outcomes[result.cell]
            file = None if result.artifact is None or of[INSTALLED].verdict is not Verdict.RIGHT else Path(result.artifact)
            for name in of:
                if file is not None and (version := version_in_name(name)):
                    of[name] = _known(file, base_name(name), version)
        return replace(self, outcomes=outcomes)

    def lines(self) -> Iterator[str]:
        """The table, and below it what is wrong, each reason once."""
        titles = [f"{name} {version}".strip() for name, version in self.versions.items()]
        rows = [
            [f"{cell.recipe}::{cell.label}", *(of[name].word for name in self.versions)] for cell, of in self.outcomes.items()
        ]
        table = [["", *titles], *rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for first, *others in table:
            yield "  ".join(
                [first.ljust(widths[0]), *(each.rjust(width) for each, width in zip(others, widths[1:], strict=True))]
            )
        if any(outcome.word != outcome.verdict for of in self.outcomes.values() for outcome in of.values()):
            yield "(a number is how many times PyTorch's own rounding the outputs are off)"
        yield from self._reasons()

    def _reasons(self) -> Iterator[str]:
        groups: dict[tuple[str, str, tuple[str, ...]], tuple[dict[str, None], dict[Cell, None]]] = {}
        for cell, of in self.outcomes.items():
            for name, outcome in of.items():
                if outcome.reason or outcome.nodes:
                    runtimes, cells = groups.setdefault((outcome.verdict.value, outcome.reason, outcome.nodes), ({}, {}))
                    runtimes[name] = cells[cell] = None
        for (verdict, reason, nodes), (runtimes, cells) in groups.items():
            yield f"{verdict} in {listed(runtimes)}: {describe_cells_by_recipe(cells)}{': ' * bool(reason)}{reason}"
            yield from (f"    {node}" for node in nodes)

    def page(self) -> str:
        """The matrix as an HTML page."""
        rows = [
            {
                "title": f"{cell.recipe}::{cell.label}",
                "places": [
                    {"word": of[name].word, "is_fault": of[name].is_fault, "why": "\n".join([of[name].reason, *of[name].nodes])}
                    for name in self.versions
                ],
            }
            for cell, of in self.outcomes.items()
        ]
        titles = [f"{name} {version}".strip() for name, version in self.versions.items()]
        reasons = [*self._reasons()]
        return str(fill("runtimes.html.jinja", __package__, titles=titles, rows=rows, reasons=reasons, style=asset("page.css")))

    def as_json(self) -> dict[str, Any]:
        """The matrix as data that :mod:`json` can write."""

        def data(outcome: Outcome) -> dict[str, Any]:
            fields = {"verdict": outcome.verdict.value, "drift": outcome.drift, "rule": outcome.rule, "reason": outcome.reason}
            return {**fields, "nodes": list(outcome.nodes)}

        cells = [
            {"id": cell.id, "runtimes": {name: data(outcome) for name, outcome in of.items()}}
            for cell, of in self.outcomes.items()
        ]
        return {"schema_version": 1, "runtimes": dict(self.versions), "cells": cells}


def _known(file: Path, package: str, version: str) -> Outcome:
    """What is known of a version without running it."""
    from onnx_ci.onnx_model.signature import read_model  # with onnx
    from onnx_ci.tools.runtimes.known_faults import matches, refusal

    model = read_model(file)
    if not isinstance(model, Finding) and (reason := refusal(model, package, version)):
        return Outcome(verdict=Verdict.REFUSED, rule="load-error", reason=reason)
    if known := matches(file, {package: version}):
        return Outcome(verdict=Verdict.WRONG, rule="runtime-disagreement", nodes=tuple(map(str, known)))
    return Outcome(verdict=Verdict.NOT_JUDGED)


def matrix_of(results: Sequence[CellResult], versions: Mapping[str, str]) -> RuntimeMatrix:
    """The outcomes in each runtime, of which the installed ONNX Runtime is one."""
    return RuntimeMatrix(
        versions=versions, outcomes={result.cell: {name: outcome_of(result, name) for name in versions} for result in results}
    )
