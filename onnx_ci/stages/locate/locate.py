"""Adds to findings about wrong values the places in the file and in the model's code that the values come from."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.matrix.plan import DriftLimit
from onnx_ci.onnx_model.precision import is_converted, lowest_precision
from onnx_ci.onnx_model.signature import Signature, read_model
from onnx_ci.results.records import Culprit, Finding, FrozenKind, Severity
from onnx_ci.stages.compare.runtime_run import feeds_of, run_file
from onnx_ci.stages.inputs.probes import Probe
from onnx_ci.stages.locate.culprits import Places, find_culprits, with_recipe
from onnx_ci.stages.locate.export_questions import ExportQuestion, QuestionedModel
from onnx_ci.stages.locate.model_trace import ModelTrace, TooLargeError, trace_model
from onnx_ci.stages.locate.optimizer_passes import guilty_passes, is_of_optimizer, with_passes
from onnx_ci.stages.locate.single_nodes import NodeRunner
from onnx_ci.stages.model.live_model import OperatorMode, force_eager, run, tensor_leaves
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.stages.run.onnxruntime import OnnxRuntime

_MOST_PROBES = 2
"""On how many inputs faults are located: the first for each of two faults."""

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
    search = _Search(
        path=path,
        signature=signature,
        prepared=prepared,
        errors=[each for each in findings if each.severity is Severity.ERROR and each.probe is not None],
        exporter=exporter,
        max_drift=max_drift,
        deadline=time.thread_time() + seconds,
    )
    places, questions, passes = search.places(), search.questions(), search.passes()

    def with_places(finding: Finding) -> Finding:
        if finding.severity is not Severity.ERROR:
            return finding
        if passes and is_of_optimizer(finding):
            return with_passes(finding, passes)
        question = questions.get((finding.probe, finding.output))
        with_culprits = _with_culprits(finding, places.get(finding.probe, Places()), prepared.recipe)
        return with_culprits if question is None else _with_question(with_culprits, question)

    return [with_places(each) for each in findings], "; ".join(search.problems)


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The search for the faults of a file. What goes wrong in it is a problem for the log: the findings must not be lost."""

    path: Path
    signature: Signature
    prepared: Prepared
    errors: Sequence[Finding]
    exporter: str
    max_drift: DriftLimit
    deadline: float
    problems: list[str] = field(default_factory=list)

    def places(self) -> dict[str | None, Places]:
        """Where the file goes wrong on each input that is searched, by its name."""
        places: dict[str | None, Places] = {}
        for probe in self._probes:
            with self._noting("the fault is not located"):
                is_example = probe is self.prepared.example
                trace = self._trace_of_example if is_example else trace_model(self.prepared, probe)
                if trace is not None:
                    places[probe.name] = find_culprits(
                        self._runner,
                        trace,
                        feeds_of(self.signature, self.prepared, probe),
                        on_example=None if is_example else self._trace_of_example,
                        has_failed=any(each.probe == probe.name and each.output is None for each in self.errors),
                        deadline=self.deadline,
                    )
        return places

    def questions(self) -> dict[tuple[str | None, str | None], ExportQuestion]:
        """The question whose answer makes an output wrong, by the names of the input and the output."""
        questions: dict[tuple[str | None, str | None], ExportQuestion] = {}
        for probe in self._probes:
            with self._noting("what the model asks in an export is not known"):
                model = QuestionedModel(
                    self.prepared,
                    probe,
                    exporter=self.exporter,
                    outputs=[value.name for value in self.signature.outputs],
                    max_drift=self.max_drift,
                    deadline=self.deadline,
                )
                wrong = {each.output for each in self.errors if each.probe == probe.name and each.output is not None}
                guilty = model.guilty_questions(wrong, functools.partial(self._outputs, probe))
                questions |= {(probe.name, output): question for output, question in guilty.items()}
        return questions

    def passes(self) -> tuple[str, ...]:
        """The passes of ONNX Runtime's optimizer that are at fault."""
        finding = next(filter(is_of_optimizer, self.errors), None)
        if finding is not None:
            with self._noting("the optimizer's passes are not told apart"):
                return guilty_passes(self.path, functools.partial(self._is_right_without, finding.probe), self.deadline)
        return ()

    @contextlib.contextmanager
    def _noting(self, problem: str) -> Iterator[None]:
        try:
            yield
        except TooLargeError as error:
            self.problems.append(f"{problem}: {error}")
        except Exception as error:
            self.problems.append(f"{problem}: {type(error).__name__}: {error}")

    @functools.cached_property
    def _probes(self) -> list[Probe]:
        first_of_fault = {(each.rule, each.output): each.probe for each in reversed(self.errors)}
        names = {*first_of_fault.values()}
        return [each for each in self.prepared.probes if each.name in names and each.follows is None][:_MOST_PROBES]

    @functools.cached_property
    def _runner(self) -> NodeRunner:
        return NodeRunner(self.path)

    @functools.cached_property
    def _trace_of_example(self) -> ModelTrace | None:
        return trace_model(self.prepared, self.prepared.example)

    def _outputs(self, probe: Probe) -> list[torch.Tensor]:
        return OnnxRuntime().load(self.path, "cpu").run(feeds_of(self.signature, self.prepared, probe))

    def _is_right_without(self, probe: str | None, passes: Sequence[str]) -> bool:
        """Whether ONNX Runtime is right on an input if it skips passes of its optimizer."""
        probes = tuple(each for each in self.prepared.probes if each.name == probe)
        run = run_file(
            OnnxRuntime(disabled=passes),
            self.path,
            self.signature,
            dataclasses.replace(self.prepared, probes=probes),
            device="cpu",
            max_drift=self.max_drift,
            timings={},
        )
        return bool(run.outputs) and not run.faults


def _can_pair(path: Path, prepared: Prepared) -> bool:
    """Whether values of the file can be told to be the model's: both compute the same each time, and in float32 or float64.

    A cast to float16 in the file that the model does not have is a fault like any other.
    """
    model = read_model(path)
    is_precise = prepared.example.reference.eps <= torch.finfo(torch.float32).eps
    if isinstance(model, Finding) or not is_precise or prepared.recipe.nondeterministic or is_converted(model):
        return False
    return lowest_precision(model) is None or not _computes_in_half(prepared)


class _HalfDetector(OperatorMode):
    """Notices operators that compute in float16 or bfloat16."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_half = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.has_half = self.has_half or any(each.dtype in (torch.float16, torch.bfloat16) for each in tensor_leaves(result))
        return result


def _computes_in_half(prepared: Prepared) -> bool:
    with force_eager(), _HalfDetector() as detector:
        run(prepared.fresh())
    return bool(detector.has_half)


def _with_culprits(finding: Finding, places: Places, recipe: Recipe) -> Finding:
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


def _with_question(finding: Finding, question: ExportQuestion) -> Finding:
    """The finding at the line where the model asks whether it is being exported, or at that where it uses the answer."""
    culprits, steps = finding.culprits, finding.steps
    if not culprits or culprits[0].source not in question.lines:
        nodes = culprits[0].nodes if culprits else ()
        culprits = (Culprit(nodes=nodes, operators=(question.function,), module=question.module, source=question.source),)
        steps = tuple(dataclasses.replace(each, source=question.source) if each.is_culprit else each for each in steps)
    return dataclasses.replace(finding, culprits=culprits, steps=steps, remedy=_ASKED.format(question.function))


def _is_written(culprit: Culprit) -> bool:
    """Whether the model changes a tensor there: ``aten.add_``, but not ``aten.__rshift__``."""
    return any(name.endswith("_") and not name.endswith("__") for name in culprit.operators)
