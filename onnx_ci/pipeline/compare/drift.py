"""From outputs and references to drift numbers and findings."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

import torch

from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.onnx_model.precision import PRECISIONS
from onnx_ci.pipeline.inputs.probes import EXAMPLE, EXTREME_TOLERANCE, LONG_TOLERANCE, InputStatus, Probe
from onnx_ci.pipeline.model.tensors import blocks, dtype_name, has_noise, index_at, is_all_finite, is_finite, is_float8
from onnx_ci.pipeline.reference import runtime_rounding
from onnx_ci.pipeline.reference.reference import spread
from onnx_ci.results.records import Finding, OutputDrift, Severity, Similarity
from onnx_ci.results.rules import REMEDIES, FindingFields, finding

NEIGHBOR_SHARE = 0.001
"""The share of 8-bit floats that may be one step off even if rounding changes none of them in the model itself."""

FEW = 1 / 64
"""The share of the elements of a long output that may be wrong."""
HOPELESS = 16.0
"""A drift so many times above its limit stays above it, however often the rounding of a lossy pass is simulated."""


TOO_NOISY = "too noisy"
"""Why a comparison proves nothing in which zeros would pass, although the model returns others."""


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """The result of one run of the file."""

    outputs: tuple[OutputDrift, ...]
    findings: tuple[Finding, ...]
    clipping: str | None = None
    """What a quantized file clips on an input that onnx-ci made, so that no difference is an error."""

    @property
    def failing_outputs(self) -> set[str | None]:
        """The names of the outputs that are wrong; ``None`` among them if a finding is about none."""
        return {each.output for each in self.findings if each.severity is Severity.ERROR}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What messages call the two sides of a comparison, and what a fault on some inputs only means."""

    tested: str = "the file"
    reference: str = "the model"
    rounding: str = "PyTorch's own rounding"
    """The unit of drift."""
    remedy: str | None = None
    """What to do about wrong numbers. Default: what their rule says."""
    is_traced: bool = True
    """Whether the file was traced on the example, so that a fault that only other inputs show was frozen by tracing."""


OF_AN_EXPORT = Terms()


def compare_refined(
    names: Sequence[str], outputs: Sequence[torch.Tensor], probe: Probe, max_drift: DriftLimit, terms: Terms = OF_AN_EXPORT
) -> OutputComparison:
    """:func:`compare`, and again with each refinement of the probe's reference as long as the file fails.

    A difference that only the rounding of a lower precision explains is a note.
    """
    comparison = compare(names, outputs, probe, max_drift, terms)
    for refine in probe.refinements:
        # Integers have no limit: more simulations may show that they depend on rounding.
        is_near = all(each.share_of_limit < HOPELESS for each in comparison.outputs if each.limit)
        is_hopeless = probe.reference.is_lossy and not is_near
        if is_hopeless or all(each.severity is Severity.NOTE for each in comparison.findings):
            break
        refined = compare(names, outputs, dataclasses.replace(probe, reference=refine()), max_drift, terms)
        explained = _explained_by_precision(comparison, refined, terms)
        comparison = dataclasses.replace(refined, findings=(*refined.findings, *explained))
    return comparison


def _explained_by_precision(before: OutputComparison, after: OutputComparison, terms: Terms) -> Iterator[Finding]:
    """A note for each output that only passes in units of the rounding of a lower precision."""
    passes_now = before.failing_outputs - after.failing_outputs
    drift_before = {output.name: output.drift for output in before.outputs}
    for output in after.outputs:
        if output.reference in PRECISIONS and output.name in passes_now and output.drift <= output.limit:
            yield finding(
                "numeric-drift",
                f"output {output.name!r} on {output.probe!r} is off by {output.error:.3g}: {drift_before[output.name]:.3g} "
                f"times {terms.rounding}, but {output.drift:.3g} times that of {output.reference}, in which {terms.tested} "
                "computes",
                severity=Severity.NOTE,
                remedy=f"No action is needed if {output.reference} is intended.",
                output=output.name,
                probe=output.probe,
                drift=output.drift,
            )


