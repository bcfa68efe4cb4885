"""Noise without float64: runs of a model with its numbers moved by half a unit, and with other orders of equal values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ci.onnx_model.precision import Precision
from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.module import plain_weights_of, replace_weight
from onnx_ci.pipeline.model.operators import Intervention, OperatorCall
from onnx_ci.pipeline.model.running import force_eager, run
from onnx_ci.pipeline.model.tensors import Outputs, has_noise, largest_value, same_shapes

PERTURBATIONS = 4
"""The number of perturbed runs that estimate the noise without float64."""
AT_ONCE = 2**22
"""How many numbers are perturbed at a time, which takes several times their memory."""


def perturbed(tensor: torch.Tensor, generator: torch.Generator, precision: Precision | None = None) -> torch.Tensor:
    """``tensor`` with each number moved up or down at random, by half a step of a precision: by default its own."""
    if not has_noise(tensor):
        return tensor
    if tensor.numel() > AT_ONCE and len(tensor) > 1 and (precision is None or not precision.is_uniform):
        moved, rows = torch.empty_like(tensor), max(1, AT_ONCE // tensor[0].numel())
        for part, place in zip(torch.split(tensor, rows), torch.split(moved, rows), strict=True):
            place.copy_(perturbed(part, generator, precision))
        return moved
    signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype) * 2 - 1
    if precision is None or not precision.is_uniform:
        return tensor + tensor * signs * ((torch.finfo(tensor.dtype).eps if precision is None else precision.eps) / 2)
    # Only matrices are quantized; vectors, such as biases and variances, are not.
    return tensor + signs * (largest_value(tensor) * precision.eps / 2) if tensor.dim() > 1 else tensor


def perturbed_runs(
    fresh: Callable[[], Call],
    own: Outputs,
    precision: Precision | None = None,
    *,
    weights_only: bool = False,
    is_watchable: bool = True,
) -> list[Outputs]:
    """The outputs of several runs, each with every weight and input perturbed by half a unit in its last place.

    This is stochastic arithmetic (Vignes, 1993; Parker, 1997) applied to the inputs: in a backward stable algorithm, rounding
    errors have the same effect as perturbations of the inputs of that size. Integers are not perturbed, but the order of equal
    values differs from run to run, unless the model computes something else under an intervention.
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
            with force_eager(), OtherTies(is_rotated=number % 2 == 1) if is_watchable else contextlib.nullcontext():
                outputs = run(Call(model=call.model, args=args, kwargs=kwargs))
        except PrepareError:  # a perturbed input can be invalid: the other runs decide
            continue
        if same_shapes(outputs, own):
            runs.append(outputs)
    return runs


aten = torch.ops.aten


class OtherTies(Intervention):
    """Gives equal values one of two orders, which differ at every position where values are equal.

    PyTorch leaves their order undefined in ``topk``, and in a ``sort`` that is not stable. ``argmax`` and ``max`` stay as they
    are: both PyTorch and ONNX define that they return the first index. Rotated, the lowest of the indices comes last.
    """

    def __init__(self, *, is_rotated: bool) -> None:
        super().__init__()
        self._is_rotated = is_rotated

    def run(self, call: OperatorCall) -> Any:
        """Run an operator. One that orders values returns the indices in the other order."""
        result = call.run()
        if call.operator not in _ORDERING:
            return result
        values, indices = result
        arguments = call.arguments
        if arguments.get("stable") or not arguments.get("sorted", True) or not values.dim():
            return result
        dim, is_descending = arguments["dim"], bool(arguments.get("largest", arguments.get("descending")))
        order = self._order(arguments["self"], dim, is_descending=is_descending)
        return type(result)((values, order.narrow(dim, 0, indices.shape[dim])))

    def _order(self, tensor: torch.Tensor, dim: int, *, is_descending: bool) -> torch.Tensor:
        """The indices that sort ``tensor`` along an axis."""
        values, indices = (each.movedim(dim, -1) for each in tensor.sort(stable=True, dim=dim, descending=is_descending))
        if self._is_rotated and values.shape[-1]:
            places = torch.arange(values.shape[-1], device=values.device).expand_as(values)
            begins = torch.ones_like(values, dtype=torch.bool)
            begins[..., 1:] = values[..., 1:] != values[..., :-1]
            first = torch.where(begins, places, 0).cummax(-1).values
            is_last = begins.roll(-1, -1)  # the first value begins, so the last one is followed by another
            indices = indices.gather(-1, torch.where(is_last, first, places + 1))
        return indices.movedim(-1, dim)


_ORDERING = frozenset((aten.topk.default, aten.sort.default, aten.sort.stable))
QUANTIZED_EPS = 2.0**-8
"""The precision of the 8 bits that quantized tensors have."""
QUANTIZED_SHARE = 1 / 8
"""The share of a step that is the noise of a quantized model: a right file may be off by a step, and a wrong one is by more."""


class OtherSteps(Intervention):
    """Moves what comes out of quantized tensors by a step, up or down.

    torch rounds sums of integers, and a file rounds sums of floating-point numbers: near the middle of two steps, they differ.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(0)
        self.are_moved = False
        """Whether the model has quantized tensors."""

    def run(self, call: OperatorCall) -> Any:
        """Run an operator. One that returns the numbers of a quantized tensor returns them moved."""
        result = call.run()
        if call.operator is not aten.dequantize.self or not call.operands[0].is_quantized:
            return result
        self.are_moved = True
        quantized: Any = call.operands[0]
        if quantized.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            steps = torch.tensor(quantized.q_scale())
        else:
            axis = quantized.q_per_channel_axis()
            steps = quantized.q_per_channel_scales().reshape([-1 if each == axis else 1 for each in range(result.dim())])
        signs = torch.randint(0, 2, result.shape, generator=self._generator) * 2 - 1
        return result + (steps * signs).to(result.device, result.dtype)


def moved_by_steps(call: Call, own: Outputs) -> Outputs | None:
    """The outputs of a call moved by :data:`QUANTIZED_SHARE` of the steps of its quantized tensors; ``None`` without any."""
    steps = OtherSteps()
    try:
        with force_eager(), steps:
            outputs = run(call)
    except PrepareError:
        return None
    if not steps.are_moved or not same_shapes(outputs, own):
        return None
    pairs = zip(own, outputs, strict=True)
    return tuple(old + QUANTIZED_SHARE * (new - old) if has_noise(old) else new for old, new in pairs)
