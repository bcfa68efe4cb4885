"""From outputs and references to drift numbers and findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from onnx_ci.calls import dtype_name
from onnx_ci.probes import EXAMPLE, Probe
from onnx_ci.recipe import Recipe
from onnx_ci.records import Finding, OutputDrift, Severity
from onnx_ci.rules import finding


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What one run of the file showed."""

    outputs: tuple[OutputDrift, ...]
    findings: tuple[Finding, ...]


def compare(names: Sequence[str], outputs: Sequence[torch.Tensor], probe: Probe, recipe: Recipe, limit: float) -> Comparison:
    """Compare the file's ``outputs`` on ``probe`` with the reference, output by output.

    Args:
        names: the outputs' names in the graph.
        limit: the drift that just passes, where the recipe names none.
    """
    reference = probe.reference
    drifts: list[OutputDrift] = []
    findings: list[Finding] = []
    for position, (name, got) in enumerate(zip(names, outputs, strict=True)):
        own, exact, noise = reference.own[position], reference.exact[position], reference.noise[position]
        if got.shape != own.shape:
            rule = "shape-mismatch" if probe.name == EXAMPLE else "baked-shape"
            shapes = f"{list(got.shape)} from the file and {list(own.shape)} from the model"
            findings.append(
                finding(rule, f"output {name!r} on {probe.name!r} has shape {shapes}", output=name, probe=probe.name)
            )
            continue
        drift, found = _compare_output(name, got, own, exact, noise, probe, recipe, limit)
        drifts.append(drift)
        findings += found
    return Comparison(outputs=tuple(drifts), findings=tuple(findings))


def _compare_output(
    name: str,
    got: torch.Tensor,
    own: torch.Tensor,
    exact: torch.Tensor,
    noise: float,
    probe: Probe,
    recipe: Recipe,
    limit: float,
) -> tuple[OutputDrift, list[Finding]]:
    counted = not own.is_floating_point()
    allowed = 0.0 if counted else recipe.drift or limit
    # Integers up to 2**63 do not fit into float64; equality is decided on them as they are.
    got64, exact64 = got.double(), exact.double()
    comparable = torch.isfinite(own.double()) & torch.isfinite(exact64)
    lost = comparable & ~torch.isfinite(got64)
    judged = comparable & ~lost
    error = torch.where(judged, (got64 - exact64).abs(), 0.0)
    if counted:
        error = torch.where(got.to(own.dtype) == own, 0.0, error.clamp(min=1.0))
    largest = error.max().item() if error.numel() else 0.0
    index = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape)) if bool(judged.any()) else None
    size = torch.where(judged, exact64.abs(), 0.0)
    drift = OutputDrift(
        name=name,
        probe=probe.name,
        dtype=dtype_name(own),
        shape=tuple(own.shape),
        drift=largest / noise,
        limit=allowed,
        error=largest,
        noise=noise,
        max_abs=size.max().item() if size.numel() else 0.0,
        max_rel=_largest_ratio(error, size),
        index=index,
        reference="exact" if counted else probe.reference.method,
    )
    findings = _nonfinite(name, got64, own.double(), lost, probe)
    if own.numel() and index is None and not findings:
        message = f"output {name!r} on {probe.name!r} was not compared: none of its {own.numel()} values is finite in the model"
        findings.append(finding("vacuous", message, output=name, probe=probe.name))
    if index is not None and not _passes(drift, error, exact64, recipe):
        findings.append(_drift_finding(drift, got64[index].item(), exact64[index].item(), recipe))
    return drift, findings


def _passes(drift: OutputDrift, error: torch.Tensor, exact: torch.Tensor, recipe: Recipe) -> bool:
    if drift.reference != "exact" and _judged_by_tolerance(recipe):
        allowed = (recipe.atol or 0.0) + (recipe.rtol or 0.0) * exact.abs()
        return bool(((error <= allowed) | ~torch.isfinite(exact)).all())
    return drift.drift <= drift.limit


def _judged_by_tolerance(recipe: Recipe) -> bool:
    return recipe.rtol is not None or recipe.atol is not None


def _drift_finding(drift: OutputDrift, got: float, expected: float, recipe: Recipe) -> Finding:
    rule = "numeric-drift" if drift.probe == EXAMPLE else "baked-value"
    where = f"output {drift.name!r} at {list(drift.index or ())} on {drift.probe!r}"
    if drift.reference == "exact":
        said = f"{where} is {got:g} and should be {expected:g}; {drift.dtype} values must be equal"
    elif _judged_by_tolerance(recipe):
        said = (
            f"{where} is {got:.9g} and should be {expected:.9g}: off by {drift.error:.3g}, "
            f"more than atol={recipe.atol or 0:g}, rtol={recipe.rtol or 0:g} allow (drift {drift.drift:.3g})"
        )
    else:
        said = (
            f"{where} is {got:.9g} and should be {expected:.9g}: off by {drift.error:.3g}, which is {drift.drift:.3g} times "
            f"PyTorch's own rounding ({drift.noise:.3g}); the limit is {drift.limit:g}"
        )
    return finding(rule, said, output=drift.name, probe=drift.probe, index=list(drift.index or ()), drift=drift.drift)


def _nonfinite(name: str, got: torch.Tensor, own: torch.Tensor, lost: torch.Tensor, probe: Probe) -> list[Finding]:
    """NaN or infinity where the model has a number is an error; a difference among the model's own is worth a note."""
    findings = []
    if bool(lost.any()):
        first = [int(i) for i in lost.nonzero()[0]]
        count = f"{int(lost.sum())} of {lost.numel()} values"
        said = f"output {name!r} on {probe.name!r}: {count} are NaN or infinite in the file alone, first at {first}"
        findings.append(finding("nonfinite-mismatch", said, output=name, probe=probe.name))
    same = (got == own) | (torch.isnan(got) & torch.isnan(own))
    other = ~torch.isfinite(own) & ~same
    if bool(other.any()):
        count = f"{int(other.sum())} values"
        said = f"output {name!r} on {probe.name!r}: {count} are NaN or infinite in the model and differ in the file"
        findings.append(finding("nonfinite-mismatch", said, severity=Severity.NOTE, output=name, probe=probe.name))
    return findings


def _largest_ratio(error: torch.Tensor, size: torch.Tensor) -> float:
    if not error.numel():
        return 0.0
    ratio = torch.where(error > 0, error / size, 0.0).max().item()
    return ratio if not math.isnan(ratio) else math.inf
