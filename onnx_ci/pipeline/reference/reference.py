"""The outputs of the eager model on one input, in its own data type and in float64, and their rounding error.

The difference between the two is the noise, the unit of every comparison. Outputs of untrained models can be of any size, so an
absolute tolerance would prove nothing. For a model that cannot run in float64, the noise is estimated by perturbation instead
(:func:`perturbed`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onnx_ci.onnx_model.precision import Precision
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.live_model import (
    Call,
    Outputs,
    PrepareError,
    WrappingMode,
    force_eager,
    has_noise,
    has_same_values,
    is_finite,
    is_higher_order,
    run,
    tensor_leaves,
    with_inputs,
)
from onnx_ci.pipeline.model.module import plain_weights_of, replace_weight, weights_of
from onnx_ci.pipeline.reference.channel_noise import ChannelNoise, channel_noise, largest_of_channels
from onnx_ci.pipeline.reference.own_decisions import RecordedDecisions
from onnx_ci.pipeline.reference.ties import OtherTies

PERTURBATIONS = 4
"""The number of perturbed runs that estimate the noise without float64."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The outputs of the eager model on one input. All tensors are on the CPU."""

    own: Outputs
    """The flattened outputs in the model's own data type."""
    exact: Outputs
    """The same in float64. Integers and booleans are those of ``own``."""
    noise: tuple[float, ...]
    """PyTorch's own rounding error in each output; 1 for integers and booleans."""
    channels: tuple[ChannelNoise | None, ...] = ()
    """The noise of the channels of each output if they differ in size; empty if it was not measured."""
    stable: Outputs
    """Which elements of each output can be compared. An element that depends on rounding errors cannot, such as an argmax of
    near ties or a comparison of almost equal values."""
    eps: float
    """The machine epsilon of the coarsest floating type in the computation."""
    method: str
    """How the noise was found: ``float64``, ``perturbation``, ``proportion`` (see :func:`proportional_reference`), or ``runtime
    rounding`` (see :mod:`~onnx_ci.pipeline.reference.runtime_rounding`); the name of a lower precision (see
    :func:`lowered_reference`); ``simulated float16`` or ``simulated int8`` after a lossy post-export stage. ``random`` for a
    random model, which has no exact values."""
    rounded_to: torch.dtype | None = None
    """The type to which the outputs may be rounded, of which half a unit is the least noise of each element; ``None`` for their
    own type."""
    is_lossy: bool = False
    """Whether the noise is that of a lossy post-export stage."""
    clipping: str | None = None
    """What a quantized file clips on the input: it was not calibrated for it, or one of its scales is too small."""
    decisions: RecordedDecisions | None = None
    """What the model decides in its own type, if :attr:`exact` follows from that because float64 decides otherwise."""
    undecided: Reference | None = None
    """If there are such :attr:`decisions`, the reference as float64 decides, with all that follows in its noise."""

    def is_noisy(self, position: int) -> bool:
        """Whether the noise of an output affects more than half of its digits."""
        output = self.own[position]
        if not has_noise(output):
            return False
        largest = largest_value(output)
        return largest > 0 and self.noise[position] > largest * max(self.eps, torch.finfo(output.dtype).eps) ** 0.5

    @property
    def is_too_noisy(self) -> bool:
        """Whether an output is: almost any file would pass a comparison in units of its noise."""
        return any(map(self.is_noisy, range(len(self.own))))

    def noise_of_elements(self, position: int) -> torch.Tensor:
        """The noise of each element of an output."""
        own = self.own[position]
        if self.channels and (channels := self.channels[position]) is not None:
            return channels.spread_over(own)
        noise = torch.full(own.shape, self.noise[position], dtype=torch.float64)
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
        if channels is not None and (channels.axis, channels.count) == (like.axis, like.count):
            return channels.noise
        return torch.tensor(self.noise[position], dtype=torch.float64)


