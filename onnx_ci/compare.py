"""From outputs and references to drift numbers and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from onnx_ci.calls import Outputs, dtype_name
from onnx_ci.probes import EXAMPLE, Probe
from onnx_ci.recipe import Limit, Recipe
from onnx_ci.records import Finding, OutputDrift, Severity
from onnx_ci.rules import finding

STANDARD_ERRORS = 6.0
"""How many standard errors two means of random outputs may lie apart: chance exceeds it once in 500 million."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What one run of the file showed."""

    outputs: tuple[OutputDrift, ...]
    findings: tuple[Finding, ...]


def compare(
    names: Sequence[str], outputs: Sequence[torch.Tensor], probe: Probe, recipe: Recipe, limit: float, runtime: str
) -> Comparison:
    """Compare the file's ``outputs`` on ``probe`` with the reference, output by output.

    Args:
        names: the outputs' names in the graph.
        limit: the drift that just passes, where the recipe names none.
        runtime: what computed the outputs.
    """
    drifts: list[OutputDrift] = []
    findings: list[Finding] = []
    for position, (name, got) in enumerate(zip(names, outputs, strict=True)):
        own = probe.reference.own[position]
        if got.shape != own.shape:
            rule = "baked-shape" if probe.name != EXAMPLE else "shape-mismatch"
            shapes = f"{list(got.shape)} from the file and {list(own.shape)} from the model"
            said = f"output {name!r} on {probe.name!r} has shape {shapes}"
            findings.append(finding(rule, said, output=name, probe=probe.name))
            continue
        drift, found = _Output(name, position, got, probe, recipe, limit).judge()
        drifts.append(replace(drift, runtime=runtime))
        findings += found
    return Comparison(outputs=tuple(drifts), findings=tuple(findings))


class _Output:
    """One output on one probe: the elements that can be compared, their errors, and the verdict on them."""

    def __init__(self, name: str, position: int, got: torch.Tensor, probe: Probe, recipe: Recipe, limit: float) -> None:
        reference = probe.reference
        self.name, self.probe, self.recipe = name, probe, recipe
        self.own = reference.own[position]
        self.noise = reference.noise[position]
        self.is_exact = not self.own.is_floating_point()
        self.method = "exact" if self.is_exact else reference.method
        chosen = _chosen(recipe.drift, name, self.own)
        self.limit = 0.0 if self.is_exact else limit if chosen is None else chosen
        self.rtol, self.atol = (_chosen(each, name, self.own) for each in (recipe.rtol, recipe.atol))
        self.raw, self.got, self.exact = got, got.double(), reference.exact[position].double()
        comparable = torch.isfinite(self.own.double()) & torch.isfinite(self.exact) & reference.stable[position]
        self.lost = comparable & ~torch.isfinite(self.got)
        self.judged = comparable & ~self.lost
        self.error = torch.where(self.judged, (self.got - self.exact).abs(), 0.0)
        if self.is_exact:
            # Integers up to 2**63 do not fit into float64: equality is decided on them as they are.
            same = got.to(self.own.dtype) == self.own
            self.error = torch.where(same | ~self.judged, 0.0, self.error.clamp(min=1.0))

    def judge(self) -> tuple[OutputDrift, list[Finding]]:
        """The numbers, and what is wrong with them."""
        drift = self._measured()
        findings = self._nonfinite()
        if drift.index is not None and not self._passes(drift):
            findings.append(self._drifted(drift))
        return drift, findings

    @property
    def _where(self) -> str:
        return f"output {self.name!r} on {self.probe.name!r}"

    def _measured(self) -> OutputDrift:
        some = bool(self.judged.any())
        error = self.error.max().item() if some else 0.0
        size = torch.where(self.judged, self.exact.abs(), 0.0)
        return OutputDrift(
            name=self.name,
            probe=self.probe.name,
            dtype=dtype_name(self.own),
            shape=tuple(self.own.shape),
            drift=error / self.noise,
            limit=self.limit,
            error=error,
            noise=self.noise,
            max_abs=size.max().item() if some else 0.0,
            max_rel=_largest_ratio(self.error, size),
            index=tuple(int(i) for i in torch.unravel_index(self.error.argmax(), self.error.shape)) if some else None,
            reference=self.method,
        )

    @property
    def _by_tolerance(self) -> bool:
        return not self.is_exact and (self.rtol is not None or self.atol is not None)

    def _passes(self, drift: OutputDrift) -> bool:
        if self._by_tolerance:
            allowed = (self.atol or 0.0) + (self.rtol or 0.0) * self.exact.abs()
            return bool(((self.error <= allowed) | ~self.judged).all())
        return drift.drift <= drift.limit

    def _drifted(self, drift: OutputDrift) -> Finding:
        index = drift.index or ()
        got, expected = self.got[index].item(), self.exact[index].item()
        where = f"output {self.name!r} at {list(index)} on {self.probe.name!r}"
        if self.is_exact:
            whole = f"{self.raw[index].item()} and should be {self.own[index].item()}"
            said = f"{where} is {whole}; {drift.dtype} values must be equal"
        elif self._by_tolerance:
            said = (
                f"{where} is {got:.9g} and should be {expected:.9g}: off by {drift.error:.3g}, "
                f"more than atol={self.atol or 0:g}, rtol={self.rtol or 0:g} allow (drift {drift.drift:.3g})"
            )
        else:
            said = (
                f"{where} is {got:.9g} and should be {expected:.9g}: off by {drift.error:.3g}, which is {drift.drift:.3g} "
                f"times PyTorch's own rounding ({drift.noise:.3g}); the limit is {drift.limit:g}"
            )
        rule = "numeric-drift" if self.probe.name == EXAMPLE else "baked-value"
        # An index into values that are all equal is nobody's mistake.
        severity = Severity.NOTE if self.is_exact and self.probe.ties else None
        return finding(
            rule, said, severity=severity, output=self.name, probe=self.probe.name, index=list(index), drift=drift.drift
        )

    def _nonfinite(self) -> list[Finding]:
        """NaN and infinity on one side only.

        An error, unless rounding decides whether there is a number at all (then the model's own type and float64 differ),
        or the input is a special one: there it is worth a note.
        """
        own = self.own.double()
        same = (self.got == own) | (torch.isnan(self.got) & torch.isnan(own))
        gone = ~torch.isfinite(own) & ~same
        decided = (own == self.exact) | (torch.isnan(own) & torch.isnan(self.exact))
        wrong = self.lost | (gone & decided)
        findings = []
        for mask, severe in ((wrong, not self.probe.special), (gone & ~decided, False)):
            if bool(mask.any()):
                index = tuple(int(i) for i in mask.nonzero()[0])
                values = f"{self.got[index].item():g} in the file and {own[index].item():g} in the model"
                count = f"{int(mask.sum())} of {mask.numel()} values are NaN or infinite on one side"
                said = f"{self._where}: {count}, first {values} at {list(index)}"
                severity = Severity.ERROR if severe else Severity.NOTE
                details = {"output": self.name, "probe": self.probe.name}
                findings.append(finding("nonfinite-mismatch", said, severity=severity, **details))
        return findings


