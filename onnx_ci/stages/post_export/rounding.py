"""The rounding of a lossy stage, simulated: the eager model runs in float64 under a mode that rounds as the stage does.

Half precision rounds weights, inputs and the outputs of every operator. The quantizer of ONNX Runtime rounds what the
operators that it knows take and return to 256 steps; the difference between its two ways is where the range of an
activation comes from.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from onnx_ci.collection.post_export import PostExportStage
from onnx_ci.stages.model.live_model import Call, OperatorMode, has_noise, in_small_operators, tensor_leaves

aten = torch.ops.aten

Within = Callable[[Call], AbstractContextManager[object]]
"""For :func:`~onnx_ci.stages.reference.reference.run_in_float64`: gets the call and gives the context in which it runs."""

_LEAST = 1e-7
"""What convert_float_to_float16 replaces smaller positive constants by, such as the epsilon of a norm, which would become 0."""
_SMALLEST_EXPONENT = -13
"""As :func:`torch.frexp` counts, the exponent of float16's smallest normal number, 2**-14."""


class Dice:
    """Whether values are rounded to the nearest step, or up or down at random (stochastic rounding).

    Args:
        seed: of the random numbers; ``None`` for the nearest step.
    """

    def __init__(self, seed: int | None) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def like(self, tensor: torch.Tensor) -> torch.Tensor | float:
        """What to add before rounding to the nearest step, as a share of the step: random in [-0.5, 0.5), or 0."""
        if self._generator is None:
            return 0.0
        return torch.rand(tensor.shape, generator=self._generator, dtype=torch.float64).to(tensor.device) - 0.5


def round_to_float16(tensor: torch.Tensor, dice: Dice) -> torch.Tensor:
    """The tensor with its values rounded to those of float16, in its own type. Too large ones become infinite."""
    share = dice.like(tensor)
    if isinstance(share, torch.Tensor):
        exponent = torch.frexp(tensor).exponent.clamp(min=_SMALLEST_EXPONENT)
        finite = torch.isfinite(tensor)
        tensor = torch.where(finite, tensor + (share * torch.pow(2.0, exponent.double() - 11)).to(tensor.dtype), tensor)
    return tensor.to(torch.float16).to(tensor.dtype)


class _Rounding(OperatorMode):  # type: ignore[no-untyped-call]
    """The base of the simulations: what is rounded before and after each operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, tuple(args), dict(kwargs or {}))

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


def _is_mutable(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _replaced(func: Any, made: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What an operator returned with its floating tensors changed; in place, if the operator works in place."""

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if not has_noise(tensor) or not tensor.numel():
            return tensor
        return tensor.copy_(change(tensor)) if _is_mutable(func) else change(tensor)

    return made if getattr(func, "is_view", False) else pytree.tree_map_only(torch.Tensor, changed, made)


# --- float16 ----------------------------------------------------------------------------------------------------------


