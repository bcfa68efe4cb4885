"""Whether the random outputs of a file have the same distribution as those of the model.

If both draw from the same distribution, a round of the file and a round of the model could be swapped. So a statistic of the
differences between rounds is compared with its values for all ways to swap them (Fisher's randomization test). This is valid
for any distribution, any dependence between the elements of an output, and any seed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import torch

from onnx_ci.pipeline.inputs.probes import EXAMPLE, InputStatus, Probe
from onnx_ci.pipeline.model.tensors import has_noise
from onnx_ci.pipeline.reference.random_samples import ROUNDS, Sample, index_of
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding

FALSE_ALARMS = 1e-6
"""The largest probability that a right file fails by chance, for one output on one probe."""

_TESTS = 4
"""How many randomization tests share this probability: one of NaN and infinity, three of the values."""

_FREQUENCIES = (0.5, 1.0, 2.0, 4.0)
"""Where the characteristic functions of standardized values are compared. They are smooth, so rounding does not matter."""


def compare_random(names: Sequence[str], runs: Sequence[Sequence[Sample]], probe: Probe) -> list[Finding]:
    """Compare random outputs on ``probe``: the shapes in every run, and the distributions of the values."""
    outputs = [_RandomOutput(name, position, [run[position] for run in runs], probe) for position, name in enumerate(names)]
    return [finding for output in outputs for finding in output.findings()]


class _RandomOutput:
    """One output on one probe."""

    def __init__(self, name: str, position: int, got: Sequence[Sample], probe: Probe) -> None:
        self._name, self._probe, self._got = name, probe, got
        self._own = [sample[position] for sample in probe.samples]
        like = probe.reference.own[position]
        # Elements that are not random agree in half of their digits.
        self._rtol = max(probe.reference.eps, torch.finfo(like.dtype).eps) ** 0.5 if has_noise(like) else 0.0
        self._is_exact = not has_noise(like)

    def findings(self) -> Iterator[Finding]:
        in_file, in_model = ({tuple(sample.shape) for sample in each} for each in (self._got, self._own))
        has_one_shape = len(in_model) == 1
        if len({len(shape) for shape in in_file | in_model}) > 1 or (has_one_shape and in_file != in_model):
            rule = "shape-mismatch" if self._probe.name == EXAMPLE else "baked-shape"
            yield self._finding(rule, f"has the shapes {sorted(in_file)} in the file and {sorted(in_model)} in the model", None)
            return
        values = _values if has_one_shape else _summary
        both = torch.stack([torch.stack([*map(values, samples)]) for samples in (self._got, self._own)])
        finite = torch.isfinite(both)
        if not bool(finite.all()) and self._difference((~finite).double(), 0.0, ("mean",)):
            severity = Severity.NOTE if self._probe.special else None
            got, own = (100 * (1 - float(each.double().mean())) for each in finite)
            what = f"has {got:.3g} % NaN and infinite values in the file and {own:.3g} % in the model"
            yield self._finding("nonfinite-mismatch", what, severity)
            return
        both = torch.where(finite, both, 0.0)
        tolerance = self._rtol * float(both.abs().max()) if both.numel() else 0.0
        if difference := self._difference(both, tolerance, ("mean", "spread", "distribution")):
            # Among equal values, the order of indices is undefined.
            severity = Severity.NOTE if self._is_exact and self._probe.has_ties else None
            rule = "numeric-drift" if self._probe.name == EXAMPLE else "baked-value"
            yield self._finding(rule, difference, severity)

    def _finding(self, rule: str, what: str, severity: Severity | None) -> Finding:
        message = f"random output {self._name!r} on {self._probe.name!r} {what}, in {len(self._own)} runs of each"
        if self._probe.legality is not InputStatus.LEGAL and severity is not Severity.NOTE:
            rule = "edge-mismatch"
        return finding(rule, message, severity=severity, output=self._name, probe=self._probe.name)

    def _at(self, element: int) -> str:
        sample = self._own[0]
        return f"at {index_of(sample, element)} " if len({each.shape for each in self._own}) == 1 else ""

    def _difference(self, both: torch.Tensor, tolerance: float, moments: Sequence[str]) -> str | None:
        """How the file's values differ from the model's by more than chance and rounding explain, or ``None``.

        Args:
            both: file and model × runs × elements.
            tolerance: the largest difference that rounding explains.
        """
        low, high = both.amin(1), both.amax(1)
        gap = torch.maximum(low[0] - high[1], low[1] - high[0])
        if gap.numel() and float(gap.max()) > tolerance:
            # Chance separates all runs of the file from all of the model less than once in 10**13 for each element.
            element = int(gap.argmax())
            ends = zip(low[:, element].tolist(), high[:, element].tolist(), strict=True)
            got, own = (f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}" for least, most in ends)
            return f"{self._at(element)}is {got} in the file and {own} in the model"
        spread = both.flatten(0, 1).std(0, correction=0)
        # The means differ by at most twice the spread of all runs; below that, rounding explains everything.
        varied = spread > tolerance / 2
        if not bool(varied.any()):
            return None
        both, spread, elements = both[..., varied], spread[varied], varied.nonzero().flatten()
        standard = (both - both.mean((0, 1))) / spread
        rounds = standard.reshape(2, ROUNDS, -1, len(elements))
        for moment in moments:
            if _is_chance(_statistics(moment, rounds)):
                continue
            numbers = both.mean(1) if moment == "mean" else both.std(1, correction=0)
            apart = (numbers[0] - numbers[1]).abs()
            if moment == "distribution":
                in_file, in_model = (values.flatten().sort().values for values in standard)
                if float((in_file - in_model).abs().mean() * spread.square().mean().sqrt()) > tolerance:
                    return "is distributed differently in the file and in the model"
                continue
            # Means differ by chance, too: this is the root mean square without what is expected from that.
            expected = 2 * spread.square() / both.shape[1] if moment == "mean" else torch.zeros(())
            if float((apart.square() - expected).mean().clamp(min=0).sqrt()) > tolerance:
                element = int((apart / spread).argmax())
                got, own = numbers[:, element].tolist()
                return f"{self._at(int(elements[element]))}has the {moment} {got:.4g} in the file and {own:.4g} in the model"
        return None


def _statistics(moment: str, rounds: torch.Tensor) -> torch.Tensor:
    """What of the standardized values is compared: file and model × rounds × features.

    ``rounds`` has file and model × rounds × runs of a round × elements.
    """
    if moment == "mean":
        return rounds.mean(2)
    if moment == "spread":
        return rounds.square().mean(2)
    waves = itertools.product((torch.sin, torch.cos), _FREQUENCIES)
    return torch.stack([wave(frequency * rounds).mean((2, 3)) for wave, frequency in waves], -1)


def _is_chance(features: torch.Tensor) -> bool:
    """Whether a difference between rounds of file and model is not among the rarest of all ways to swap them.

    The statistic is the squared length of the summed differences, for all 2**24 ways to swap the two rounds of each pair: the
    first half of the pairs and the second half are combined.
    """
    apart = features[0] - features[1]
    products = apart @ apart.T
    half, flips = ROUNDS // 2, _signs()
    first, second = (((flips @ block) * flips).sum(1) for block in (products[:half, :half], products[half:, half:]))
    observed = float(products.sum()) * (1 - 1e-9)
    allowed = FALSE_ALARMS / _TESTS * 2 ** (ROUNDS - 1)
    extreme = 0
    # To swap all pairs changes nothing, so the first half of the rows is enough.
    for rows, of_rows in zip(flips.chunk(64)[:32], first.chunk(64)[:32], strict=True):
        mixed = 2 * (rows @ products[:half, half:]) @ flips.T
        extreme += int((of_rows[:, None] + second + mixed >= observed).sum())
        if extreme > allowed:
            return True
    return False


@functools.cache
def _signs() -> torch.Tensor:
    """All ways to swap half of the pairs or not, as signs; the first one changes slowest."""
    return torch.tensor([*itertools.product((1.0, -1.0), repeat=ROUNDS // 2)], dtype=torch.float64)


def _values(sample: Sample) -> torch.Tensor:
    return sample.values.double()


def _summary(sample: Sample) -> torch.Tensor:
    """Of an output whose shape is random: its sizes, mean and spread."""
    values = _values(sample)
    moments = [values.mean(), values.std(correction=0)] if values.numel() else [values.sum(), values.sum()]
    return torch.tensor([*sample.shape, *moments], dtype=torch.float64)