def _chosen(limit: Limit, name: str, tensor: torch.Tensor) -> float | None:
    """The limit for an output: by its name, else by its data type."""
    if isinstance(limit, Mapping):
        return limit.get(name, limit.get(dtype_name(tensor)))
    return limit


def _largest_ratio(error: torch.Tensor, size: torch.Tensor) -> float:
    if not error.numel():
        return 0.0
    ratio = torch.where(error > 0, error / size, 0.0).max().item()
    return ratio if not math.isnan(ratio) else math.inf


def compare_moments(names: Sequence[str], runs: Sequence[Sequence[torch.Tensor]], samples: Sequence[Outputs]) -> list[Finding]:
    """Compare random outputs: shapes of every run, and means and spreads over all runs, within standard errors.

    Args:
        names: the outputs' names in the graph.
        runs: the file's outputs, run by run.
        samples: the model's, run by run.
    """
    findings = []
    for position, name in enumerate(names):
        ours = [run[position] for run in runs]
        theirs = [sample[position] for sample in samples]
        if {tuple(t.shape) for t in ours} != {tuple(t.shape) for t in theirs}:
            shapes = " and ".join(str(sorted({tuple(t.shape) for t in each})) for each in (ours, theirs))
            findings.append(finding("shape-mismatch", f"random output {name!r} has shapes {shapes}, file and model"))
            continue
        for word, moment in (("mean", _mean), ("spread", _spread)):
            one, other = (torch.tensor([moment(t) for t in each], dtype=torch.float64) for each in (ours, theirs))
            error = math.sqrt((float(one.var()) + float(other.var())) / len(theirs))
            if abs(float(one.mean() - other.mean())) > STANDARD_ERRORS * error + 1e-6 * abs(float(other.mean())):
                said = f"random output {name!r} has the {word} {one.mean():.4g} in the file and {other.mean():.4g} in the model"
                findings.append(finding("numeric-drift", said, output=name))
    return findings


def _mean(tensor: torch.Tensor) -> float:
    return float(tensor.double().mean()) if tensor.numel() else 0.0


def _spread(tensor: torch.Tensor) -> float:
    return float(tensor.double().std(correction=0)) if tensor.numel() else 0.0
