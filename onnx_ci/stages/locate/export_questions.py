"""Where a model asks whether it is being exported, and computes something wrong because it is."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from onnx_ci.matrix.plan import DriftLimit
from onnx_ci.results.records import Severity, SourceLine
from onnx_ci.stages.compare.drift import compare_refined
from onnx_ci.stages.export.places import CallPlaces, is_of_toolchain, source_line
from onnx_ci.stages.inputs.probes import Probe
from onnx_ci.stages.model.live_model import Outputs, PrepareError, force_eager, run, with_inputs
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.stages.reference.reference import proportional_reference

_QUESTIONS: dict[str, dict[str, Callable[[], bool]]] = {
    "torchscript": {
        "torch.onnx.is_in_onnx_export": torch.onnx.is_in_onnx_export,
        "torch.jit.is_tracing": torch.jit.is_tracing,  # type: ignore[attr-defined]
    },
    "dynamo": {
        "torch.onnx.is_in_onnx_export": torch.onnx.is_in_onnx_export,
        "torch.compiler.is_exporting": torch.compiler.is_exporting,
        "torch.compiler.is_compiling": torch.compiler.is_compiling,
    },
}
"""Functions that are true in an export, by exporter and name."""


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


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a model computes if its first questions are answered as in an export, and the others as usual."""

    outputs: Outputs
    asked: int
    """How often it asks."""
    last: ExportQuestion | None
    """The last question that is answered as in an export."""


class _UnknownError(Exception):
    """The model cannot run so, or there is no time left."""


def guilty_questions(
    prepared: Prepared,
    probe: Probe,
    exporter: str,
    names: Sequence[str],
    wrong: Collection[str],
    in_file: Callable[[], Sequence[torch.Tensor]],
    *,
    max_drift: DriftLimit,
    deadline: float,
) -> dict[str, ExportQuestion]:
    """For each wrong output, the question whose answer makes the model itself compute that output, if there is one.

    The model runs without an exporter. At first, all its questions are answered as in an export: it has to compute what the
    file does. Then only some are, to find the first question with which an output becomes wrong.

    Args:
        names: the names of the outputs.
        wrong: those that are wrong in the file.
        in_file: computes the outputs of the file on the inputs of ``probe``.
        deadline: when to stop, by :func:`time.thread_time`.
    """

    def faults(got: Sequence[torch.Tensor], like: Probe) -> set[str]:
        found = compare_refined(names, got, like, max_drift, "the model").findings
        return {each.output for each in found if each.severity is Severity.ERROR and each.output is not None}

    @functools.cache
    def answered(first: int) -> _Run:
        made = _run(prepared, probe, exporter, first)
        if made is None or len(made.outputs) != len(names):
            raise _UnknownError
        return made

    @functools.cache
    def wrong_with(first: int) -> set[str]:
        return faults(answered(first).outputs, probe)

    def is_wrong(name: str, first: int) -> bool:
        if time.thread_time() > deadline:
            raise _UnknownError
        return name in wrong_with(first)

    guilty: dict[str, ExportQuestion] = {}
    with contextlib.suppress(_UnknownError):
        whole = answered(sys.maxsize)
        reference = proportional_reference(whole.outputs, prepared.example.reference) if whole.asked else None
        if reference is None:
            return {}
        unlike = faults(in_file(), dataclasses.replace(probe, reference=reference, refinements=()))
        for name in ({*wrong} - unlike) & (wrong_with(sys.maxsize) - wrong_with(0)):
            with contextlib.suppress(_UnknownError):
                first = bisect.bisect_left(range(1, whole.asked), True, key=functools.partial(is_wrong, name)) + 1
                if (question := answered(first).last) is not None:
                    guilty[name] = question
    return guilty


def _run(prepared: Prepared, probe: Probe, exporter: str, first: int) -> _Run | None:
    """A run whose first questions are answered as in an export; ``None`` if the model raises."""
    call = with_inputs(prepared.fresh(), probe.inputs)
    places = CallPlaces(call.model)
    asked, last = 0, None

    def answer(name: str, as_usual: Callable[[], bool]) -> bool:
        nonlocal asked, last
        caller = sys._getframe(2)
        if is_of_toolchain(caller.f_code.co_filename):  # torch's own code must know where it runs
            return as_usual()
        asked += 1
        if asked > first:
            return as_usual()
        if asked == first:
            module, source = places.now()
            stack = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(caller))
            lines = frozenset(source_line(file, line) for file, line in stack if not is_of_toolchain(file))
            last = ExportQuestion(function=name, module=module, source=source, lines=lines)
        return True

    with contextlib.ExitStack() as answers, force_eager():
        for name, question in _QUESTIONS.get(exporter, {}).items():
            if isinstance(question, FunctionType):
                answers.enter_context(_answered(question, functools.partial(answer, name)))
        try:
            outputs = run(call, seed=prepared.recipe.seed)
        except PrepareError:
            return None
    return _Run(outputs=outputs, asked=asked, last=last)


@contextlib.contextmanager
def _answered(question: FunctionType, answer: Callable[[Callable[[], bool]], bool]) -> Iterator[None]:
    """Within the block, a call of ``question`` returns what ``answer`` does, also where it was imported under another name.

    Args:
        answer: given the function as it usually is.
    """
    as_usual = FunctionType(question.__code__, question.__globals__, question.__name__, question.__defaults__)
    before = question.__code__, question.__defaults__
    question.__code__, question.__defaults__ = _ask.__code__, (functools.partial(answer, as_usual),)
    try:
        yield
    finally:
        question.__code__, question.__defaults__ = before


def _ask(answer: Any) -> Any:
    return answer()
