"""Findings about wrong values, with the places in the file and in the model's code that they come from."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.matrix.plan import DriftLimit
from onnx_ci.onnx_model.precision import is_converted, lowest_precision
from onnx_ci.onnx_model.signature import Signature, read_model
from onnx_ci.results.records import Culprit, Finding, FrozenKind, Severity
from onnx_ci.stages.compare.runtime_run import feeds_of
from onnx_ci.stages.inputs.probes import Probe
from onnx_ci.stages.locate.culprits import Places, find_culprits, with_recipe
from onnx_ci.stages.locate.export_questions import ExportQuestion, guilty_questions
from onnx_ci.stages.locate.model_trace import TooLargeError, trace_model
from onnx_ci.stages.locate.optimizer_passes import guilty_passes, is_of_optimizer, with_passes
from onnx_ci.stages.locate.single_nodes import NodeRunner
from onnx_ci.stages.model.live_model import OperatorMode, force_eager, run, tensor_leaves
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.stages.run.onnxruntime import OnnxRuntime

_MOST_PROBES = 2
"""On how many inputs faults are located: the first for each of two rules."""

_TRANSLATED = (
    "The model does the same on the example, so nothing was frozen: the exporter translates the operator wrongly. Rewrite the "
    "line with other operators, or report it to the exporter."
)
_WRITTEN = (
    "The line writes into a tensor, which exporters may lose: compute a new one with torch.where, torch.cat or torch.scatter."
)
_ASKED = (
    "The model itself computes this where {}() is true, as in an export, and something else otherwise. Make both ways compute "
    "the same."
)
_SOME_SIZES = " If only some sizes are meant, declare them: dynamic_sizes={'height': onnx_ci.multiple_of(8)}."
_ONE_SIDE = (
    "The file has only the side of the branch that the example takes: use torch.where or torch.cond, or script the branch with "
    "torch.jit.script."
)
_REMEDIES = {
    FrozenKind.CONDITION: _ONE_SIDE,
    FrozenKind.BRANCH: _ONE_SIDE,
    FrozenKind.LOOP: "The file does it as often as the example does: compute on whole tensors instead of in a loop, or script "
    "the loop with torch.jit.script.",
    FrozenKind.TENSORS: "The file has as many of them as the example: compute on the whole tensor instead of on its parts.",
    FrozenKind.NUMBER: "The file has the number of the example: compute it from tensors and from x.shape, without int(), "
    "float(), item() or numpy.",
}


def located(
    findings: Sequence[Finding],
    path: Path,
    signature: Signature,
    prepared: Prepared,
    *,
    exporter: str,
    max_drift: DriftLimit,
    seconds: float,
) -> tuple[list[Finding], str]:
    """The findings, each error about an input with its culprits if they are found; and why some are not, for the log.

    Args:
        findings: what is wrong with the file.
        path: the file, with its external data in the same folder.
        signature: its signature.
        prepared: the recipe that it is an export of.
        exporter: which exporter made it.
        max_drift: the largest drift that passes.
        seconds: how long this thread may compute, so that a busy machine finds no less.
    """
    if not _can_pair(path, prepared):
        return list(findings), ""
    errors = [each for each in findings if each.severity is Severity.ERROR and each.probe is not None]
    first = {each.rule: each.probe for each in reversed(errors)}
    probes = [each for each in prepared.probes if each.name in first.values() and each.follows is None][:_MOST_PROBES]
    places: dict[str | None, Places] = {}
    log = ""
    deadline = time.thread_time() + seconds
    runner = functools.cache(functools.partial(NodeRunner, path))
    on_example = functools.cache(functools.partial(trace_model, prepared, prepared.example))
    for probe in probes:
        try:
            trace = on_example() if probe is prepared.example else trace_model(prepared, probe)
            if trace is not None:
                places[probe.name] = find_culprits(
                    runner(),
                    trace,
                    feeds_of(signature, prepared, probe),
                    on_example=None if probe is prepared.example else on_example(),
                    has_failed=any(each.probe == probe.name and each.output is None for each in errors),
                    seconds=deadline - time.thread_time(),
                )
        except TooLargeError:
            log = "the fault is not located: what the model computes takes too much memory"
        except Exception as error:  # what is known about the cell must not be lost
            log = f"the fault is not located: {type(error).__name__}: {error}"
    questions: dict[tuple[str | None, str | None], ExportQuestion] = {}
    for probe in probes:
        wrong = {each.output for each in errors if each.probe == probe.name and each.output is not None}
        try:
            guilty = guilty_questions(
                prepared,
                probe,
                exporter,
                [value.name for value in signature.outputs],
                wrong,
                functools.partial(_run_file, path, signature, prepared, probe),
                max_drift=max_drift,
                deadline=deadline,
            )
        except Exception as error:
            log = f"what the model asks in an export is not known: {type(error).__name__}: {error}"
        else:
            questions |= {(probe.name, output): question for output, question in guilty.items()}
    of_optimizer = [each for each in errors if is_of_optimizer(each)]
    passes: tuple[str, ...] = ()
    if of_optimizer:
        try:
            passes = guilty_passes(of_optimizer[0], path, signature, prepared, max_drift, deadline)
        except Exception as error:
            log = f"the optimizer's passes are not told apart: {type(error).__name__}: {error}"

    def with_places(finding: Finding) -> Finding:
        if finding.severity is not Severity.ERROR:
            return finding
        if passes and is_of_optimizer(finding):
            return with_passes(finding, passes)
        placed = _with(finding, places.get(finding.probe, Places()), prepared.recipe)
        question = questions.get((finding.probe, finding.output))
        return placed if question is None else _asked(placed, question)

    return [with_places(each) for each in findings], log


def _run_file(path: Path, signature: Signature, prepared: Prepared, probe: Probe) -> list[torch.Tensor]:
    return OnnxRuntime().load(path, "cpu").run(feeds_of(signature, prepared, probe))


def _can_pair(path: Path, prepared: Prepared) -> bool:
    """Whether values of the file can be told to be the model's: both compute the same each time, and in float32 or float64.

    A cast to float16 in the file that the model does not have is a fault like any other.
    """
    model = read_model(path)
    is_precise = prepared.example.reference.eps <= torch.finfo(torch.float32).eps
    if isinstance(model, Finding) or not is_precise or prepared.recipe.nondeterministic or is_converted(model):
        return False
    return lowest_precision(model) is None or not _computes_in_half(prepared)


class _Halves(OperatorMode):
    """Notices operators that compute in float16 or bfloat16."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found = self.found or any(each.dtype in (torch.float16, torch.bfloat16) for each in tensor_leaves(result))
        return result


