"""The outputs of the eager model on one input, in its own data type and in float64, and their rounding error.

The difference between the two is the noise, the unit of every comparison. Outputs of untrained models can be of any size, so an
absolute tolerance would prove nothing. For a model that cannot run in float64, the noise is estimated by perturbation instead
(:mod:`.perturbation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from onnx_ci.onnx_model.precision import Precision
from onnx_ci.pipeline.model.call import Call, PrepareError, with_inputs
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.running import force_eager, run
from onnx_ci.pipeline.model.tensors import (
    Outputs,
    blocks,
    has_noise,
    has_same_values,
    is_all_finite,
    is_finite,
    largest_value,
    same_shapes,
)
from onnx_ci.pipeline.reference.channel_noise import ChannelNoise, channel_noise, channels_apart, largest_of_channels
from onnx_ci.pipeline.reference.float64 import coarsest_eps, run_in_float64
from onnx_ci.pipeline.reference.own_decisions import RecordedDecisions
from onnx_ci.pipeline.reference.perturbation import QUANTIZED_EPS, moved_by_steps, perturbed_runs


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The outputs of the eager model on one input. All tensors are on the CPU."""

    own: Outputs
    """The flattened outputs in the model's own data type."""
    exact: Outputs
    """The same in float64. Integers and booleans are those of ``own``, and so is all of a ``proportion``."""
    noise: tuple[float, ...]
    """PyTorch's own rounding error in each output; 1 for integers and booleans."""
    channels: tuple[ChannelNoise | None, ...] = ()
    """The noise of the channels of each output if they differ in size; empty if it was not measured."""
    stable: Outputs
    """Which elements of each output can be compared: not those that follow from rounding, such as an argmax of near ties."""
    eps: float
    """The machine epsilon of the coarsest floating type in the computation."""
    method: str
    """How the noise was found: ``float64``, ``perturbation``, ``proportion``, ``runtime rounding``; by a lower precision; as
    ``simulated float16`` or ``simulated int8`` after a lossy post-export pass; ``random``, for a model without exact values."""
    rounded_to: torch.dtype | None = None
    """The type to which outputs may be rounded, if not their own: half a unit of it is the least noise of each element."""
    is_lossy: bool = False
    """Whether the noise is that of a lossy post-export pass."""
    clipping: str | None = None
    """What a quantized file clips on the input: it was not calibrated for it, or one of its scales is too small."""
    decisions: RecordedDecisions | None = None
    """What the model decides in its own type, if :attr:`exact` follows from that because float64 decides otherwise."""
    undecided: Reference | None = None
    """If there are such :attr:`decisions`, the reference as float64 decides, with all that follows in its noise."""

    def is_noisy(self, position: int) -> bool:
        """Whether the noise of an output affects more than half of its digits, or of those of float32 if it has more."""
        output = self.own[position]
        if not has_noise(output):
            return False
        largest, types = largest_value(output), (output.dtype, torch.float32)
        return largest > 0 and self.noise[position] > largest * max(self.eps, *(torch.finfo(each).eps for each in types)) ** 0.5

    @property
    def is_too_noisy(self) -> bool:
        """Whether an output is: almost any file would pass a comparison in units of its noise."""
        return any(map(self.is_noisy, range(len(self.own))))

    @property
    def is_comparable(self) -> bool:
        """Whether an output has finite numbers, and its noise is not as large as these."""
        return any(
            bool(is_finite(own).any()) and not (has_noise(own) and 0 < largest_value(own) <= noise)
            for own, noise in zip(self.own, self.noise, strict=True)
        )

    def noise_of_elements(self, position: int) -> torch.Tensor:
        """The noise of each element of an output."""
        own = self.own[position]
        if self.channels and (channels := self.channels[position]) is not None:
            return channels.spread_over(own)
        noise = torch.tensor(self.noise[position], dtype=torch.float64).expand(own.shape)
        if self.rounded_to is None or not has_noise(own):
            return noise
        info = torch.finfo(self.rounded_to)
        size = self.exact[position].double().abs().nan_to_num(posinf=0.0).clamp(min=info.smallest_normal)
        return torch.maximum(noise, size * info.eps / 2)

    def with_noise_of_at_least(self, other: Reference) -> Reference:
        """The same, except that the noise of each output is at least that on another input."""
        channels = (
            each and each.at_least(other.noise_of_channels(position, each)) for position, each in enumerate(self.channels)
        )
        return replace(self, noise=tuple(map(max, self.noise, other.noise)), channels=tuple(channels))

    def noise_of_channels(self, position: int, like: ChannelNoise) -> torch.Tensor:
        """The noise of an output for channels like those of another reference; one number if it has no such channels."""
        channels = self.channels[position] if self.channels else None
        if channels is not None and (channels.axis, len(channels.noise)) == (like.axis, len(like.noise)):
            return channels.noise
        return torch.tensor(self.noise[position], dtype=torch.float64)


