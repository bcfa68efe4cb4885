"""The part of a model that fails by itself, where no node of the file shows where a fault lies.

That is so for a file that is not valid or does not load, and for a fault smaller than the rounding by which values are paired.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from onnx_ci.opsets import OF_TORCH
from onnx_ci.pipeline.compare.attribution import is_of_other_runtime
from onnx_ci.pipeline.inputs.probes import Probes
from onnx_ci.pipeline.locate.culprits import with_recipe
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.reduce.script import ExportCall
from onnx_ci.pipeline.reduce.search import called_programs, failing_part, parts_anywhere, shrunk, with_fewer_calls
from onnx_ci.pipeline.reduce.trial import FAILURES, Failure, fails_like
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import Cell, Culprit, Finding, Severity

_MOST_CALLS = 4
"""A part of more calls says little about where the fault is."""


def located_by_parts(
    findings: Sequence[Finding], model: RecipeModel, probes: Probes, cell: Cell, deadline: float
) -> tuple[list[Finding], str]:
    """The findings, the first error without a place with the functions of torch that fail by themselves; and the log."""
    # One output that is wrong on two inputs is wrong for one reason, as far as is known.
    located = {_kind(each) for each in findings if each.culprits and each.rule in FAILURES}
    first = next((each for each in findings if _has_no_place(each) and _kind(each) not in located), None)
    if first is None or cell.exporter not in OF_TORCH:  # a part is exported with torch alone
        return list(findings), ""
    try:
        with scratch_folder() as scratch:
            fails = fails_like(first, ExportCall(exporter=cell.exporter, opset=cell.opset), scratch / "part.onnx")
            parts = itertools.chain.from_iterable(map(parts_anywhere, called_programs(model, probes, first)))
            part = failing_part(parts, fails, deadline)
            part = part and shrunk(part, with_fewer_calls, fails, deadline)
    except Exception as error:  # the findings must not be lost
        return list(findings), f"no part of the model was tried alone: {type(error).__name__}: {error}"
    if part is None or len(part.calls) > _MOST_CALLS:
        return list(findings), ""
    functions = (
        Culprit(nodes=(), operators=(call.function.removesuffix(".__get__"),), module=call.module, source=call.source)
        for call in part.calls
    )
    culprits = tuple(with_recipe(each, model.recipe) for each in functions)
    # What is wrong later in the same output follows from it.
    return [
        dataclasses.replace(each, culprits=culprits)
        if _has_no_place(each) and (None in (first.output, each.output) or each.output == first.output)
        else each
        for each in findings
    ], ""


def _kind(finding: Finding) -> tuple[Failure, str | None]:
    return FAILURES[finding.rule], finding.output


def _has_no_place(finding: Finding) -> bool:
    is_of_tools = finding.severity is Severity.ERROR and finding.rule in FAILURES and not is_of_other_runtime(finding)
    return is_of_tools and finding.source is None and not finding.culprits
