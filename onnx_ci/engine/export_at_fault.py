"""What makes an export right that is wrong: an option of the exporter, leaving out a symbolic of the project, or dynamo."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from onnx_ci.engine.weights import OF_VALUES
from onnx_ci.matrix.plan import CellTask
from onnx_ci.opsets import FIRST_DYNAMO_OPSET, UNOPTIMIZED
from onnx_ci.pipeline.model.places import is_in_project, source_line
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.results.records import Culprit, Finding
from onnx_ci.results.rules import REMEDIES, RULES


def with_export_at_fault(
    findings: Sequence[Finding], model: RecipeModel, exporter: str, is_right: Callable[[RecipeModel], bool]
) -> list[Finding]:
    """The findings; wrong numbers that another export has not, with what makes it right as their remedy.

    Those of frozen lines are not tried: nothing brings back what tracing has lost.
    """
    wrong = [each for each in findings if each.rule in OF_VALUES and not any(one.frozen for one in each.culprits)]
    if not wrong:
        return [*findings]
    options, declared = UNOPTIMIZED.get(exporter, {}), model.recipe.export_options
    if not options.items() <= declared.items():
        unoptimized = replace(model, recipe=replace(model.recipe, export_options={**declared, **options}))
        if is_right(unoptimized):
            remedy = REMEDIES["exporter-option"].format(", ".join(f"{name}={value}" for name, value in options.items()))
            return [replace(each, remedy=remedy) if each in wrong else each for each in findings]
    functions = _with_symbolic(torch.autograd.Function) if exporter == "torchscript" else ()
    for function, code in itertools.islice(functions, 3):  # each costs an export
        with _without_symbolic(function):
            is_cause = is_right(model)
        if is_cause:
            first = min(line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno)
            source = source_line(code.co_filename, first)
            culprit = Culprit(nodes=(), operators=(f"{function.__name__}.symbolic",), module="", source=source)
            remedy = REMEDIES["symbolic"].format(function.__name__)
            return [replace(each, culprits=(culprit,), steps=(), remedy=remedy) if each in wrong else each for each in findings]
    return [*findings]


def with_dynamo(findings: Sequence[Finding], task: CellTask, is_right: Callable[[CellTask], bool]) -> list[Finding]:
    """The findings; dynamo is the remedy for what TorchScript refuses, freezes in a layer or gets wrong, if that is right."""
    of_rules = (RULES[name].remedy for name in ("export-error", "numeric-drift", "shape-mismatch"))
    general = (*of_rules, REMEDIES["in-layer"], REMEDIES["in-node"])
    opset = max(task.cell.opset, FIRST_DYNAMO_OPSET)
    untranslated = REMEDIES["untranslated-torchscript"].format
    unsolved = [each for each in findings if each.remedy.startswith((*general, untranslated(each.operator, task.cell.opset)))]
    if (
        task.cell.exporter != "torchscript"
        or not unsolved
        or not is_right(replace(task, cell=replace(task.cell, exporter="dynamo", opset=opset)))
    ):
        return [*findings]
    return [replace(each, remedy=REMEDIES["dynamo-is-right"].format(opset)) if each in unsolved else each for each in findings]


def _with_symbolic(parent: Any) -> Iterator[tuple[Any, CodeType]]:
    """The project's own functions that tell TorchScript's exporter what to write, each with the code that does."""
    for each in parent.__subclasses__():
        if "symbolic" in vars(each) and is_in_project((code := inspect.unwrap(each.symbolic).__code__).co_filename):
            yield each, code
        yield from _with_symbolic(each)


@contextlib.contextmanager
def _without_symbolic(function: Any) -> Iterator[None]:
    symbolic = vars(function)["symbolic"]
    del function.symbolic
    try:
        yield
    finally:
        function.symbolic = symbolic