LOWERED_SHARE = 0.25
"""The noise of a lower precision is this share of the differences between perturbed runs: right files differ by as much."""
FLOAT64_UNITS = 1024.0
"""The minimum noise of a float64 output, in units in the last place: exporters write Python numbers as float32 even there."""
UNSTABLE_SHARE = 0.1
"""The share of an output's elements that may depend on rounding errors; above it, no element is excluded."""


def make_reference(copies: Copies, own: Outputs, inputs: Sequence[torch.Tensor] | None = None) -> Reference:
    """The reference of a model on ``inputs``, or on the recipe's example; ``own`` are its outputs in its own type."""
    exact, coarser = run_in_float64(copies, own, inputs)
    eps = max(coarsest_eps(copies.pristine), copies.eps, coarser)

    def fresh() -> Call:
        return copies.fresh() if inputs is None else with_inputs(copies.fresh(), inputs)

    reference = reference_from(
        own, exact, lambda: perturbed_runs(fresh, own, is_watchable=copies.is_watchable), eps=eps, coarser=coarser
    )
    if exact is None:
        moved = moved_by_steps(fresh(), own) if copies.is_watchable else None
        if moved is None:
            return reference
        return replace(with_noise_of(reference, [moved], reference.method), eps=max(eps, QUANTIZED_EPS))
    if not reference.is_too_noisy:
        return reference
    decisions = _own_decisions(copies, own, inputs, eps)
    replayed, _ = run_in_float64(copies, own, inputs, decisions=decisions) if decisions else (None, 0.0)
    if decisions is None or replayed is None or not decisions.are_replaced:
        return reference
    # Perturbed runs decide otherwise, too. They have shown which integers are stable.
    decided = reference_from(own, replayed, lambda: (), eps=eps, coarser=coarser)
    if decided.is_too_noisy:
        return reference
    stable = tuple(a & b for a, b in zip(decided.stable, reference.stable, strict=True))
    return replace(decided, stable=stable, decisions=decisions, undecided=reference)


def _own_decisions(copies: Copies, own: Outputs, inputs: Sequence[torch.Tensor] | None, eps: float) -> RecordedDecisions | None:
    """What the model decides in its own type; ``None`` if it does not compute the same again."""
    decisions = RecordedDecisions(eps)
    try:
        with force_eager(), decisions:
            again = run(copies.running(inputs))
    except PrepareError:
        return None
    return decisions if same_shapes(again, own) and all(map(has_same_values, again, own)) else None


def reference_from(
    own: Outputs, exact: Outputs | None, perturbed: Callable[[], Sequence[Outputs]], *, eps: float, coarser: float = 0.0
) -> Reference:
    """The reference made of several runs, of which ``perturbed`` computes further ones, if they are needed."""
    # Perturbation replaces float64 if that is the model's own type, too, and shows which integers depend on rounding.
    float64_suffices = all(has_noise(tensor) and tensor.dtype != torch.float64 for tensor in own)
    runs = [] if exact is None else [exact]
    if exact is None or not float64_suffices:
        runs += perturbed()
    measured = [_measured(tensor, [outputs[position] for outputs in runs], eps) for position, tensor in enumerate(own)]
    best = own if exact is None else tuple(_exact_or_own(a, b) for a, b in zip(own, exact, strict=True))
    return Reference(
        own=own,
        exact=tuple(b.double() if has_noise(a) else a for a, b in zip(own, best, strict=True)),
        # A runtime may keep a higher precision where the model casts to a coarser type.
        noise=tuple(
            max(rounding.noise, coarser * largest_value(tensor)) if has_noise(tensor) else rounding.noise
            for rounding, tensor in zip(measured, own, strict=True)
        ),
        channels=tuple(
            rounding.channels and rounding.channels.at_least(coarser * largest_of_channels(tensor, rounding.channels.axis))
            for rounding, tensor in zip(measured, own, strict=True)
        ),
        eps=eps,
        stable=tuple(each.stable for each in measured),
        method="perturbation" if exact is None else "float64",
    )


