"""The rounding of a lossy pass, simulated: the eager model runs in float64 under a mode that rounds as the pass does.

Half precision rounds weights, inputs and the outputs of every operator. ONNX Runtime's quantizer knows some operators, and
rounds what they take and return to 256 steps. Its dynamic way takes the range of an activation from the data, its static way
from a calibration.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree  # no public module walks the containers of an operator's arguments
from torch.utils.weak import WeakTensorKeyDictionary

from onnx_ci.collection.post_export import GraphPass
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.module import plain_weights_of, replace_weight, weights_of
from onnx_ci.pipeline.model.operators import Intervention, OperatorCall, tensor_leaves
from onnx_ci.pipeline.model.running import in_small_operators
from onnx_ci.pipeline.model.tensors import has_noise

aten = torch.ops.aten

Within = Callable[[Call], AbstractContextManager[object]]
"""Returns the context in which a call runs: for :func:`~onnx_ci.pipeline.reference.float64.run_in_float64`."""

_LEAST = 1e-7
"""convert_float_to_float16 replaces smaller positive constants by this one: the epsilon of a norm would become 0."""
_SMALLEST_EXPONENT = -13
"""The exponent of float16's smallest normal number, 2**-14, as :func:`torch.frexp` counts."""


def _random_numbers(seed: int | None) -> torch.Generator | None:
    """What decides how values are rounded: up or down at random (stochastic rounding), or ``None``, to the nearest step."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def _share(tensor: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor | float:
    """The share of a step to add to each value before it is rounded to the nearest one: random in [-0.5, 0.5), or 0."""
    if generator is None:
        return 0.0
    return torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device) - 0.5


def _to_float16(tensor: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """The tensor with its values rounded to those of float16, in its own type. Too large ones become infinite."""
    share = _share(tensor, generator)
    if not isinstance(share, torch.Tensor):
        return tensor.to(torch.float16).to(tensor.dtype)
    exponent = torch.frexp(tensor).exponent.clamp(min=_SMALLEST_EXPONENT)
    moved = tensor + (share * torch.pow(2.0, exponent.double() - 11)).to(tensor.dtype)
    return torch.where(torch.isfinite(tensor), moved, tensor).to(torch.float16).to(tensor.dtype)


def _rounded(call: OperatorCall, outputs: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The outputs of an operator with their floating tensors rounded. What a view shows is rounded already."""

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        return call.replace_result(tensor, change(tensor)) if has_noise(tensor) and tensor.numel() else tensor

    return outputs if call.is_view else pytree.tree_map_only(torch.Tensor, rounded, outputs)


class _Float16(Intervention):
    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self._generator = generator

    def run(self, call: OperatorCall) -> Any:
        nonzero = call.with_changed(float, lambda each: math.copysign(_LEAST, each) if 0 < abs(each) < _LEAST else each)
        return _rounded(call, nonzero.run(), lambda tensor: _to_float16(tensor, self._generator))


def float16(seed: int | None) -> Within:
    """Half precision."""

    def within(call: Call) -> AbstractContextManager[object]:
        generator = _random_numbers(seed)
        with torch.no_grad():
            for tensor in (*plain_weights_of(call.model), *tensor_leaves((call.args, call.kwargs))):
                if has_noise(tensor) and tensor.numel():
                    replace_weight(tensor, _to_float16(tensor.data, generator))
        return _Float16(generator)

    return within


Ranges = dict[tuple[int, str], tuple[float, float]]
"""The least and the largest value of each activation, by the number of its operator and its role there."""

_LINEAR = {aten.convolution.default: 0, aten.linear.default: 0, aten.addmm.default: -1, aten.mm.default: -1}
"""Layers, with the axis of the output channels in their weights."""
_CONVOLUTION = aten.convolution.default
_NORMALIZATION = (
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit_no_training.default,
    aten.cudnn_batch_norm.default,
)
_ACTIVATIONS = (aten.relu.default, aten.relu_.default, aten.hardtanh.default, aten.hardtanh_.default, aten.clamp.default,
                aten.clamp_.default, aten.clamp_min.default)  # fmt: skip
