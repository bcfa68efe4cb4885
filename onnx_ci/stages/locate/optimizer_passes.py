"""Which passes of ONNX Runtime's optimizer make it compute wrong values from a right file."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from pathlib import Path

from onnx_ci.matrix.plan import DriftLimit
from onnx_ci.onnx_model.signature import Signature
from onnx_ci.results.records import Finding
from onnx_ci.stages.compare.runtime_run import run_file
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.stages.run.onnxruntime import OnnxRuntime, passes_that_change


def is_of_optimizer(finding: Finding) -> bool:
    """Whether ONNX Runtime is right on the same file without its optimizer."""
    return (
        finding.rule == "runtime-disagreement"
        and finding.details.get("runtime") == OnnxRuntime().name
        and OnnxRuntime(optimize=False).name in finding.details.get("right", ())
    )


def guilty_passes(
    finding: Finding, path: Path, signature: Signature, prepared: Prepared, max_drift: DriftLimit, deadline: float
) -> tuple[str, ...]:
    """The fewest passes without which ONNX Runtime is right on the input of a finding; empty if it is wrong without any.

    Args:
        finding: a finding for which :func:`is_of_optimizer` holds.
        path: the file.
        signature: its signature.
        prepared: the recipe that it is an export of.
        max_drift: the largest drift that passes.
        deadline: when to stop looking for fewer, by :func:`time.thread_time`.
    """
    probes = tuple(each for each in prepared.probes if each.name == finding.probe)
    few = dataclasses.replace(prepared, probes=probes)
    is_right = functools.partial(_is_right_without, path=path, signature=signature, prepared=few, max_drift=max_drift)
    guilty = passes_that_change(path)
    if not guilty or not is_right(guilty):
        return ()
    for each in guilty:
        others = [other for other in guilty if other != each]
        if others and time.thread_time() < deadline and is_right(others):
            guilty = others
    return tuple(guilty)


def with_passes(finding: Finding, passes: tuple[str, ...]) -> Finding:
    """The finding with the passes at fault, and how to do without them."""
    names = ", ".join(map(repr, passes))
    remedy = f"Report it to ONNX Runtime, and switch it off meanwhile: InferenceSession(..., disabled_optimizers=[{names}])."
    return dataclasses.replace(finding, optimizer_passes=passes, remedy=remedy)


def _is_right_without(
    passes: Sequence[str], *, path: Path, signature: Signature, prepared: Prepared, max_drift: DriftLimit
) -> bool:
    runtime = OnnxRuntime(disabled=passes)
    run = run_file(runtime, path, signature, prepared, device="cpu", max_drift=max_drift, timings={})
    return bool(run.outputs) and not run.faults
