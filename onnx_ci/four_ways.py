"""On a GPU, one input computed four ways: by PyTorch and by ONNX Runtime, each on the CPU and on the GPU.

All are held against float64 on the CPU. Which of them is wrong tells whose fault it is: a side that stands alone is at fault
itself, both of ONNX Runtime's mean the file, both of the GPU's mean how it computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from onnx_ci.compare import compare
from onnx_ci.devices import TF32_EPS
from onnx_ci.onnx_file import Signature
from onnx_ci.prepare import Prepared
from onnx_ci.records import Finding, FourWays, OutputDrift, Severity
from onnx_ci.reference import unit_in_last_place
from onnx_ci.rules import finding
from onnx_ci.running import RuntimeRun, feeds_of
from onnx_ci.runtime.onnxruntime import OnnxRuntime


def compute_four_ways(
    run: RuntimeRun | None, path: Path, signature: Signature, prepared: Prepared, *, limit: float
) -> tuple[FourWays, ...]:
    """Each output of the example, as the four sides compute it.

    Args:
        run: what ONNX Runtime made of the file on the GPU, if it was asked.
        limit: the drift that just passes, where the recipe names none.
    """
    if prepared.samples:  # random: every side draws its own numbers
        return ()
    names = [value.name for value in signature.outputs]
    example = prepared.example

    def errors(outputs: Sequence[torch.Tensor] | None) -> Mapping[str, OutputDrift]:
        if outputs is None or len(outputs) != len(names):
            return {}
        return {each.name: each for each in compare(names, outputs, example, prepared.recipe, limit, "").outputs}

    of_example = [each for each in run.outputs if each.probe == example.name] if run else []
    by_side = {
        "PyTorch on cpu": errors(prepared.beside),
        f"PyTorch on {prepared.device}": errors(example.reference.own),
        "ONNX Runtime on cpu": errors(_on_cpu(path, signature, prepared)),
        f"ONNX Runtime on {prepared.device}": {each.name: each for each in of_example},
    }
    told = []
    for name, own in zip(names, example.reference.own, strict=True):
        found = {side: drifts[name] for side, drifts in by_side.items() if name in drifts and drifts[name].index is not None}
        if found:
            allowed = next(iter(found.values())).limit
            unit = max(unit_in_last_place(own), _tf32_unit(own) if prepared.recipe.tf32 else 0.0)
            sizes = {side: each.error for side, each in found.items()}
            told.append(FourWays(name=name, errors=sizes, apart=standing_apart(sizes, allowed, unit)))
    return tuple(told)


def _on_cpu(path: Path, signature: Signature, prepared: Prepared) -> list[torch.Tensor] | None:
    try:
        return OnnxRuntime().load(path, "cpu").run(feeds_of(signature, prepared, prepared.example))
    except Exception:  # classes of its own; the CPU may lack a kernel that the GPU has
        return None


def _tf32_unit(tensor: torch.Tensor) -> float:
    return unit_in_last_place(tensor) / torch.finfo(tensor.dtype).eps * TF32_EPS if tensor.is_floating_point() else 1.0


def standing_apart(errors: Mapping[str, float], limit: float, unit: float) -> tuple[str, ...]:
    """The sides beyond the first gap between errors that is wider than rounding explains.

    Args:
        errors: under each side its own.
        limit: how many times the next smaller error an error may be; 0 where all must be equal.
        unit: the smallest error that counts where they need not be.
    """
    order = sorted(errors, key=lambda side: errors[side])
    for place in range(1, len(order)):
        nearer, error = errors[order[place - 1]], errors[order[place]]
        if error > (limit * max(nearer, unit) if limit else nearer):
            return tuple(side for side in errors if side in order[place:])
    return ()


_TF32_SHARE = 32 * TF32_EPS
"""The largest error, as a share of the largest value, that is put down to TensorFloat-32: its own, grown over some layers."""
_TF32_REMEDY = (
    "Among the causes is TF32, which onnx-ci switches off: see whether the model, or NVIDIA_TF32_OVERRIDE, switches it on. If "
    "production runs with it, declare tf32=True. Otherwise look for an operator that the GPU's kernels compute differently."
)


def judge_four_ways(
    told: Sequence[FourWays], findings: Sequence[Finding], run: RuntimeRun | None, prepared: Prepared
) -> list[Finding]:
    """The findings of a cell on a GPU, those of a drift with what four ways tell about its cause.

    Where PyTorch itself stands alone on the GPU there is a note: its noise, the yardstick of the comparison, is coarser than
    rounding makes it.

    Args:
        told: what :func:`compute_four_ways` found.
        findings: those of the cell.
        run: what ONNX Runtime made of the file on the GPU, if it was asked.
    """
    ways = {each.name: each for each in told}
    drifts = {(each.name, each.probe): each for each in (run.outputs if run else ())}
    judged = []
    for each in findings:
        name, probe = str(each.details.get("output")), str(each.details.get("probe"))
        said, remedy, details = each.message, each.remedy, dict(each.details)
        if "drift" in details and _may_be_tf32(drifts.get((name, probe)), ways.get(name), prepared):
            said, remedy, details["causes"] = f"{said}; TF32 makes errors of this size", _TF32_REMEDY, ["TF32"]
        if "drift" in details and name in ways and ways[name].apart:
            said, details["apart"] = f"{said}; {ways[name].verdict}", list(ways[name].apart)
        judged.append(dataclasses.replace(each, message=said, remedy=remedy, details=details))
    for one in told:
        if one.apart == (f"PyTorch on {prepared.device}",):
            said = f"{one.verdict} with output {one.name!r}, far from float64 where the others are near"
            remedy = "What the model switches on while it runs, such as TF32, makes the comparison coarser than it should be."
            judged.append(finding("vacuous", said, remedy=remedy, severity=Severity.NOTE))
    return judged


def _may_be_tf32(drift: OutputDrift | None, ways: FourWays | None, prepared: Prepared) -> bool:
    """Whether a drift has the size that TensorFloat-32 gives it, where none was asked for and the CPU is not off, too."""
    if drift is None or drift.dtype != "float32" or prepared.recipe.tf32:
        return False
    return drift.error <= _TF32_SHARE * drift.max_abs and (ways is None or "ONNX Runtime on cpu" not in ways.apart)