"""Activation functions that the quantizer merges into the operator before them (``Relu`` and ``Clip``)."""
_RESHAPING = frozenset(
    (aten.view.default, aten._unsafe_view.default, aten.transpose.int, aten.permute.default, aten.t.default,
     aten.unsqueeze.default, aten.squeeze.dim, aten.clone.default, aten.expand.default, aten.slice.Tensor, aten.select.int)
)  # fmt: skip
"""Operators that leave quantized numbers as they are."""
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


class _Numbered(Intervention):
    """Numbers the operators in the order in which they run, and tracks constants and recurrent layers."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.number = 0
        self._constants = WeakTensorKeyDictionary()
        for tensor in weights_of(call.model):
            self._constants[tensor] = True
        self.recurrent = 0
        """How many recurrent layers are running, one within another."""
        self.is_lstm = False
        """Whether the recurrent layer that runs is one that ``quantize_dynamic`` converts."""

    def concatenated(self, tensor: torch.Tensor) -> torch.Tensor:
        """Handle the states that a recurrent layer of several layers returns. In the file, an operator concatenates them."""
        self.number += 1
        return tensor

    def is_constant(self, value: object) -> bool:
        """Whether a value is a weight, or computed from weights only."""
        return not isinstance(value, torch.Tensor) or value in self._constants

    def is_numbered(self, call: OperatorCall) -> bool:
        """Whether the static quantizer converts an operator, which then gets the next number."""
        is_converted = call.operator in _STATIC and not self.recurrent
        self.number += is_converted
        return is_converted

    def note_constants(self, call: OperatorCall, result: Any) -> None:
        """Note whether the results of an operator are constant: all its operands are."""
        are_constant = all(map(self.is_constant, call.operands))
        for tensor in tensor_leaves(result):
            if are_constant:
                self._constants[tensor] = True
            elif tensor in self._constants:  # changed in place
                del self._constants[tensor]


@contextlib.contextmanager
def _outside_recurrent_layers(call: Call, mode: _Numbered) -> Iterator[None]:
    """Tell ``mode`` while a recurrent layer runs: in the file it is one operator."""

    def enter(layer: nn.Module, _: object) -> None:
        mode.recurrent += 1
        mode.is_lstm = isinstance(layer, nn.LSTM)

    def leave(layer: nn.Module, _: object, outputs: Any) -> Any:
        mode.recurrent -= 1
        if layer.num_layers == 1:
            return outputs
        output, states = outputs  # in the file, the states of the layers are concatenated
        return output, pytree.tree_map_only(torch.Tensor, mode.concatenated, states)

    with contextlib.ExitStack() as stack:
        for module in call.model.modules():
            if isinstance(module, nn.RNNBase):
                stack.enter_context(module.register_forward_pre_hook(enter))
                stack.enter_context(module.register_forward_hook(leave))
        stack.enter_context(mode)
        yield


class _Observer(_Numbered):
    """Notes ranges and what is merged. No question about a trace: :class:`_Int8` looks that up by the number of an operator.

    Both must count alike, also the states that a recurrent layer returns, and a trace has no calls of modules.
    """

    def __init__(self, call: Call, observations: Observations) -> None:
        super().__init__(call)
        self._observations = observations
        self._producers = WeakTensorKeyDictionary()
        """The number and the operator that a tensor is the first output of."""

    def run(self, call: OperatorCall) -> Any:
        is_numbered = self.is_numbered(call)
        if is_numbered:
            self._note_merged(call)
            for position, leaf in enumerate(pytree.tree_leaves(call.args)):
                if not self.is_constant(leaf):
                    self._note(f"in {position}", leaf)
        result = call.run()
        self.note_constants(call, result)
        for position, tensor in enumerate(tensor_leaves(result) if is_numbered else ()):
            self._note(f"out {position}", tensor)
            if position == 0:
                self._producers[tensor] = (self.number, call.operator)
        return result

    def _note_merged(self, call: OperatorCall) -> None:
        """Note if the operator is merged into the one before it."""
        first = call.args[0]
        if not isinstance(first, torch.Tensor) or first not in self._producers:
            return
        number, producer = self._producers[first]
        if call.operator in _NORMALIZATION and producer is _CONVOLUTION:
            weight, variance, eps = call.args[1], call.args[4], call.args[-1]
            factor = torch.rsqrt(variance + eps)
            self._observations.scales[number] = factor if weight is None else factor * weight
            self._observations.merged.add(number)
        elif call.operator in _ACTIVATIONS:
            self._observations.merged.add(number)

    def concatenated(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record the range of the states."""
        super().concatenated(tensor)
        self._note("out 0", tensor)
        return tensor

    def _note(self, role: str, tensor: torch.Tensor) -> None:
        if has_noise(tensor) and tensor.numel():
            self._observations.ranges[self.number, role] = (float(tensor.min()), float(tensor.max()))