class _Float16(_Rounding):  # type: ignore[no-untyped-call]
    def __init__(self, dice: Dice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dice = dice

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = pytree.tree_map_only(float, _kept_from_zero, (args, kwargs))
        return _replaced(func, func(*args, **kwargs), lambda tensor: round_to_float16(tensor, self._dice))


def _kept_from_zero(number: float) -> float:
    return math.copysign(_LEAST, number) if 0 < abs(number) < _LEAST else number


def float16(seed: int | None) -> Within:
    """Half precision: for :func:`~onnx_ci.stages.reference.reference.run_in_float64`."""

    def within(call: Call) -> AbstractContextManager[object]:
        dice = Dice(seed)
        with torch.no_grad():
            for tensor in (*call.model.parameters(), *call.model.buffers(), *_tensors(call)):
                if has_noise(tensor) and tensor.numel():
                    tensor.data = round_to_float16(tensor.data, dice)
        return _Float16(dice)

    return within


def _tensors(call: Call) -> list[torch.Tensor]:
    return tensor_leaves((call.args, call.kwargs))


# --- int8 -------------------------------------------------------------------------------------------------------------

Ranges = dict[tuple[int, str], tuple[float, float]]
"""The least and the largest value of each activation: by the number of its operator, and its role in it."""

_LINEAR = (aten.convolution.default, aten.addmm.default, aten.mm.default, aten.linear.default)
_CONVOLUTION = aten.convolution.default
_NORMALIZATION = (
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit_no_training.default,
    aten.cudnn_batch_norm.default,
)
_ACTIVATIONS = (aten.relu.default, aten.relu_.default, aten.hardtanh.default, aten.hardtanh_.default, aten.clamp.default,
                aten.clamp_.default, aten.clamp_min.default)  # fmt: skip
"""What the quantizer merges into the operator before it (``Relu`` and ``Clip``)."""
_RESHAPING = frozenset(
    (aten.view.default, aten._unsafe_view.default, aten.transpose.int, aten.permute.default, aten.t.default,
     aten.unsqueeze.default, aten.squeeze.dim, aten.clone.default, aten.expand.default, aten.slice.Tensor, aten.select.int)
)  # fmt: skip
"""What leaves quantized numbers as they are."""
_STATIC = frozenset(
    (*_LINEAR, *_ACTIVATIONS, *_NORMALIZATION, aten.bmm.default, aten.baddbmm.default, aten.add.Tensor, aten.add_.Tensor,
     aten.mul.Tensor, aten.mul_.Tensor, aten.leaky_relu.default, aten.leaky_relu_.default, aten.sigmoid.default,
     aten.sigmoid_.default, aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default,
     aten.mean.dim, aten.cat.default, aten._softmax.default, aten.where.self, aten.constant_pad_nd.default,
     aten.native_layer_norm.default, aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec)
)  # fmt: skip
"""The operators that ``quantize_static`` converts by default (onnxruntime 1.31, ``quantization/registry.py``)."""


@dataclass
class Observations:
    """What one run in float64 shows about the operators of a model."""

    ranges: Ranges = field(default_factory=dict)
    scales: dict[int, torch.Tensor] = field(default_factory=dict)
    """For a convolution before a BatchNorm, the factors by which the exporters multiply its output channels."""
    merged: set[int] = field(default_factory=set)
    """Operators whose outputs are rounded only after the next one."""


class _Numbered(_Rounding):  # type: ignore[no-untyped-call]
    """Numbers the operators in the order in which they run, and knows what is constant and what a recurrent layer runs."""

    def __init__(self, call: Call) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0
        self._constants = WeakTensorKeyDictionary()
        for tensor in (*call.model.parameters(), *call.model.buffers()):
            self._constants[tensor] = True
        self.recurrent = 0
        self.is_lstm = False
        """Whether the recurrent layer that runs is one that ``quantize_dynamic`` converts."""

    def concatenated(self, tensor: torch.Tensor) -> torch.Tensor:
        """What becomes of the states that a recurrent layer of several layers returns. Counts as an operator."""
        self.number += 1
        return tensor

    def is_constant(self, value: object) -> bool:
        """Whether a value is a weight, or computed from weights only."""
        return not isinstance(value, torch.Tensor) or value in self._constants

    def note_constants(self, args: Any, made: Any) -> None:
        """Remember what an operator made of constants only."""
        are_constant = all(map(self.is_constant, pytree.tree_leaves(args)))
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and are_constant:
                self._constants[leaf] = True
            elif isinstance(leaf, torch.Tensor) and leaf in self._constants:  # changed in place
                del self._constants[leaf]


@contextlib.contextmanager
def _outside_recurrent_layers(call: Call, mode: _Numbered) -> Iterator[None]:
    """Tell ``mode`` while a recurrent layer runs: in the file it is one operator."""

    def enter(layer: nn.Module, _: object) -> None:
        mode.recurrent += 1
        mode.is_lstm = isinstance(layer, nn.LSTM)

    def leave(layer: nn.Module, _: object, made: Any) -> Any:
        mode.recurrent -= 1
        if layer.num_layers == 1:
            return made
        output, states = made  # in the file, the states of the layers are concatenated
        return output, pytree.tree_map_only(torch.Tensor, mode.concatenated, states)

    layers = [module for module in call.model.modules() if isinstance(module, nn.RNNBase)]
    hooks = [*(layer.register_forward_pre_hook(enter) for layer in layers)]
    hooks += [*(layer.register_forward_hook(leave) for layer in layers)]
    try:
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Observer(_Numbered):  # type: ignore[no-untyped-call]
    def __init__(self, call: Call, seen: Observations) -> None:
        super().__init__(call)
        self._seen = seen
        self._makers = WeakTensorKeyDictionary()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func not in _STATIC or self.recurrent:
            made = func(*args, **kwargs)
            self.note_constants((args, kwargs), made)
            return made
        self.number += 1
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        maker = self._makers[first] if first is not None and first in self._makers else None
        if maker is not None and func in _NORMALIZATION and maker[1] is _CONVOLUTION:
            weight, variance, eps = args[1], args[4], args[-1]
            factor = torch.rsqrt(variance + eps)
            self._seen.scales[maker[0]] = factor if weight is None else factor * weight
            self._seen.merged.add(maker[0])
        elif maker is not None and func in _ACTIVATIONS:
            self._seen.merged.add(maker[0])
        for position, tensor in enumerate(pytree.tree_leaves(args)):
            if isinstance(tensor, torch.Tensor) and not self.is_constant(tensor):
                self._note(f"in {position}", tensor)
        made = func(*args, **kwargs)
        self.note_constants((args, kwargs), made)
        for position, tensor in enumerate(pytree.tree_leaves(made)):
            if isinstance(tensor, torch.Tensor):
                self._note(f"out {position}", tensor)
                if position == 0:
                    self._makers[tensor] = (self.number, func)
        return made

    def concatenated(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record the range of the states."""
        super().concatenated(tensor)
        self._note("out 0", tensor)
        return tensor

    def _note(self, role: str, tensor: torch.Tensor) -> None:
        if has_noise(tensor) and tensor.numel():
            self._seen.ranges[self.number, role] = (float(tensor.min()), float(tensor.max()))


def observed(seen: Observations) -> Within:
    """A run that changes nothing and fills ``seen``: for :func:`~onnx_ci.stages.reference.reference.run_in_float64`."""
    return lambda call: _outside_recurrent_layers(call, _Observer(call, seen))


def merged_ranges(every: Sequence[Ranges]) -> Ranges:
    """The ranges that contain all of ``every``."""
    merged: Ranges = {}
    for ranges in every:
        for place, (least, largest) in ranges.items():
            known = merged.get(place, (least, largest))
            merged[place] = (min(known[0], least), max(known[1], largest))
    return merged


_BEYOND = 1e-3
"""By how much of its width a range may be left."""


def is_within(ranges: Ranges, calibrated: Ranges) -> bool:
    """Whether no activation leaves its calibrated range, which always contains zero."""
    for place, (least, largest) in ranges.items():
        low, high = (
            (min(0.0, calibrated[place][0]), max(0.0, calibrated[place][1])) if place in calibrated else (least, largest)
        )
        slack = _BEYOND * (high - low)
        if not (low - slack <= least and largest <= high + slack):
            return False
    return True


class _Int8(_Numbered):  # type: ignore[no-untyped-call]
    """Rounds weights and activations to 256 steps.

    Args:
        call: the call that will run.
        stage: the stage, for the types and whether weights have a scale for each channel.
        dice: how values are rounded.
        seen: an observed run of the same inputs.
        calibrated: the ranges of activations; ``None`` for those of the data.
    """

    def __init__(self, call: Call, stage: PostExportStage, dice: Dice, seen: Observations, calibrated: Ranges | None) -> None:
        super().__init__(call)
        self._options: Mapping[str, Any] = stage.options
        self._dice, self._seen, self._calibrated = dice, seen, calibrated
        self._quantized = WeakTensorKeyDictionary()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_static = self._calibrated is not None
        is_quantized = func in _STATIC and not self.recurrent
        if is_quantized:
            self.number += 1
            # The quantizer keeps an activation function as it is unless it quantizes what the function gets.
            is_quantized = func not in _ACTIVATIONS or args[0] in self._quantized
        given = args
        if func in _LINEAR and (not self.recurrent or (self.is_lstm and not is_static)):
            args = self._linear(func, args)
        elif func is aten.embedding.default and self.is_constant(args[0]):
            args = (self._weight(args[0], None, None), *args[1:])
        elif is_quantized and is_static:
            leaves, tree = pytree.tree_flatten(args)
            args = pytree.tree_unflatten([self._input(position, leaf) for position, leaf in enumerate(leaves)], tree)
            if _is_mutable(func):  # the result must be in the tensor that was given
                given[0].copy_(args[0])
                args = (given[0], *args[1:])
        made = func(*args, **kwargs)
        self.note_constants((given, kwargs), made)
        if is_quantized and is_static and self.number not in self._seen.merged:
            made = _replaced(func, made, self._output)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if is_quantized or (func in _RESHAPING and first is not None and first in self._quantized):
            for tensor in pytree.tree_leaves(made):
                if isinstance(tensor, torch.Tensor):
                    self._quantized[tensor] = True
        return made

    def concatenated(self, tensor: torch.Tensor) -> torch.Tensor:
        """The states as the static quantizer rounds them."""
        super().concatenated(tensor)
        if self._calibrated is None or not has_noise(tensor) or not tensor.numel():
            return tensor
        return self._fake(tensor, *(self._calibrated.get((self.number, "out 0")) or (float(tensor.min()), float(tensor.max()))))

    def _linear(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a convolution or matrix product, rounded: activations only if they meet a weight."""
        at = 1 if func is aten.addmm.default else 0
        one, other = args[at], args[at + 1]
        if self.is_constant(one) or not self.is_constant(other):
            if self._calibrated is None:
                return args
            return tuple(self._input(position, each) for position, each in enumerate(args))
        channels = {_CONVOLUTION: 0, aten.linear.default: 0}.get(func, -1)
        scale = self._seen.scales.get(self.number) if func is _CONVOLUTION and not self.recurrent else None
        activation = self._range(f"in {at}", one)
        rounded = [*args]
        rounded[at] = self._fake(one, *activation)
        rounded[at + 1] = self._weight(other, channels, scale)
        return tuple(rounded)

    def _range(self, role: str, tensor: torch.Tensor) -> tuple[Any, Any]:
        known = (self._calibrated or {}).get((self.number, role)) if not self.recurrent else None
        return known or (float(tensor.min()), float(tensor.max()))

    def _input(self, position: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not has_noise(value) or not value.numel() or self.is_constant(value):
            return value
        return self._fake(value, *self._range(f"in {position}", value))

    def _output(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._fake(tensor, *self._range("out 0", tensor))

    def _weight(self, weight: torch.Tensor, channels: int | None, scale: torch.Tensor | None) -> torch.Tensor:
        """A weight, rounded as the file's: after the multiplication by what follows it, for a BatchNorm.

        Args:
            weight: the weight.
            channels: its axis of output channels.
            scale: the factor of each channel.
        """
        if not weight.numel():
            return weight
        axis = None if channels is None else channels % weight.dim()
        factor = None
        if scale is not None and axis is not None:
            factor = scale.to(weight.dtype).reshape([-1 if each == axis else 1 for each in range(weight.dim())])
            weight = weight * factor
        by_channel = bool(self._options.get("per_channel")) and axis is not None
        others = [each for each in range(weight.dim()) if each != axis]
        low, high = (weight.amin(others, keepdim=True), weight.amax(others, keepdim=True)) if by_channel and others else (
            weight.min(), weight.max()
        )  # fmt: skip
        if "UInt8" not in str(self._options.get("weight_type", "")):  # int8 weights are symmetric
            high = torch.maximum(high.abs(), low.abs()) * (255 / 254)
            low = -high
        rounded = self._fake(weight, low, high)
        return rounded if factor is None else torch.where(factor == 0, weight, rounded / factor)

    def _fake(self, tensor: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
        """The tensor rounded to 256 steps between ``low`` and ``high``, or zero if that is beyond, and cut off there."""
        low = torch.as_tensor(low, dtype=tensor.dtype).clamp(max=0)
        high = torch.as_tensor(high, dtype=tensor.dtype).clamp(min=0)
        step = (high - low) / 255
        step = torch.where((step > 0) & torch.isfinite(step), step, 1.0)
        zero = torch.round(-low / step)
        return (torch.round(tensor / step + zero + self._dice.like(tensor)).clamp(0, 255) - zero) * step


def int8(stage: PostExportStage, seed: int | None, seen: Observations, calibrated: Ranges | None) -> Within:
    """Quantization: for :func:`~onnx_ci.stages.reference.reference.run_in_float64`. The arguments are those of the mode."""
    return lambda call: _outside_recurrent_layers(call, _Int8(call, stage, Dice(seed), seen, calibrated))


# --- everything -------------------------------------------------------------------------------------------------------


def together(
    withins: Sequence[Within],
) -> Within:
    """Several simulations at once: each rounds what the ones before it have rounded."""

    @contextlib.contextmanager
    def within(call: Call) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(in_small_operators())
            for each in withins:
                stack.enter_context(each(call))
            yield

    return within
