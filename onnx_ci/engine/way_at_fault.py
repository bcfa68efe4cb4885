"""At which line an export goes another way than the model does by itself, and so leaves out what the file has wrong.

Code can ask whether a size is an ``int``, of which class a tensor is, or what its export function has set. Nothing can imitate
all that, so the model is exported once more, and the lines of its code that run are compared with those of a usual run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx_ci.engine.weights import OF_VALUES
from onnx_ci.pipeline.inputs.probes import EXAMPLE
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.trace.lines import LineRecorder, Step, lines_of
from onnx_ci.results.records import Finding, Severity, SourceLine

_ANOTHER_WAY = (
    "In an export, the code goes another way here and does not run line {}: a size may be no int there, and tensors are of "
    "another class. Make both ways compute the same."
)


def with_way_at_fault(findings: Sequence[Finding], model: RecipeModel, export: Callable[[], object]) -> list[Finding]:
    """The findings; wrong numbers of a line that an export does not run are at the line that decides so."""
    suspects = [each for each in findings if _is_suspect(each)]
    if not suspects:
        return [*findings]
    usual = lines_of(model.fresh(), seed=model.recipe.seed)
    with LineRecorder(with_values=False) as exporting:
        export()
    in_export: set[object] = {step.place for step in exporting.steps}
    if not usual or usual[-1].place not in in_export:  # an attempt of the exporter has failed, and another runs no Python
        return [*findings]

    def with_way(finding: Finding) -> Finding:
        if (lines := _where_left(usual, finding.culprits[0].source, in_export)) is None:
            return finding
        culprit = replace(finding.culprits[0], nodes=(), operators=(), source=lines[0])
        return replace(finding, culprits=(culprit,), steps=(), remedy=_ANOTHER_WAY.format(lines[1].line))

    return [with_way(each) if each in suspects else each for each in findings]


def _is_suspect(finding: Finding) -> bool:
    """Whether the file is wrong on the example itself, of which nothing can be frozen, at a line that is known."""
    first = next(iter(finding.culprits), None)
    is_error = finding.severity is Severity.ERROR and finding.rule in OF_VALUES and finding.probe == EXAMPLE
    return is_error and first is not None and first.source is not None and first.frozen is None


def _where_left(steps: Sequence[Step], of: SourceLine | None, in_export: set[object]) -> tuple[SourceLine, SourceLine] | None:
    """The last line that an export runs, too, and the next one, which it does not: of a line and of what that calls."""
    for number, step in enumerate(steps):
        if (source := step.source) and of and (source.file, source.line) == (of.file, of.line):
            called = range(number - step.calls, number + 1)
            first = next((each for each in called if steps[each].place not in in_export), None)
            before = (each.source for each in reversed(steps[:first]) if each.place in in_export)
            last, missed = next(before, None), None if first is None else steps[first].source
            return (last, missed) if last is not None and missed is not None else None
    return None