def observed(observations: Observations) -> Within:
    """A run that changes nothing and fills ``observations``."""
    return lambda call: _outside_recurrent_layers(call, _Observer(call, observations))


def merged_ranges(every: Sequence[Ranges]) -> Ranges:
    """The ranges that contain all of ``every``."""
    merged: Ranges = {}
    for ranges in every:
        for place, (least, largest) in ranges.items():
            low, high = merged.get(place, (least, largest))
            merged[place] = (min(low, least), max(high, largest))
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


class _Int8(_Numbered):
    """Rounds weights and activations to 256 steps, with their own ranges unless they are calibrated.

    The pass's options say which types it uses, and whether weights have a scale for each channel. ``observations`` is what a
    run on the same inputs shows.
    """

    def __init__(
        self, call: Call, graph_pass: GraphPass, seed: int | None, observations: Observations, calibrated: Ranges | None
    ) -> None:
        super().__init__(call)
        self._options: Mapping[str, Any] = graph_pass.options
        self._generator, self._observations, self._calibrated = _random_numbers(seed), observations, calibrated
        self._quantized = WeakTensorKeyDictionary()

    def run(self, call: OperatorCall) -> Any:
        is_numbered = self.is_numbered(call)
        # The quantizer keeps an activation function as it is unless it quantizes what the function gets.
        is_quantized = is_numbered and (call.operator not in _ACTIVATIONS or call.args[0] in self._quantized)
        result = replace(call, args=self._rounded_arguments(call, is_quantized=is_quantized)).run()
        self.note_constants(call, result)
        if is_quantized and self._calibrated is not None and self.number not in self._observations.merged:
            result = _rounded(call, result, lambda each: self._activation("out 0", each))
        if is_quantized or (call.operator in _RESHAPING and call.args[0] in self._quantized):
            self._quantized.update(dict.fromkeys(tensor_leaves(result), True))
        return result

    def _rounded_arguments(self, call: OperatorCall, *, is_quantized: bool) -> Sequence[Any]:
        """The arguments of an operator as it gets them in the file.

        Without a calibration, only layers and tables are rounded, not a product of two activations.
        """
        args, is_static = call.args, self._calibrated is not None
        if call.operator in _LINEAR and (not self.recurrent or (self.is_lstm and not is_static)):
            at = 1 if call.operator is aten.addmm.default else 0
            if not self.is_constant(args[at]) and self.is_constant(args[at + 1]):
                layer = self._activation(f"in {at}", args[at]), self._weight(call.operator, args[at + 1])
                return (*args[:at], *layer, *args[at + 2 :])
        if call.operator is aten.embedding.default and self.is_constant(args[0]):
            return (self._weight(call.operator, args[0]), *args[1:])
        if not (is_quantized and is_static):
            return args
        leaves, tree = pytree.tree_flatten(args)
        leaves = [
            leaf if self.is_constant(leaf) else self._activation(f"in {position}", leaf) for position, leaf in enumerate(leaves)
        ]
        rounded: Sequence[Any] = pytree.tree_unflatten(leaves, tree)
        if not call.writes:
            return rounded
        args[0].copy_(rounded[0])  # an operator in place must write to the tensor that it was called with
        return (args[0], *rounded[1:])

    def concatenated(self, tensor: torch.Tensor) -> torch.Tensor:
        """The states as the static quantizer rounds them."""
        super().concatenated(tensor)
        return tensor if self._calibrated is None else self._activation("out 0", tensor)

    def _activation(self, role: str, tensor: torch.Tensor) -> torch.Tensor:
        """An activation, rounded with its calibrated range or, without one, its own."""
        if not has_noise(tensor) or not tensor.numel():
            return tensor
        calibrated = (self._calibrated or {}).get((self.number, role)) if not self.recurrent else None
        return self._fake(tensor, *(calibrated or (float(tensor.min()), float(tensor.max()))))

    def _weight(self, operator: Any, weight: torch.Tensor) -> torch.Tensor:
        """A weight, rounded as in the file, where a BatchNorm behind a convolution is multiplied into its weight first."""
        if not weight.numel():
            return weight
        axis = _LINEAR[operator] % weight.dim() if operator in _LINEAR else None
        scale = self._observations.scales.get(self.number) if operator is _CONVOLUTION and not self.recurrent else None
        if scale is None:
            return self._rounded_weight(weight, axis)
        factor = scale.to(weight.dtype).reshape(-1, *(1,) * (weight.dim() - 1))
        rounded = self._rounded_weight(weight * factor, axis)
        return torch.where(factor == 0, weight * factor, rounded / factor)

    def _rounded_weight(self, weight: torch.Tensor, axis: int | None) -> torch.Tensor:
        """A weight, rounded with one range, or with one for each place on an axis if the pass's options say so."""
        other_axes = [each for each in range(weight.dim()) if each != axis]
        if self._options.get("per_channel") and axis is not None and other_axes:
            low, high = weight.amin(other_axes, keepdim=True), weight.amax(other_axes, keepdim=True)
        else:
            low, high = weight.min(), weight.max()
        if "UInt8" in str(self._options.get("weight_type", "")):
            return self._fake(weight, low, high)
        largest = torch.maximum(high.abs(), low.abs()) * (255 / 254)  # int8 weights are symmetric
        return self._fake(weight, -largest, largest)

    def _fake(self, tensor: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
        """The tensor rounded to 256 steps between ``low`` and ``high``, and cut off there. The range is extended to zero."""
        least = torch.as_tensor(low, dtype=tensor.dtype).clamp(max=0)
        largest = torch.as_tensor(high, dtype=tensor.dtype).clamp(min=0)
        width = (largest - least) / 255
        step = torch.where((width > 0) & torch.isfinite(width), width, 1.0)
        zero = torch.round(-least / step)
        rounded = (torch.round(tensor / step + zero + _share(tensor, self._generator)).clamp(0, 255) - zero) * step
        # The smallest number of a type, as a mask adds it, is not rounded to minus infinity: a row of it would become NaN.
        limit = torch.finfo(tensor.dtype).max
        return rounded.clamp(-limit, limit)


def int8(graph_pass: GraphPass, seed: int | None, observations: Observations, calibrated: Ranges | None) -> Within:
    """Quantization. The arguments are those of the mode."""
    return lambda call: _outside_recurrent_layers(call, _Int8(call, graph_pass, seed, observations, calibrated))


def in_turn(withins: Sequence[Within]) -> Within:
    """Several simulations at once: each rounds what those before it have rounded."""

    @contextlib.contextmanager
    def within(call: Call) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(in_small_operators())
            for simulation in withins:
                stack.enter_context(simulation(call))
            yield

    return within
