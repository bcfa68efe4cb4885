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
from onnx_ci.running import RuntimeRun
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
    inputs = dict(zip((value.name for value in signature.inputs), prepared.example.inputs, strict=True))
    try:
        return OnnxRuntime().load(path, "cpu").run(inputs)
    except Exception:  # classes of its own; the CPU may lack a kernel that the GPU has
        return None


def _tf32_unit(tensor: torch.Tensor) -> float:
    return unit_in_last_place(tensor) / torch.finfo(tensor.dtype).eps * TF32_EPS if tensor.is_floating_point() else 1.0


def standing_apart(errors: Mapping[str, float], limit: float, unit: float) -> tuple[str, ...]:
    """The sides beyond the widest gap between errors, where that is wider than ``limit``."""
    order = sorted(errors, key=lambda side: errors[side])
    for place in range(len(order) - 1, 0, -1):
        if errors[order[place]] > limit * max(errors[order[place - 1]], unit):
            return tuple(side for side in errors if side in order[place:])
    return ()


def judge_four_ways(told: Sequence[FourWays], findings: Sequence[Finding], device: str) -> list[Finding]:
    """The findings of a cell, those of an output with the sides that stand apart on it; and where PyTorch itself does, a note.

    Then its noise, the yardstick of the comparison, is coarser than rounding makes it.
    """
    apart = {each.name: each for each in told if each.apart}
    judged = []
    for each in findings:
        ways = apart.get(str(each.details.get("output")))
        if ways is None or "drift" not in each.details:
            judged.append(each)
        else:
            details = {**each.details, "apart": list(ways.apart)}
            judged.append(dataclasses.replace(each, message=f"{each.message}; {ways.verdict}", details=details))
    for name, ways in apart.items():
        if ways.apart == (f"PyTorch on {device}",):
            said = f"{ways.verdict} with output {name!r}, far from float64 where the others are near"
            remedy = "What the model switches on while it runs, such as TF32, makes the comparison coarser than it should be."
            judged.append(finding("vacuous", said, remedy=remedy, severity=Severity.NOTE))
    return judged
