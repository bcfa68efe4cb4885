"""Where a model asks whether it is being exported, and computes something wrong because it is.

:mod:`.frozen_lines` cannot tell that: it gives a line the same answer each time, and a helper such as ``is_exported()`` asks at
one line for all of its callers.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch

from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.pipeline.compare.drift import compare_refined
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.call import PrepareError, with_inputs
from onnx_ci.pipeline.model.export_answers import FAST_PATH, QUESTIONS, answered
from onnx_ci.pipeline.model.places import source_line
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.running import force_eager, run
from onnx_ci.pipeline.model.tensors import Outputs
from onnx_ci.pipeline.reference.reference import proportional_reference
from onnx_ci.pipeline.trace.call_places import CallPlaces
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import SourceLine


@dataclass(frozen=True, kw_only=True)
class ExportQuestion:
    """A place where a model asks whether it is being exported."""

    function: str
    """What it calls: ``torch.onnx.is_in_onnx_export``."""
    module: str
    """The path of the module that asks; empty for the model itself."""
    source: SourceLine | None
    """The line that asks."""
    lines: frozenset[SourceLine]
    """That line, and those from which it is reached."""


class _UnknownError(Exception):
    """The model cannot run so, or there is no time left."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a model computes if its first questions are answered as in an export, and the others as usual."""

    outputs: Outputs
    """None if the model fails."""
    questions: int
    """How often it asks."""
    last: ExportQuestion | None
    """The last question that is answered as in an export."""


@dataclass(frozen=True, kw_only=True)
class QuestionedModel:
    """A model that runs on one input without an exporter, and is told at some of its questions that it is being exported."""

    model: RecipeModel
    example: Probe
    """The input with which it was exported."""
    probe: Probe
    exporter: str
    outputs: Sequence[str]
    max_drift: DriftLimit
    deadline: float
    """When to stop, by :func:`time.thread_time`."""
    _runs: dict[int, _Run] = field(default_factory=dict)
    _wrong: dict[int, set[str]] = field(default_factory=dict)

    def guilty_questions(
        self, wrong: Collection[str], outputs_of_file: Callable[[], Sequence[torch.Tensor]] | None
    ) -> dict[str, ExportQuestion]:
        """For each wrong output, the question whose answer makes the model itself compute that output, if there is one.

        At first, all questions are answered as in an export: the model has to compute what the file does, if that is given.
        Then only some are, to find the first question with which an output becomes wrong. The file does not run if the model
        asks nothing.
        """
        guilty: dict[str, ExportQuestion] = {}
        with contextlib.suppress(_UnknownError):
            in_export, explained = self._run(sys.maxsize), {*wrong}
            if not in_export.questions:
                return {}
            if outputs_of_file is not None:
                reference = proportional_reference(in_export.outputs, self.example.reference) if in_export.outputs else None
                if reference is None:
                    return {}
                like_in_export = dataclasses.replace(self.probe, reference=reference, refinements=())
                explained -= self._wrong_outputs(outputs_of_file(), like_in_export)
            for name in explained & (self._wrong_if_answered(sys.maxsize) - self._wrong_if_answered(0)):
                with contextlib.suppress(_UnknownError):
                    counts = range(1, in_export.questions)
                    fewest = bisect.bisect_left(counts, True, key=functools.partial(self._makes_wrong, name)) + 1
                    if (question := self._run(fewest).last) is not None:
                        guilty[name] = question
        return guilty

    def _makes_wrong(self, name: str, count: int) -> bool:
        """Whether an output is wrong if the first ``count`` questions are answered as in an export."""
        if CLOCK.thread_time() > self.deadline:
            raise _UnknownError
        return name in self._wrong_if_answered(count)

    def _wrong_if_answered(self, count: int) -> set[str]:
        if count not in self._wrong:
            outputs = self._run(count).outputs
            self._wrong[count] = self._wrong_outputs(outputs, self.probe) if outputs else {*self.outputs}
        return self._wrong[count]

    def _wrong_outputs(self, outputs: Sequence[torch.Tensor], probe: Probe) -> set[str]:
        failing = compare_refined(self.outputs, outputs, probe, self.max_drift).failing_outputs
        return {name for name in failing if name is not None}

    def _run(self, count: int) -> _Run:
        """The run in which the first ``count`` questions are answered as in an export."""
        if count not in self._runs:
            call = with_inputs(self.model.fresh(), self.probe.inputs)
            answers = _Answers(count, CallPlaces(call.model))
            outputs: Outputs = ()
            asked = answered(QUESTIONS.get(self.exporter, {}), answers.answer)
            with force_eager(), asked, contextlib.suppress(PrepareError):
                outputs = run(call, seed=self.model.recipe.seed)
            if len(outputs) not in (0, len(self.outputs)):
                raise _UnknownError
            self._runs[count] = _Run(outputs=outputs, questions=answers.questions, last=answers.last)
        return self._runs[count]


class _Answers:
    """Answers the first questions of a run as in an export, and the others as usual."""

    def __init__(self, count: int, places: CallPlaces) -> None:
        self._count, self._places = count, places
        self.questions = 0
        self.last: ExportQuestion | None = None

    def answer(self, name: str, as_usual: Callable[[], bool]) -> bool:
        """Answer a call of the function ``name``, which is ``as_usual`` without the answers."""
        self.questions += 1
        if self.questions > self._count:
            return as_usual()
        if self.questions == self._count:
            place = self._places.now()
            lines = frozenset(source_line(frame.code.co_filename, frame.line) for frame in place.frames)
            self.last = ExportQuestion(function=name, module=place.module, source=place.source, lines=lines)
        return name != FAST_PATH