def compare(
    names: Sequence[str], outputs: Sequence[torch.Tensor], probe: Probe, max_drift: DriftLimit, terms: Terms = OF_AN_EXPORT
) -> OutputComparison:
    """Compare the file's ``outputs`` on ``probe`` with the reference, output by output."""
    is_baked = terms.is_traced and probe.name != EXAMPLE
    drifts: list[OutputDrift] = []
    findings: list[Finding] = []
    for position, (name, output) in enumerate(zip(names, outputs, strict=True)):
        expected = probe.reference.own[position]
        if output.shape != expected.shape:
            rule = "edge-mismatch" if _only_warns(probe, terms) else "baked-shape" if is_baked else "shape-mismatch"
            shapes = f"{list(output.shape)} in {terms.tested} and {list(expected.shape)} in {terms.reference}"
            message = f"output {name!r} on {probe.name!r} has shape {shapes}"
            findings.append(finding(rule, message, output=name, probe=probe.name))
            continue
        drift, of_output = _Output(name, position, output, probe, max_drift, terms).judge()
        drifts.append(drift)
        findings += of_output
    clipping = None if probe.is_given else probe.reference.clipping
    return OutputComparison(outputs=tuple(drifts), findings=tuple(findings), clipping=clipping)


def _only_warns(probe: Probe, terms: Terms, *, is_finite: bool = True) -> bool:
    """Whether a mismatch is a warning because the model may never get the input. Two files must be the same there, too.

    If it ``is_finite``, both sides have numbers, not NaN or infinity on one side.
    """
    harmless = (InputStatus.DEGENERATE, InputStatus.EXTREME) if is_finite else (InputStatus.DEGENERATE,)
    return terms.is_traced and probe.legality in harmless