def spread(tensor: torch.Tensor) -> float:
    """How far values are from their mean; of a single value, its size."""
    finite = tensor.double()[is_finite(tensor)]  # torch 2.9 has no index for 8-bit floats
    if not finite.numel():
        return 0.0
    return float((finite - finite.mean()).abs().max() if finite.numel() > 1 else finite.abs().max())


def lowered_reference(
    like: Reference, runs: Sequence[Outputs], precision: Precision, *, share: float = LOWERED_SHARE
) -> Reference:
    """``like`` with the noise of a lower precision: a ``share`` of the differences between ``runs`` perturbed at it."""
    measured = [
        _measured(tensor, [outputs[position] for outputs in runs], precision.eps) for position, tensor in enumerate(like.own)
    ]
    return replace(
        like,
        noise=tuple(max(share * each.noise, noise) for each, noise in zip(measured, like.noise, strict=True)),
        channels=(),
        rounded_to=None if precision.is_uniform else getattr(torch, precision.name),
        stable=tuple(each.stable & stable for each, stable in zip(measured, like.stable, strict=True)),
        eps=max(like.eps, precision.eps),
        method=precision.name,
    )


_QUANTIZED_SHARE = 1 / 16
"""The share of the differences between perturbed runs that is the noise of a quantized file, beside that of its activations."""
_JITTERED_SHARE = 1 / 8
"""The share of the differences between jittered runs that is noise: they move activations by more than rounding does."""


def quantized_reference(
    like: Reference, runs: Sequence[Outputs], still: Outputs, jittered: Sequence[Sequence[torch.Tensor]], precision: Precision
) -> Reference:
    """``like`` with the noise of a quantized file, which alone knows the steps of its activations.

    It follows from runs perturbed at the file's precision, and from ``jittered`` ones, beside a ``still`` one, with activations
    moved by a step: none if only weights are quantized.
    """
    moved = [
        tuple(
            own + (new.double() - old.double()) if has_noise(own) else own
            for own, old, new in zip(like.own, still, outputs, strict=True)
        )
        for outputs in jittered
        if same_shapes(tuple(outputs), like.own)
    ]
    if not moved:
        return lowered_reference(like, runs, precision)
    lowered = lowered_reference(like, runs, precision, share=_QUANTIZED_SHARE)
    return lowered_reference(lowered, moved, precision, share=_JITTERED_SHARE)


def with_noise_of(
    like: Reference, simulated: Sequence[Outputs | None], method: str, *, unrounded: Outputs | None = None
) -> Reference:
    """``like`` with the noise of simulated runs in float64 that round as the file does: ``None`` for one that failed.

    They are compared with the outputs of one that is ``unrounded``, if these are not those of ``like``.
    """
    exact = like.exact if unrounded is None else unrounded
    noise, stable, channels = list(like.noise), list(like.stable), list(like.channels)
    for outputs in simulated:
        for position, output in enumerate(outputs or ()):
            own = like.own[position]
            if has_noise(own):
                difference = output.double() - exact[position].double()
                noise[position] = max(noise[position], largest_value(difference))
                if channels and (of_channels := channels[position]) is not None:
                    channels[position] = of_channels.at_least(largest_of_channels(difference, of_channels.axis))
            else:
                stable[position] = stable[position] & (output.to(own.dtype) == exact[position].to(own.dtype))
    return replace(like, noise=tuple(noise), stable=tuple(stable), channels=tuple(channels), method=method)


def with_perturbation(copies: Copies, like: Reference, inputs: Sequence[torch.Tensor]) -> Reference:
    """``like`` with the noise of runs with perturbed weights, too.

    The rounding of an ill-conditioned model is one draw from a wide distribution, and that of a runtime is another one. The
    inputs are not perturbed, because special values are meant exactly: half of the ties that are rounded would jump.
    """
    runs = perturbed_runs(
        lambda: with_inputs(copies.fresh(), inputs), like.own, weights_only=True, is_watchable=copies.is_watchable
    )
    return with_noise_of(like, runs, "perturbation")


