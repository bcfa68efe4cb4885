"""What code can ask to learn that it is being exported, and other answers to that."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch

from onnx_ci.pipeline.model.places import is_of_toolchain

FAST_PATH = "torch.backends.mha.get_fastpath_enabled"
"""What torch's own encoder layers ask. The exporters have no fast path."""
QUESTIONS: dict[str, dict[str, Callable[[], bool]]] = {
    "torchscript": {
        "torch.onnx.is_in_onnx_export": torch.onnx.is_in_onnx_export,
        "torch.jit.is_tracing": torch.jit.is_tracing,  # type: ignore[attr-defined]
        FAST_PATH: torch.backends.mha.get_fastpath_enabled,
    },
    "dynamo": {
        "torch.onnx.is_in_onnx_export": torch.onnx.is_in_onnx_export,
        "torch.compiler.is_exporting": torch.compiler.is_exporting,
        "torch.compiler.is_compiling": torch.compiler.is_compiling,
        FAST_PATH: torch.backends.mha.get_fastpath_enabled,
    },
}
"""Functions that return something else in an export, by exporter and name: all but :data:`FAST_PATH` return true."""
Answer = Callable[[str, Callable[[], bool]], bool]
"""Answers a call of the function of a name, given what it usually does."""


@contextlib.contextmanager
def answered(questions: Mapping[str, Callable[[], bool]], answer: Answer) -> Iterator[None]:
    """Within the block, questions are answered, also under other names. Torch's own code gets its usual answers to most."""
    with contextlib.ExitStack() as stack:
        for name, question in questions.items():
            if isinstance(question, FunctionType):
                stack.enter_context(_answered(question, functools.partial(_unless_of_torch, answer, name)))
        yield


def _unless_of_torch(answer: Answer, name: str, as_usual: Callable[[], bool]) -> bool:
    is_of_torch = is_of_toolchain(sys._getframe(2).f_code.co_filename)
    return as_usual() if is_of_torch and name != FAST_PATH else answer(name, as_usual)


@contextlib.contextmanager
def _answered(question: FunctionType, answer: Callable[[Callable[[], bool]], bool]) -> Iterator[None]:
    as_usual = FunctionType(question.__code__, question.__globals__, question.__name__, question.__defaults__)
    before = question.__code__, question.__defaults__
    question.__code__, question.__defaults__ = _ask.__code__, (functools.partial(answer, as_usual),)
    try:
        yield
    finally:
        question.__code__, question.__defaults__ = before


def _ask(answer: Any) -> Any:
    return answer()