class _KeepFloat64(WrappingMode):
    """Replaces casts to the model's own floating type (``x.float()``, ``dtype=torch.float32``) by casts to float64.

    Otherwise, a cast in the model's code would round within the exact reference, or mix two types and raise. A cast to a type
    that is coarser than the model's own is part of the model and is kept.
    """

    def __init__(self, coarsest: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._coarsest = coarsest
        self.coarser = 0.0
        """The machine epsilon of the half-precision type that the model casts to; 0 if it does not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Operators take a data type as a separate argument, never nested.
        kwargs = {name: self._widened(value) for name, value in kwargs.items()} if kwargs else {}
        if is_higher_order(func):
            args = self.wrapped(args)
        return func(*map(self._widened, args), **kwargs)

    def _widened(self, value: Any) -> Any:
        if not isinstance(value, torch.dtype) or not value.is_floating_point:
            return value
        eps = torch.finfo(value).eps
        if eps <= self._coarsest:
            return torch.float64
        if value in (torch.float16, torch.bfloat16):
            self.coarser = max(self.coarser, eps)
        return value


class _WatchAutocast(TorchFunctionMode):
    """Notes the half-precision type to which ``torch.autocast`` casts. It leaves float64 as it is, so no operator shows it."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type
        self.coarser = 0.0
        """The machine epsilon of that type; 0 if the model does not use autocast where it runs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_autocast_enabled(self._device_type):
            self.coarser = max(self.coarser, torch.finfo(torch.get_autocast_dtype(self._device_type)).eps)
        return func(*args, **(kwargs or {}))


def coarsest_eps(call: Call) -> float:
    """The machine epsilon of the coarsest floating type among a call's weights and arguments."""
    tensors = [*weights_of(call.model), *tensor_leaves((call.args, call.kwargs))]
    return max((torch.finfo(t.dtype).eps for t in tensors if has_noise(t)), default=torch.finfo(torch.float32).eps)


LOWERED_SHARE = 0.25
"""The noise of a lower precision is this share of the differences between perturbed runs, which move every number by as much as
rounding can. Files that are converted correctly differ by up to as much as those runs; files with a wrong scale, by more."""

FLOAT64_UNITS = 1024.0
"""The minimum noise of a float64 output, in units in the last place: exporters write Python numbers, such as the epsilon of
a normalization, as float32 even for a float64 model."""

UNSTABLE_SHARE = 0.1
"""The share of an output's elements that may depend on rounding errors; above it, no element is excluded."""


def make_reference(copies: Copies, own: Outputs, inputs: Sequence[torch.Tensor] | None = None) -> Reference:
    """The reference of a model on ``inputs``, or on the recipe's example; ``own`` are its outputs in its own type."""
    exact, coarser = run_in_float64(copies, own, inputs)
    eps = max(coarsest_eps(copies.pristine), copies.eps, coarser)

    def fresh() -> Call:
        return copies.fresh() if inputs is None else with_inputs(copies.fresh(), inputs)

    reference = reference_from(own, exact, lambda: _perturbed_runs(fresh, own), eps=eps, coarser=coarser)
    if exact is None or not reference.is_too_noisy:
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


def random_reference(copies: Copies, own: Outputs) -> Reference:
    """The reference of a random model, which has no exact values; ``own`` are the outputs of one run."""
    return Reference(
        own=own,
        exact=own,
        noise=tuple(map(unit_in_last_place, own)),
        stable=tuple(torch.zeros(tensor.shape, dtype=torch.bool) for tensor in own),
        eps=max(coarsest_eps(copies.pristine), copies.eps),
        method="random",
    )


def reference_from(
    own: Outputs, exact: Outputs | None, perturbed: Callable[[], Sequence[Outputs]], *, eps: float, coarser: float = 0.0
) -> Reference:
    """The reference made of several runs.

    Args:
        own: the outputs in the own data type.
        exact: those in float64, or ``None`` if there are none.
        perturbed: computes those of perturbed runs, if they are needed.
        eps: the machine epsilon of the coarsest floating type in the computation.
        coarser: that of the coarsest type that is cast to, or 0.
    """
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
    """``like`` with the noise of a lower precision.

    Args:
        runs: outputs of runs that are perturbed at that precision.
        share: the share of their differences that is noise.
    """
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


def runs_at_precision(
    fresh: Callable[[], Call], inputs: Sequence[torch.Tensor], like: Reference, precision: Precision
) -> list[Outputs]:
    """The outputs of a model on ``inputs`` with its numbers perturbed by steps of a lower precision."""
    return _perturbed_runs(lambda: with_inputs(fresh(), inputs), like.own, precision)


_QUANTIZED_SHARE = 1 / 16
"""The share of the differences between perturbed runs that is the noise of a quantized file, beside that of its activations."""
_JITTERED_SHARE = 1 / 8
"""The share of the differences between jittered runs that is noise: they move activations by more than rounding does."""


def quantized_reference(
    like: Reference, runs: Sequence[Outputs], still: Outputs, jittered: Sequence[Sequence[torch.Tensor]], precision: Precision
) -> Reference:
    """``like`` with the noise of a quantized file, which alone knows the steps of its activations.

    Args:
        like: the reference of the file.
        runs: outputs of what ``like`` is the reference of, perturbed at the file's precision.
        still: the outputs of the file.
        jittered: the same with its activations moved by a step, several times; none if only its weights are quantized.
        precision: the precision of the file.
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


def with_noise_of(like: Reference, simulated: Sequence[Outputs | None], method: str) -> Reference:
    """``like`` with the noise of runs in float64 in which something is rounded as in the file.

    Args:
        simulated: the outputs of these runs; ``None`` for one that failed.
        method: what the noise is called.
    """
    noise, stable, channels = list(like.noise), list(like.stable), list(like.channels)
    for outputs in simulated:
        for position, output in enumerate(outputs or ()):
            own = like.own[position]
            if has_noise(own):
                difference = output.double() - like.exact[position].double()
                noise[position] = max(noise[position], largest_value(difference))
                if channels and (of_channels := channels[position]) is not None:
                    channels[position] = of_channels.at_least(largest_of_channels(difference, of_channels.axis))
            else:
                stable[position] = stable[position] & (output.to(own.dtype) == own)
    return replace(like, noise=tuple(noise), stable=tuple(stable), channels=tuple(channels), method=method)


def with_perturbation(copies: Copies, like: Reference, inputs: Sequence[torch.Tensor]) -> Reference:
    """``like`` with the noise of runs with perturbed weights, too.

    The rounding of an ill-conditioned model is one draw from a wide distribution, and that of a runtime is another one. The
    inputs are not perturbed, because special values are meant exactly: half of the ties that are rounded would jump.
    """
    runs = _perturbed_runs(lambda: with_inputs(copies.fresh(), inputs), like.own, weights_only=True)
    return with_noise_of(like, runs, "perturbation")


def proportional_reference(own: Outputs, like: Reference) -> Reference | None:
    """A reference without a run in float64: the model's own outputs, with the noise on another input in proportion to sizes.

    The noise is doubled, because the reference itself has a rounding error. All integers have to be equal, also those that
    depend on rounding errors. A file that passes needs no more. After a failure, use :func:`make_reference`.

    Returns:
        ``None`` if the noise of ``like`` is not from float64, elements of it depend on rounding errors, or it is of another
        number of outputs.
    """
    if like.method != "float64" or not all(bool(stable.all()) for stable in like.stable) or len(own) != len(like.own):
        return None
    noise = [
        _noise_in_proportion(tensor, measured, noise_of_measured) if has_noise(tensor) else unit_in_last_place(tensor)
        for tensor, measured, noise_of_measured in zip(own, like.own, like.noise, strict=True)
    ]
    channels = (
        each.in_proportion(measured, tensor, of_whole) if each and each.fits(tensor) else None
        for each, measured, tensor, of_whole in zip(like.channels, like.own, own, noise, strict=bool(like.channels))
    )
    return Reference(
        own=own,
        exact=tuple(tensor.double() if has_noise(tensor) else tensor for tensor in own),
        noise=tuple(noise),
        channels=tuple(channels),
        stable=tuple(torch.ones(tensor.shape, dtype=torch.bool) for tensor in own),
        eps=like.eps,
        method="proportion",
    )


def _noise_in_proportion(tensor: torch.Tensor, measured: torch.Tensor, noise: float) -> float:
    """Twice the noise of a tensor, if ``noise`` is that of the same output on another input."""
    size = largest_value(measured)
    return 2 * max(noise / size * largest_value(tensor) if size else 0.0, unit_in_last_place(tensor))


def largest_value(tensor: torch.Tensor) -> float:
    """The largest finite absolute value; 0 if there is none."""
    finite = tensor.double()[is_finite(tensor)].abs()  # torch 2.9 has no index for 8-bit floats
    return finite.max().item() if finite.numel() else 0.0


def _exact_or_own(own: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The values in float64, or the model's own where float64 has another limit or is not finite.

    The limits of a type differ from those of float64, such as ``torch.finfo(x.dtype).min`` in a mask.
    """
    if not has_noise(own):
        return own
    is_at_limit = own.abs() >= torch.finfo(own.dtype).max / 2
    return torch.where(torch.isfinite(own) & (is_at_limit | ~torch.isfinite(exact)), own.double(), exact.double())


class _Measured(NamedTuple):
    """What several runs show about the rounding of one output."""

    noise: float
    stable: torch.Tensor
    channels: ChannelNoise | None


def _measured(own: torch.Tensor, others: Sequence[torch.Tensor], eps: float) -> _Measured:
    """The noise of an output, and which of its elements can be compared.

    Elements that jump when rounding changes, such as a sign, a step or an index near a tie, are excluded as long as they are
    few.

    Args:
        own: the output in the model's own type.
        others: the same output of other runs.
        eps: the machine epsilon of the coarsest floating type in the computation.
    """
    if not has_noise(own):
        is_same = torch.ones(own.shape, dtype=torch.bool)
        for other in others:
            is_same &= other.to(own.dtype) == own
        return _Measured(unit_in_last_place(own), is_same, None)
    spread = torch.zeros(own.shape, dtype=torch.float64)
    for other in others:
        difference = (own.double() - _exact_or_own(own, other)).abs()
        spread = torch.maximum(spread, torch.where(torch.isfinite(difference), difference, 0.0))
    unstable = spread > largest_value(own) * max(eps, torch.finfo(own.dtype).eps) ** 0.5
    if float(unstable.double().sum()) > UNSTABLE_SHARE * max(1, own.numel()):
        unstable = torch.zeros_like(unstable)
    steady = torch.where(unstable, 0.0, spread)
    noise = max(steady.max().item() if steady.numel() else 0.0, unit_in_last_place(own))
    return _Measured(noise, ~unstable, channel_noise(own, steady, noise))


def _plain(call: Call) -> AbstractContextManager[object]:
    return contextlib.nullcontext()


def run_in_float64(
    copies: Copies,
    own: Outputs,
    inputs: Sequence[torch.Tensor] | None,
    within: Callable[[Call], AbstractContextManager[object]] = _plain,
    decisions: RecordedDecisions | None = None,
) -> tuple[Outputs | None, float]:
    """The outputs in float64, or ``None`` if the model cannot run in float64 or returns other shapes.

    The second value is the machine epsilon of the coarsest type that the model casts to, or 0.

    Args:
        copies: the model.
        own: its outputs in its own type.
        inputs: other inputs than the example's.
        within: gets the call, which it may change, and returns the context in which the call runs. It is called again if a
            large model has to run with all weights converted at once.
        decisions: what the model decides in its own type. The run repeats these decisions; if that is impossible, there are no
            outputs.
    """
    exact, coarser = _run_in_float64(copies, own, inputs, within, decisions)
    if (exact is None or _has_new_nan(exact, own)) and copies.convert_at_once():
        exact, coarser = _run_in_float64(copies, own, inputs, within, decisions)
    return exact, coarser


def _has_new_nan(exact: Outputs, own: Outputs) -> bool:
    """Whether numbers are missing, because the model has read a weight without an operator."""
    return any(bool((a.isnan() & ~b.isnan()).any()) for a, b in zip(exact, own, strict=True) if has_noise(b))


def _run_in_float64(
    copies: Copies,
    own: Outputs,
    inputs: Sequence[torch.Tensor] | None,
    within: Callable[[Call], AbstractContextManager[object]],
    decisions: RecordedDecisions | None,
) -> tuple[Outputs | None, float]:
    mode, autocast = _KeepFloat64(coarsest_eps(copies.pristine)), _WatchAutocast(_device_type(copies.pristine))
    default_dtype = torch.get_default_dtype()
    try:
        with copies.in_float64(inputs) as call:  # before the default type changes: it may rebuild the model
            torch.set_default_dtype(torch.float64)
            with force_eager(), autocast, mode, within(call), decisions.replayed() if decisions else contextlib.nullcontext():
                exact = run(call)
    except Exception:  # the model, and converting it to another type, can raise anything
        return None, max(mode.coarser, autocast.coarser)
    finally:
        torch.set_default_dtype(default_dtype)
    return (exact if same_shapes(exact, own) else None), max(mode.coarser, autocast.coarser)


def _device_type(call: Call) -> str:
    """The type of the device on which a call runs."""
    tensors = [*weights_of(call.model), *tensor_leaves((call.args, call.kwargs))]
    return next((tensor.device.type for tensor in tensors), "cpu")


def run_within(
    copies: Copies,
    own: Outputs,
    inputs: Sequence[torch.Tensor] | None,
    within: Callable[[Call], AbstractContextManager[object]],
    decisions: RecordedDecisions | None = None,
) -> Outputs | None:
    """The outputs in float64, or in the model's own type if it cannot run in float64; ``None`` if the model fails.

    The arguments are those of :func:`run_in_float64`.
    """
    exact, _ = run_in_float64(copies, own, inputs, within, decisions)
    if exact is not None or decisions is not None:
        return exact
    call = copies.running(inputs)
    try:
        with within(call):
            outputs = run(call)
    except PrepareError:
        return None
    return outputs if same_shapes(outputs, own) else None


def same_shapes(first: Outputs, second: Outputs) -> bool:
    """Whether two runs return as many outputs, of the same shapes."""
    return [tensor.shape for tensor in first] == [tensor.shape for tensor in second]


AT_ONCE = 2**22
"""How many numbers are perturbed at a time, which takes several times their memory."""


def perturbed(tensor: torch.Tensor, generator: torch.Generator, precision: Precision | None = None) -> torch.Tensor:
    """``tensor`` with each number moved up or down at random, by half a step of a precision.

    Args:
        precision: the precision; by default that of the tensor's own type.
    """
    if not has_noise(tensor):
        return tensor
    if tensor.numel() > AT_ONCE and len(tensor) > 1 and (precision is None or not precision.is_uniform):
        moved, rows = torch.empty_like(tensor), max(1, AT_ONCE // tensor[0].numel())
        for part, place in zip(torch.split(tensor, rows), torch.split(moved, rows), strict=True):
            place.copy_(perturbed(part, generator, precision))
        return moved
    signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype) * 2 - 1
    if precision is None:
        return tensor + tensor * signs * (torch.finfo(tensor.dtype).eps / 2)
    if not precision.is_uniform:
        return tensor + tensor * signs * (precision.eps / 2)
    # Only matrices are quantized; vectors, such as biases and variances, are not.
    return tensor + signs * (largest_value(tensor) * precision.eps / 2) if tensor.dim() > 1 else tensor


def _perturbed_runs(
    fresh: Callable[[], Call], own: Outputs, precision: Precision | None = None, *, weights_only: bool = False
) -> list[Outputs]:
    """The outputs of several runs, each with every weight and input perturbed by half a unit in its last place.

    This is stochastic arithmetic (Vignes, 1993; Parker, 1997) applied to the inputs: in a backward stable algorithm, rounding
    errors have the same effect as perturbations of the inputs of that size. Integers are not perturbed, but the order of equal
    values differs from run to run.

    Args:
        fresh: returns a new call to run.
        own: the outputs of an unperturbed run.
        precision: the precision whose steps perturb; by default that of each tensor's own type.
        weights_only: whether the inputs are left as they are.
    """
    generator = torch.Generator().manual_seed(0)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return perturbed(tensor, generator, precision)

    runs = []
    for number in range(PERTURBATIONS):
        call = fresh()
        with torch.no_grad():
            for weight in plain_weights_of(call.model):
                replace_weight(weight, moved(weight))
            args, kwargs = call.args, call.kwargs
            if not weights_only:
                args, kwargs = pytree.tree_map_only(torch.Tensor, moved, (args, kwargs))
        try:
            with force_eager(), OtherTies(is_rotated=number % 2 == 1):
                outputs = run(Call(model=call.model, args=args, kwargs=kwargs))
        except PrepareError:  # a perturbed input can be invalid: the other runs decide
            continue
        if same_shapes(outputs, own):
            runs.append(outputs)
    return runs


def unit_in_last_place(tensor: torch.Tensor) -> float:
    """The spacing of floating-point numbers at the tensor's largest finite value; 1 for integers and booleans."""
    if not tensor.is_floating_point():
        return 1.0
    info = torch.finfo(tensor.dtype)
    exponent = torch.frexp(torch.tensor(max(largest_value(tensor), info.tiny), dtype=torch.float64)).exponent.item() - 1
    units = FLOAT64_UNITS if tensor.dtype == torch.float64 else 1.0
    return float(units * info.eps * 2.0**exponent)
