"""With which weights a cell is exported, and what an export with the model's own weights and one with probe weights show.

Trained weights can hide modules, whose faults only probe weights show; a file that is kept has the model's own weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from onnx_ci.engine.evidence import Trial
from onnx_ci.engine.shared import Shared
from onnx_ci.matrix.plan import CellTask
from onnx_ci.pipeline.model.call import PrepareError, SkippedByRecipeError
from onnx_ci.pipeline.prepare.prepare import Prepared, Weights
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.results.verdict import broken_rules
from onnx_ci.text import listed

OF_VALUES = frozenset({"numeric-drift", "baked-value", "nonfinite-mismatch"})
_NUMBERS = OF_VALUES | {"runtime-disagreement"}
"""Rules about values, which weights may hide or show."""


def wrong_numbers(findings: Iterable[Finding]) -> list[str]:
    """The rules about values that an export breaks."""
    return sorted(broken_rules(findings) & _NUMBERS)


def first_weights(task: CellTask) -> Weights:
    """With which weights a model is exported first; a baseline is recorded with these."""
    if task.is_trained:
        return Weights.OWN
    return Weights.PROBE_UNLESS_LOADED if task.is_trained is None else Weights.PROBE


def recipes_to_export(
    task: CellTask, prepared: Prepared, shared: Shared, timings: dict[str, float], *, keeps_file: bool
) -> tuple[list[Prepared], list[Finding]]:
    """What a cell exports: the model with its own weights, with probe weights, or both. And why one cannot be exported."""
    if prepared.model.has_probe_weights and keeps_file:
        try:
            with_own_weights = shared.prepared(task, Weights.OWN, timings)
        except PrepareError as error:
            return [prepared], [error.finding]
        except SkippedByRecipeError:  # it did not skip the first time, and what is known since counts
            return [prepared], []
        return [with_own_weights, prepared], []
    is_trained = bool(prepared.model.pristine.loaded_with) if task.is_trained is None else task.is_trained
    if is_trained and prepared.hides_modules:
        with contextlib.suppress(PrepareError, SkippedByRecipeError):
            probed = shared.prepared(task, Weights.PROBE, timings)
            if probed.model.has_probe_weights:
                return [prepared, probed], []
    return [prepared], []


def disagreements(own: Trial, probed: Trial) -> Iterator[Finding]:
    """A note if the values of an export are wrong with the model's own weights or with probe weights only."""
    wrong = wrong_numbers(own.findings) or wrong_numbers(probed.findings)
    if not wrong or (wrong_numbers(own.findings) and wrong_numbers(probed.findings)):
        return

    def described(trial: Trial) -> str:
        worst = max((output.drift for output in trial.outputs), default=0.0)
        return f"{f'wrong ({listed(wrong)})' if wrong_numbers(trial.findings) else 'right'}, with a drift of {worst:.3g}"

    ignores_model = own.written_weights is not None and own.written_weights == probed.written_weights
    cause = "hidden-by-weights" if wrong_numbers(probed.findings) else "shown-by-weights"
    yield finding(
        "numeric-drift",
        f"the file with the model's own weights is {described(own)}; the file with probe weights is {described(probed)}",
        remedy=REMEDIES["same-weights" if ignores_model else cause],
        severity=Severity.NOTE,
    )
