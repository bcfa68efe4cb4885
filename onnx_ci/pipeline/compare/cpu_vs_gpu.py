"""For cells on a GPU: the example's outputs from PyTorch and ONNX Runtime, each on the CPU and on the GPU.

All four are compared with float64 on the CPU. If one deviates, it is wrong itself; if both of ONNX Runtime's deviate, the
file is wrong; if both on the GPU deviate, the GPU computes differently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.onnx_model.signature import Signature
from onnx_ci.pipeline.compare.drift import compare
from onnx_ci.pipeline.compare.runtime_run import RuntimeRun, feeds_of
from onnx_ci.pipeline.inputs.probes import Probes
from onnx_ci.pipeline.model.devices import TF32_EPS
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.reference.reference import unit_in_last_place
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.results.records import CpuVsGpu, Finding, OutputDrift, Severity
from onnx_ci.results.rules import REMEDIES, finding


def compute_cpu_vs_gpu(
    run: RuntimeRun | None,
    path: Path,
    signature: Signature,
    model: RecipeModel,
    probes: Probes,
    *,
    device: str,
    max_drift: DriftLimit,
) -> tuple[CpuVsGpu, ...]:
    """The errors of the four sides for each output of the example. ``run`` is ONNX Runtime's on the GPU, if it is requested."""
    if model.recipe.nondeterministic:
        return ()
    names = [value.name for value in signature.outputs]
    example = probes.example

    def errors(outputs: Sequence[torch.Tensor] | None) -> Mapping[str, OutputDrift]:
        if outputs is None or len(outputs) != len(names):
            return {}
        return {each.name: each for each in compare(names, outputs, example, max_drift).outputs}

    try:
        on_cpu = OnnxRuntime().load(path, "cpu").run(feeds_of(signature, model.weights, example))
    except Exception:  # ONNX Runtime's own classes; the CPU may lack a kernel that the GPU has
        on_cpu = None
    of_example = [each for each in run.outputs if each.probe == example.name] if run else []
    by_side = {
        "PyTorch on cpu": errors(probes.cpu_outputs),
        f"PyTorch on {device}": errors(example.reference.own),
        "ONNX Runtime on cpu": errors(on_cpu),
        f"ONNX Runtime on {device}": {each.name: each for each in of_example},
    }
    compared = []
    for name, output in zip(names, example.reference.own, strict=True):
        drifts = {side: of_side[name] for side, of_side in by_side.items() if name in of_side}
        sizes = {side: drift.error for side, drift in drifts.items() if drift.index is not None}
        if sizes:
            limit = next(drift.limit for drift in drifts.values() if drift.index is not None)
            unit = unit_in_last_place(output)
            if model.recipe.tf32 and output.is_floating_point():
                unit *= max(1.0, TF32_EPS / torch.finfo(output.dtype).eps)
            compared.append(CpuVsGpu(name=name, errors=sizes, apart=deviating_sides(sizes, limit, unit)))
    return tuple(compared)


def deviating_sides(errors: Mapping[str, float], limit: float, unit: float) -> tuple[str, ...]:
    """The sides above the first gap between errors that is larger than rounding explains.

    Args:
        errors: the error of each side.
        limit: the largest ratio of an error to the next smaller one; 0 if all must be equal.
        unit: smaller errors count as this one; ignored if all must be equal.
    """
    order = sorted(errors, key=lambda side: errors[side])
    for place in range(1, len(order)):
        nearer, error = errors[order[place - 1]], errors[order[place]]
        if error > (limit * max(nearer, unit) if limit else nearer):
            return tuple(side for side in errors if side in order[place:])
    return ()


_TF32_SHARE = 32 * TF32_EPS
"""The largest error, relative to the largest value, that is attributed to TensorFloat-32 in several layers."""


def explain_drift_on_gpu(
    sides: Sequence[CpuVsGpu], findings: Sequence[Finding], run: RuntimeRun | None, device: str, *, tf32: bool
) -> list[Finding]:
    """The findings of a cell on a GPU, with the probable causes of drift.

    A note is added if only PyTorch on the GPU deviates: its noise, the unit of the comparison, is then too large.
    """
    by_output = {each.name: each for each in sides}
    drifts = {(each.name, each.probe): each for each in (run.outputs if run else ())}
    explained = []
    for fault in findings:
        if fault.drift is not None and fault.output is not None:
            compared, drift = by_output.get(fault.output), drifts.get((fault.output, str(fault.probe)))
            message, remedy, details = fault.message, fault.remedy, dict(fault.details)
            if not tf32 and _may_be_tf32(drift, compared):
                message, remedy, details["causes"] = f"{message}; TF32 causes errors of this size", REMEDIES["tf32"], ["TF32"]
            if compared is not None and compared.apart:
                message, details["apart"] = f"{message}; {compared.verdict}", list(compared.apart)
            fault = dataclasses.replace(fault, message=message, remedy=remedy, details=details)
        explained.append(fault)
    for output in sides:
        if output.apart == (f"PyTorch on {device}",):
            message = f"{output.verdict} on output {output.name!r}, with a much larger error against float64"
            explained.append(finding("vacuous", message, remedy=REMEDIES["tf32-in-model"], severity=Severity.NOTE))
    return explained


def _may_be_tf32(drift: OutputDrift | None, compared: CpuVsGpu | None) -> bool:
    """Whether TensorFloat-32 explains a drift: ONNX Runtime on the CPU does not deviate."""
    if drift is None or drift.dtype != "float32":
        return False
    return drift.error <= _TF32_SHARE * drift.max_abs and (compared is None or "ONNX Runtime on cpu" not in compared.apart)