class _Output:
    """One output on one probe: the elements that can be compared, and their errors."""

    def __init__(self, name: str, position: int, got: torch.Tensor, probe: Probe, max_drift: DriftLimit, terms: Terms) -> None:
        reference = probe.reference
        self.name, self.probe, self.terms = name, probe, terms
        self.precision = PRECISIONS.get(reference.method)
        self.own = reference.own[position]
        self.noise, self.noise_of_elements = reference.noise[position], reference.noise_of_elements(position)
        self.is_exact = not has_noise(self.own)
        self.method = "exact" if self.is_exact else reference.method
        self.limit = 0.0 if self.is_exact else max_drift.of(name, dtype_name(self.own))
        is_extreme = probe.legality is InputStatus.EXTREME
        self.limit *= EXTREME_TOLERANCE if is_extreme else LONG_TOLERANCE if probe.is_long else 1.0
        self.rtol, self.atol = max_drift.tolerance_of(name, dtype_name(self.own))
        self.raw, self.exact, self.stable = got, reference.exact[position], reference.stable[position]
        self.is_finite = is_all_finite(self.own) and is_all_finite(got)

    # Of the whole output, and of no use where it is finite and stable: float64 takes twice the memory of what it is made of.

    @functools.cached_property
    def got(self) -> torch.Tensor:
        return self.raw.double()

    @functools.cached_property
    def comparable(self) -> torch.Tensor:
        return is_finite(self.own) & is_finite(self.exact) & self.stable

    @functools.cached_property
    def judged(self) -> torch.Tensor:
        return self.comparable & torch.isfinite(self.got)

    @functools.cached_property
    def error(self) -> torch.Tensor:
        error = torch.where(self.judged, (self.got - self.exact.double()).abs(), 0.0)
        if not self.is_exact:
            return error
        # Not all integers up to 2**63 can be represented in float64, so they are compared unconverted.
        same = self.raw.to(self.own.dtype) == self.own
        if is_float8(self.own):
            same |= self._rounded_to_neighbor(self.raw.to(self.own.dtype), self.stable)
        elif self.probe.reference.is_lossy:
            # Integers that differ are near ties, if no more of them do than in the simulation.
            same |= bool((~same & self.judged).sum() <= (~self.stable).sum())
        least = 0.0 if self.own.is_floating_point() else 1.0
        return torch.where(same | ~self.judged, 0.0, error.clamp(min=least))

    @property
    def size(self) -> torch.Tensor:
        return torch.where(self.judged, self.exact.double().abs(), 0.0)

    def _errors(self) -> Iterator[tuple[tuple[int, ...], torch.Tensor, torch.Tensor, torch.Tensor]]:
        """The error, the size and the noise of the elements, in parts, each with the index at which it begins."""
        if self.is_exact or not (self.is_finite and is_all_finite(self.exact) and bool(self.stable.all())):
            if bool(self.judged.any()):
                yield (0,) * self.own.dim(), self.error, self.size, self.noise_of_elements
            return
        for start, (got, exact, noise) in blocks((self.raw, self.exact, self.noise_of_elements)):
            if got.numel():
                exact = exact.double()
                yield start, (got.double() - exact).abs_(), exact.abs(), noise

    def _rounded_to_neighbor(self, got: torch.Tensor, stable: torch.Tensor) -> torch.Tensor:
        """Which 8-bit floats are one step off, as a value near the middle between two steps may be.

        None of them if they are more than rounding explains.
        """
        steps_apart = (_step_number(got) - _step_number(self.own)).abs()
        neighbors = self.judged & (steps_apart == 1)
        most = max(int((~stable).sum()), int(neighbors.numel() * NEIGHBOR_SHARE))
        return neighbors & (neighbors.sum() <= most)

    def judge(self) -> tuple[OutputDrift, list[Finding]]:
        """The drift of the output, and the findings about it."""
        if self.probe.is_long:
            self._leave_out_few()
        drift = self._measured()
        findings = self._nonfinite()
        is_quantized = self.precision is not None and self.precision.is_uniform
        if self._by_tolerance:
            allowed = (self.atol or 0.0) + (self.rtol or 0.0) * self.exact.double().abs()
            passes = bool(((self.error <= allowed) | ~self.judged).all())
        else:
            passes = drift.drift <= drift.limit
        if drift.index is not None and not passes:
            findings.append(self._drifted(drift))
        elif is_quantized and self.probe.is_given and not self.is_exact and self.noise * self.limit >= spread(self.exact):
            message = (
                f"{self._where}: {self._unit} in {self.terms.tested} is {drift.noise:.2g}, and the values are only "
                f"{spread(self.exact):.2g} apart: with a limit of {drift.limit:g}, a constant would pass"
            )
            findings.append(self._finding("vacuous", message, None, remedy=REMEDIES["too-coarse"]))
        return drift, findings

    @property
    def _where(self) -> str:
        return f"output {self.name!r} on {self.probe.name!r}"

    def _measured(self) -> OutputDrift:
        error, noise, index, ratio, largest, alike = 0.0, self.noise, None, 0.0, 0.0, None
        for start, errors, sizes, noises in self._errors():
            drifts = errors / noises
            if index is None or not drifts.max().item() <= error / noise:
                place = index_at(int(drifts.argmax()), errors.shape)
                error, noise, index = errors[place].item(), noises[place].item(), tuple(map(operator.add, start, place))
            ratio = max(ratio, (errors / sizes).nan_to_num_(nan=0.0, posinf=math.inf).max().item())
            largest = max(largest, sizes.max().item())
        if index is not None and self.probe.reference.is_lossy:
            same = self.raw.to(self.own.dtype) == self.own
            exact = self.exact.double()
            alike = agreement(same, self.judged) if self.is_exact else similarity(self.got, exact, self.judged, self.noise)
        return OutputDrift(
            name=self.name,
            probe=self.probe.name,
            dtype=dtype_name(self.own),
            shape=tuple(self.own.shape),
            drift=error / noise,
            limit=self.limit,
            error=error,
            noise=noise,
            max_abs=largest,
            max_rel=math.inf if math.isnan(ratio) else ratio,
            index=index,
            reference=self.method,
            similarity=alike,
            is_decisive=self._is_decisive and not _only_warns(self.probe, self.terms),
            unproven=self._unproven(largest) if index is not None else "nothing finite",
        )

    def _leave_out_few(self) -> None:
        """Judge no elements that are wrong, if these are few: after long sums, one can be on the other side of a step.

        What code computes otherwise at large sizes is wrong in more places.
        """
        wrong = self.judged & (self.error > self.noise_of_elements * self.limit)
        if wrong.sum() <= wrong.numel() * FEW:
            self.stable, self.judged, self.error = self.stable & ~wrong, self.judged & ~wrong, self.error.where(~wrong, 0.0)

    def _unproven(self, largest: float) -> str:
        if self.is_exact or self._by_tolerance or not 0 < largest <= self.noise * self.limit:
            return ""
        return TOO_NOISY if bool((self.size <= self.noise_of_elements * self.limit).all()) else ""

    @property
    def _by_tolerance(self) -> bool:
        return self.own.is_floating_point() and (self.rtol is not None or self.atol is not None)

    def _drifted(self, drift: OutputDrift) -> Finding:
        index = drift.index or ()
        got, expected = self.raw[index].item(), self.exact[index].item()
        where = f"output {self.name!r} at {list(index)} on {self.probe.name!r}"
        if self._by_tolerance:
            message = (
                f"{where} is {got:.9g} and should be {expected:.9g}: off by {drift.error:.3g}, "
                f"more than atol={self.atol or 0:g}, rtol={self.rtol or 0:g} allow (drift {drift.drift:.3g})"
            )
        elif self.is_exact:
            whole = f"{self.raw[index].item()} and should be {self.own[index].item()}"
            message = f"{where} is {whole}; {drift.dtype} values must be equal"
        else:
            message = (
                f"{where} is {got:.9g} and should be {expected:.9g}: off by {drift.error:.3g}, which is {drift.drift:.3g} "
                f"times {self._unit} ({drift.noise:.3g}); the limit is {drift.limit:g}"
            )
            if self.probe.reference.clipping is not None:
                message += f"; {self.probe.reference.clipping}"
            if self.probe.reference.decisions is not None:
                message += "; something that the model decides by numbers here falls between float32 and float64"
        rule = "baked-value" if self.terms.is_traced and self.probe.name != EXAMPLE else "numeric-drift"
        return self._finding(
            rule, message, None if self._is_decisive else Severity.NOTE, drift=drift.drift, details={"index": list(index)}
        )

    def _finding(
        self, rule: str, message: str, severity: Severity | None, remedy: str | None = None, **fields: Unpack[FindingFields]
    ) -> Finding:
        only_warns = _only_warns(self.probe, self.terms, is_finite=rule != "nonfinite-mismatch")
        where: FindingFields = {**fields, "output": self.name, "probe": self.probe.name}
        if only_warns and severity is not Severity.NOTE:
            return finding("edge-mismatch", message, **where)
        usual = self.terms.remedy
        if self.precision is not None:
            cause = "look for an overflow, a wrong scale or a wrong zero point"
            usual = f"The rounding of {self.precision.name} explains less: {cause}."
        return finding(rule, message, remedy=remedy or usual, severity=severity, **where)

    @property
    def _is_decisive(self) -> bool:
        # Among equal values, the order of indices is undefined; and a quantized file clips what it was not calibrated for.
        is_undefined = self.is_exact and self.probe.has_ties
        is_clipped = self.probe.reference.clipping is not None and not self.probe.is_given
        is_clipped |= self.probe.special and self.precision is not None and self.precision.is_uniform
        return not (is_undefined or is_clipped)

    @property
    def _unit(self) -> str:
        if self.probe.reference.is_lossy:
            return f"{self.method} rounding"
        if self.method == runtime_rounding.METHOD:
            return "the rounding of PyTorch and of runtimes"
        return self.terms.rounding if self.precision is None else f"the rounding of {self.precision.name}"

    def _nonfinite(self) -> list[Finding]:
        """NaN and infinity on one side only.

        An error; a note if the model's own type and float64 differ there, so that it depends on rounding, or if the model
        itself gives NaN or infinity on a special input.
        """
        if self.is_finite:
            return []
        own = self.own.double()
        nonfinite = self.comparable & ~torch.isfinite(self.got)
        same = (self.got == own) | (torch.isnan(self.got) & torch.isnan(own))
        missing = ~torch.isfinite(own) & ~same
        decided = (own == self.exact) | (torch.isnan(own) & torch.isnan(self.exact))
        is_right = not self.probe.special
        findings = []
        for mask, severe in ((nonfinite | (missing & decided & is_right), True), (missing & ~(decided & is_right), False)):
            if bool(mask.any()):
                index = tuple(int(i) for i in mask.nonzero()[0])
                got, expected = (f"{tensor[index].item():g}" for tensor in (self.got, own))
                values = f"{got} in {self.terms.tested} and {expected} in {self.terms.reference}"
                count = f"{int(mask.sum())} of {mask.numel()} values are NaN or infinite on one side"
                message = f"{self._where}: {count}, first {values} at {list(index)}"
                severity = Severity.ERROR if severe else Severity.NOTE
                remedy = REMEDIES["put-nan-aside"] if bool(own[index].isnan()) else None
                findings.append(self._finding("nonfinite-mismatch", message, severity, remedy=remedy))
        return findings