def proportional_reference(own: Outputs, like: Reference) -> Reference | None:
    """A reference without a run in float64: the model's own outputs, with the noise on another input in proportion to sizes.

    The noise is doubled, because the reference itself has a rounding error. All integers have to be equal, also those that
    depend on rounding errors. A file that passes needs no more. After a failure, use :func:`make_reference`. ``None`` if the
    noise of ``like`` is not from float64, elements of it depend on rounding errors, or it is of another number of outputs.
    """
    if like.method != "float64" or not all(bool(stable.all()) for stable in like.stable) or len(own) != len(like.own):
        return None
    noise = [unit_in_last_place(tensor) * (2 if has_noise(tensor) else 1) for tensor in own]
    for position, (tensor, measured) in enumerate(zip(own, like.own, strict=True)):
        if has_noise(tensor) and (size := largest_value(measured)):
            noise[position] = max(noise[position], 2 * like.noise[position] / size * largest_value(tensor))
    channels = (
        each and each.in_proportion(measured, tensor, of_whole)
        for each, measured, tensor, of_whole in zip(like.channels, like.own, own, noise, strict=bool(like.channels))
    )
    return Reference(
        own=own,
        exact=own,
        noise=tuple(noise),
        channels=tuple(channels),
        stable=tuple(map(_all_stable, own)),
        eps=like.eps,
        method="proportion",
    )


def _exact_or_own(own: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The values in float64, or the model's own at its type's limits, such as ``finfo(x.dtype).min``, and where not finite."""
    if not has_noise(own):
        return own
    if is_all_finite(own) and is_all_finite(exact) and largest_value(own) < torch.finfo(own.dtype).max / 2:
        return exact.double()
    is_at_limit = own.abs() >= torch.finfo(own.dtype).max / 2
    return torch.where(torch.isfinite(own) & (is_at_limit | ~torch.isfinite(exact)), own.double(), exact.double())


class _Measured(NamedTuple):
    """What several runs show about the rounding of one output."""

    noise: float
    stable: torch.Tensor
    channels: ChannelNoise | None


def _measured(own: torch.Tensor, others: Sequence[torch.Tensor], eps: float) -> _Measured:
    """The noise of an output, and which of its elements can be compared, in a computation of this precision.

    Elements that jump when rounding changes, such as a sign, a step or an index near a tie, are excluded as long as they are
    few.
    """
    if not has_noise(own):
        is_same = torch.ones(own.shape, dtype=torch.bool)
        for other in others:
            is_same &= other.to(own.dtype) == own
        return _Measured(unit_in_last_place(own), is_same, None)
    others = [_exact_or_own(own, other) for other in others]
    unit = unit_in_last_place(own)
    most_of_stable = largest_value(own) * max(eps, torch.finfo(own.dtype).eps) ** 0.5
    noise = max([unit, *(largest_value(part.double() - moved) for each in others for _, (part, moved) in blocks((own, each)))])
    if noise <= most_of_stable and channels_apart(own) is None:
        return _Measured(noise, _all_stable(own), None)
    spread = torch.zeros(own.shape, dtype=torch.float64)
    for other in others:
        difference = (own.double() - other).abs()
        spread = torch.maximum(spread, torch.where(torch.isfinite(difference), difference, 0.0))
    unstable = spread > most_of_stable
    if float(unstable.double().sum()) > UNSTABLE_SHARE * max(1, own.numel()):
        unstable = torch.zeros_like(unstable)
    steady = torch.where(unstable, 0.0, spread)
    noise = max(steady.max().item() if steady.numel() else 0.0, unit)
    return _Measured(noise, ~unstable, channel_noise(own, steady, noise))


def _all_stable(own: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=torch.bool).expand(own.shape)  # takes no memory


def unit_in_last_place(tensor: torch.Tensor) -> float:
    """The spacing of floating-point numbers at the tensor's largest finite value; 1 for integers and booleans."""
    if not tensor.is_floating_point():
        return 1.0
    info = torch.finfo(tensor.dtype)
    exponent = torch.frexp(torch.tensor(max(largest_value(tensor), info.tiny), dtype=torch.float64)).exponent.item() - 1
    units = FLOAT64_UNITS if tensor.dtype == torch.float64 else 1.0
    return float(units * info.eps * 2.0**exponent)