def _computes_in_half(prepared: Prepared) -> bool:
    with force_eager(), _Halves() as halves:
        run(prepared.fresh())
    return bool(halves.found)


def _with(finding: Finding, places: Places, recipe: Recipe) -> Finding:
    """The finding with its culprits and the nodes around them, and with a remedy that fits the first culprit."""
    culprits = tuple(with_recipe(each, recipe) for each in places.culprits_of(finding.output))
    remedy = finding.remedy
    frozen = next((each.frozen.kind for each in culprits if each.frozen is not None), None)
    if finding.rule in ("baked-value", "baked-shape") and frozen is not None:
        remedy = _REMEDIES[frozen] + (_SOME_SIZES if finding.rule == "baked-shape" else "")
    elif finding.rule in ("baked-value", "numeric-drift") and any(map(_is_written, culprits)):
        remedy = _WRITTEN
    elif finding.rule == "baked-value" and culprits:
        remedy = _TRANSLATED
    return dataclasses.replace(finding, culprits=culprits, steps=places.steps, remedy=remedy)


def _asked(finding: Finding, question: ExportQuestion) -> Finding:
    """The finding, placed where the model asks whether it is being exported, or where it uses the answer."""
    culprits, steps = finding.culprits, finding.steps
    if not culprits or culprits[0].source not in question.lines:
        nodes = culprits[0].nodes if culprits else ()
        culprits = (Culprit(nodes=nodes, operators=(question.function,), module=question.module, source=question.source),)
        steps = tuple(dataclasses.replace(each, source=question.source) if each.is_culprit else each for each in steps)
    return dataclasses.replace(finding, culprits=culprits, steps=steps, remedy=_ASKED.format(question.function))


def _is_written(culprit: Culprit) -> bool:
    """Whether the model changes a tensor there: ``aten.add_``, but not ``aten.__rshift__``."""
    return any(name.endswith("_") and not name.endswith("__") for name in culprit.operators)