def _step_number(tensor: torch.Tensor) -> torch.Tensor:
    """The position of each 8-bit float among all values of its type, counted from zero."""
    bits = tensor.contiguous().view(torch.uint8).to(torch.int16)
    return torch.where(bits < 128, bits, 128 - bits)


# --- similarity -------------------------------------------------------------------------------------------------------
# What people look at after a lossy pass. None of it decides: a cosine of 0.99 can hide a wrong layer, and of two classes that
# are nearly tied either can win.


def similarity(got: torch.Tensor, exact: torch.Tensor, judged: torch.Tensor, noise: float) -> Similarity:
    """Compare a floating output with its reference.

    Args:
        judged: which elements are compared; the others count as equal.
        noise: two values that are closer than this are a tie.
    """
    exact = exact.nan_to_num(0.0, 0.0, 0.0)
    got = torch.where(judged, got, exact)
    signal, power, error = (float((tensor**2).sum()) for tensor in (exact, got, got - exact))
    lengths = math.sqrt(signal * power)
    same: torch.Tensor | None = None
    clear: torch.Tensor | None = None
    if exact.dim() >= 2 and exact.shape[-1] >= 2:  # whether the top class of each row is the same, and whether it is clear
        top = exact.topk(2, dim=-1)
        same, clear = got.argmax(-1) == top.indices[..., 0], (top.values[..., 0] - top.values[..., 1]) > noise
    return Similarity(
        cosine=float((got * exact).sum()) / lengths if lengths else float(signal == power),
        sqnr=math.inf if not error else 10 * math.log10(signal / error) if signal else -math.inf,
        agreement=_share(same, clear),
        ties=0 if clear is None else int((~clear).sum()),
    )


def agreement(same: torch.Tensor, judged: torch.Tensor) -> Similarity:
    """Compare an output of integers or booleans, of which those that are not judged are ties."""
    return Similarity(cosine=None, sqnr=None, agreement=_share(same, judged), ties=int((~judged).sum()))


def _share(same: torch.Tensor | None, clear: torch.Tensor | None) -> float | None:
    return None if same is None or clear is None or not bool(clear.any()) else float(same[clear].double().mean())
