"""At which line an export goes another way than the model does by itself, or leaves another number, which the file then has.

Code can ask whether a size is an ``int``, look it up in a dict, or ask what its export function has set. Nothing can imitate
all that, so the model is exported once more, and its lines, with the numbers that they leave, are compared with a usual run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from onnx_ci.engine.weights import OF_VALUES
from onnx_ci.pipeline.inputs.probes import EXAMPLE
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.trace.lines import RETURN, LineRecorder, Step, lines_of
from onnx_ci.results.records import Finding, Severity, SourceLine
from onnx_ci.results.rules import REMEDIES


def with_way_at_fault(findings: Sequence[Finding], model: RecipeModel, export: Callable[[], object]) -> list[Finding]:
    """The findings; wrong numbers of a line that an export does not run are at the line that decides so."""
    lines = [_suspect(each) for each in findings]
    if not any(lines):
        return [*findings]
    usual, again = (lines_of(model.fresh(), seed=model.recipe.seed, numbers_only=True) for _ in range(2))
    with LineRecorder(numbers_only=True) as exporting:
        export()
    in_export: set[object] = {step.place for step in exporting.steps}
    if not usual or usual[-1].place not in in_export:  # an attempt of the exporter has failed, and another runs no Python
        return [*findings]
    others = _other_numbers(again, exporting.steps)

    def with_way(finding: Finding, line: SourceLine) -> Finding:
        places = [each.source and (each.source.file, each.source.line) for each in usual]
        if (line.file, line.line) not in places:
            return finding
        end = places.index((line.file, line.line))
        changed = _where_left(usual, end, in_export) or _number_at_fault(usual, end, line.text, others)
        if changed is None:
            return finding
        source, remedy = changed
        culprit = replace(finding.culprits[0], nodes=(), operators=(), source=source)
        return replace(finding, culprits=(culprit,), steps=(), remedy=remedy)

    return [each if line is None else with_way(each, line) for each, line in zip(findings, lines, strict=True)]


def _suspect(finding: Finding) -> SourceLine | None:
    """The line at which the file is wrong on the example itself, of which nothing can be frozen, unless it is explained."""
    first = next(iter(finding.culprits), None)
    is_error = finding.severity is Severity.ERROR and finding.rule in OF_VALUES and finding.probe == EXAMPLE
    if not is_error or first is None or first.frozen is not None or "asks" in finding.details:
        return None
    return first.source


def _where_left(steps: Sequence[Step], end: int, in_export: set[object]) -> tuple[SourceLine, str] | None:
    """The last line that an export runs, too, before one that it does not: of a step and of what that calls; with a remedy."""
    called = range(end - steps[end].calls, end + 1)
    first = next((each for each in called if steps[each].place not in in_export), None)
    before = (each.source for each in reversed(steps[:first]) if each.place in in_export)
    last, missed = next(before, None), None if first is None else steps[first].source
    return (last, REMEDIES["another-way"].format(missed.line)) if last is not None and missed is not None else None


def _other_numbers(steps: Sequence[Step], in_export: Sequence[Step]) -> dict[tuple[object, str], tuple[str, str]]:
    """By place and name, a number that lines leave in a usual run, but never in an export, and one that they leave there."""
    exported = {(step.place, name, value) for step in in_export for name, value in step.left.items()}
    others = {(step.place, name): value for step in in_export for name, value in step.left.items()}
    usual = ((step.place, name, value) for step in steps for name, value in step.left.items())
    return {
        (place, name): (others[place, name], value)
        for place, name, value in usual
        if (place, name, value) not in exported and (place, name) in others
    }


def _number_at_fault(
    steps: Sequence[Step], end: int, text: str, others: Mapping[tuple[object, str], tuple[str, str]]
) -> tuple[SourceLine, str] | None:
    """The line from which on an export gets other numbers, of those that lead to a step with a ``text``; with a remedy."""
    found, called = None, end - steps[end].calls
    for number in reversed(range(end)):
        step = steps[number]
        for name, value in step.left.items():
            exported, usual = others.get((step.place, name), ("", ""))
            is_used = number >= called if name == RETURN else re.search(rf"(?<![\w.]){re.escape(name)}\b", text)
            if value == usual and is_used and step.source is not None:
                numbers = (each if each in ("True", "False") else f"{float(each):.6g}" for each in (exported, usual))
                found = step.source, REMEDIES["another-number"].format("what it returns" if name == RETURN else name, *numbers)
                text, called = f"{text} {step.source.text}", number - step.calls
                break
    return found
