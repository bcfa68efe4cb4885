"""Which passes of ONNX Runtime's optimizer make it compute wrong values from a right file.

Only ONNX Runtime's log names the passes that change a file. They are switched off one after another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime, passes_that_change
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import Finding


def is_of_optimizer(finding: Finding) -> bool:
    """Whether ONNX Runtime is right on the same file without its optimizer."""
    return (
        finding.rule == "runtime-disagreement"
        and finding.details.get("runtime") == OnnxRuntime().name
        and OnnxRuntime(optimize=False).name in finding.details.get("right", ())
    )


def guilty_passes(path: Path, is_right_without: Callable[[Sequence[str]], bool], deadline: float) -> tuple[str, ...]:
    """The fewest passes without which ONNX Runtime is right; empty if it is wrong without any of them.

    Args:
        path: the file.
        is_right_without: whether ONNX Runtime is right if it skips these passes.
        deadline: when to stop looking for fewer, by :func:`time.thread_time`.
    """
    guilty = passes_that_change(path)
    if not guilty or not is_right_without(guilty):
        return ()
    for name in guilty:
        fewer = [other for other in guilty if other != name]
        if fewer and CLOCK.thread_time() < deadline and is_right_without(fewer):
            guilty = fewer
    return tuple(guilty)


def with_passes(finding: Finding, passes: tuple[str, ...]) -> Finding:
    """The finding with the passes at fault, and how to do without them."""
    names = ", ".join(map(repr, passes))
    remedy = f"Report it to ONNX Runtime, and switch it off meanwhile: InferenceSession(..., disabled_optimizers=[{names}])."
    return dataclasses.replace(finding, optimizer_passes=passes, remedy=remedy)
