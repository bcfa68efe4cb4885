"""Where a model asks whether it is being exported, and computes something else if it is."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from onnx_ci.results.records import SourceLine
from onnx_ci.stages.export.places import CallPlaces, is_of_toolchain
from onnx_ci.stages.prepare.live_model import Outputs, PrepareError, force_eager, run, with_inputs
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.stages.prepare.probes import Probe

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
    """The first place where a model asks whether it is being exported."""

    function: str
    """What it calls: ``torch.onnx.is_in_onnx_export``."""
    module: str
    """The path of the module that asks; empty for the model itself."""
    source: SourceLine | None
    """The line that asks."""


def run_as_in_export(prepared: Prepared, probe: Probe, exporter: str) -> tuple[ExportQuestion, Outputs] | None:
    """What the model computes on the inputs of ``probe`` if it is told that it is being exported, without an exporter.

    Returns:
        Where it asks, and its outputs; ``None`` if it does not ask, or cannot run so.
    """
    call = with_inputs(prepared.fresh(), probe.inputs)
    places = CallPlaces(call.model)
    asked: list[ExportQuestion] = []

    def answer(name: str, as_usual: Callable[[], bool]) -> bool:
        if is_of_toolchain(sys._getframe(2).f_code.co_filename):  # torch's own code must know where it runs
            return as_usual()
        module, source = places.now()
        asked.append(ExportQuestion(function=name, module=module, source=source))
        return True

    with contextlib.ExitStack() as answers, force_eager():
        for name, question in _QUESTIONS[exporter].items():
            if isinstance(question, FunctionType):
                answers.enter_context(_answered(question, functools.partial(answer, name)))
        try:
            outputs = run(call, seed=prepared.recipe.seed)
        except PrepareError:
            return None
    return (asked[0], outputs) if asked else None


@contextlib.contextmanager
def _answered(question: FunctionType, answer: Callable[[Callable[[], bool]], bool]) -> Iterator[None]:
    """Within the block, a function returns what ``answer`` does, whoever has imported it, by whatever name.

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
