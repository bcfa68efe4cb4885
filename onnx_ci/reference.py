"""What the eager model computes on one input: in its own data type, in float64, and how far rounding moves it.

The difference of the two is the noise, the yardstick of every comparison. A model that cannot run in float64 gets its
noise from perturbation instead (:func:`_perturbation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree

from onnx_ci.calls import Call, EveryOperator, Outputs, PrepareError, run, uncompiled, with_inputs
from onnx_ci.copies import Copies

PERTURBATIONS = 4
"""How many perturbed runs estimate the noise where float64 cannot."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the eager model computes on one input. All tensors lie on the CPU."""

    own: Outputs
    """The flattened outputs in the model's own data type."""
    exact: Outputs
    """The same in float64; for integers and booleans the outputs themselves."""
    noise: tuple[float, ...]
    """For each output, how far PyTorch's own rounding moves it; 1 for integers and booleans."""
    stable: Outputs
    """For each output, which elements can be compared. An integer or boolean that changes when the computation is rounded
    otherwise (an argmax of near ties, a comparison at the border) is no fact about the model."""
    eps: float
    """The relative spacing of the coarsest floating type in the computation."""
    method: str
    """``float64``, ``perturbation``, or ``proportion`` (see :func:`in_proportion`)."""


class _KeepFloat64(EveryOperator):
    """Turn every request for the model's own floating type (``x.float()``, ``dtype=torch.float32``) into one for float64.

    Without it a hard-coded cast would round in the middle of the exact reference, or mix two types and raise. A cast to a
    coarser type than the model's own is part of what the model computes, and stays.
    """

    supports_higher_order_operators = True

    def __init__(self, coarsest: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._coarsest = coarsest
        self.coarser = 0.0
        """The relative spacing of the half type that the model casts to on its way; 0 if it does not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Operators take a data type as an argument of its own, never inside another; few calls have one.
        kwargs = {name: self._widened(value) for name, value in kwargs.items()} if kwargs else {}
        if isinstance(func, HigherOrderOperator):  # torch.cond and its like: what they call runs under this mode, too
            args = pytree.tree_map_only(FunctionType, self._under, args)
        return func(*map(self._widened, args), **kwargs)

    def _under(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self:
                return function(*args)

        return call

    def _widened(self, value: Any) -> Any:
        if not isinstance(value, torch.dtype) or not value.is_floating_point:
            return value
        eps = torch.finfo(value).eps
        if eps <= self._coarsest:
            return torch.float64
        if value in (torch.float16, torch.bfloat16):
            self.coarser = max(self.coarser, eps)
        return value


def coarsest_eps(call: Call) -> float:
    """The relative spacing of the coarsest floating type among a call's weights and arguments."""
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    tensors = [*call.model.parameters(), *call.model.buffers(), *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))]
    return max((torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()), default=torch.finfo(torch.float32).eps)


FLOAT64_UNITS = 1024.0
"""The least noise of a float64 output, in units in the last place: exporters write a Python number (the epsilon of a
normalisation) as float32 into the file of a float64 model, too."""

UNSTABLE_SHARE = 0.1
"""How large a share of an output may hang on rounding errors before it counts as too noisy to judge."""


def make_reference(copies: Copies, own: Outputs, inputs: Sequence[torch.Tensor] | None = None) -> Reference:
    """The reference of a model on ``inputs``, or on its recipe's own; ``own`` is what it computes in its own type."""
    exact, coarser = _in_float64(copies, own, inputs)
    # Perturbation stands in for float64, also where float64 is the model's own type, and tells which integers hang on a
    # rounding error.
    plain = all(tensor.is_floating_point() and tensor.dtype != torch.float64 for tensor in own)
    others = [*([] if exact is None else [exact]), *([] if exact is not None and plain else _perturbed(copies, own, inputs))]
    eps = max(coarsest_eps(copies.pristine), coarser)
    judged = [_judge(tensor, [other[position] for other in others], eps) for position, tensor in enumerate(own)]
    best = own if exact is None else tuple(_or_own(a, b) for a, b in zip(own, exact, strict=True))
    return Reference(
        own=own,
        exact=tuple(b.double() if a.is_floating_point() else a for a, b in zip(own, best, strict=True)),
        # A runtime may compute at a higher precision what the model rounds to a coarser type on its way.
        noise=tuple(
            max(noise, coarser * _largest(a)) if a.is_floating_point() else noise
            for (noise, _), a in zip(judged, own, strict=True)
        ),
        eps=eps,
        stable=tuple(stable for _, stable in judged),
        method="perturbation" if exact is None else "float64",
    )


def in_proportion(own: Outputs, like: Reference) -> Reference | None:
    """A reference without a float64 run: the model's own outputs, with noise in proportion to that of another input.

    The noise is doubled, because such a reference is off by as much itself.
    Good enough to pass by, at a fraction of the cost; whoever fails by it asks :func:`make_reference`. ``None`` where
    ``like`` says too little: its noise is not from float64, or single elements hang on rounding errors.
    """
    floating = all(tensor.is_floating_point() for tensor in own)
    if not floating or like.method != "float64" or not all(bool(stable.all()) for stable in like.stable):
        return None
    noise = []
    for tensor, other, known in zip(own, like.own, like.noise, strict=True):
        size, other_size = _largest(tensor), _largest(other)
        noise.append(2 * max(known / other_size * size if other_size else 0.0, _unit_in_last_place(tensor)))
    return Reference(
        own=own,
        exact=tuple(tensor.double() for tensor in own),
        noise=tuple(noise),
        stable=tuple(torch.ones(tensor.shape, dtype=torch.bool) for tensor in own),
        eps=like.eps,
        method="proportion",
    )


def _largest(tensor: torch.Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)].abs()
    return finite.max().double().item() if finite.numel() else 0.0


def _or_own(own: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The exact values, and the model's own where float64 has none.

    That is at the ends of the own type's range (``torch.finfo(x.dtype).min`` is another number in float64), and where
    float64 alone is not finite.
    """
    if not own.is_floating_point():
        return own
    extreme = own.abs() >= torch.finfo(own.dtype).max / 2
    return torch.where(
        (extreme & torch.isfinite(own)) | (torch.isfinite(own) & ~torch.isfinite(exact)), own.double(), exact.double()
    )


def _judge(own: torch.Tensor, others: Sequence[torch.Tensor], eps: float) -> tuple[float, torch.Tensor]:
    """The noise of an output, and which of its elements can be compared.

    An element that jumps when the computation is rounded otherwise (a sign, a step, an index near a tie) is no fact about
    the model, as long as few do so.
    """
    if not own.is_floating_point():
        agreed = torch.ones(own.shape, dtype=torch.bool)
        for other in others:
            agreed &= other.to(own.dtype) == own
        return 1.0, agreed
    spread = torch.zeros(own.shape, dtype=torch.float64)
    for other in others:
        difference = (own.double() - _or_own(own, other)).abs()
        spread = torch.maximum(spread, torch.where(torch.isfinite(difference), difference, 0.0))
    unstable = spread > _largest(own) * max(eps, torch.finfo(own.dtype).eps) ** 0.5
    if float(unstable.double().sum()) > UNSTABLE_SHARE * max(1, own.numel()):
        unstable = torch.zeros_like(unstable)
    steady = torch.where(unstable, 0.0, spread)
    noise = steady.max().item() if steady.numel() else 0.0
    return max(noise, _unit_in_last_place(own)), ~unstable


def _in_float64(copies: Copies, own: Outputs, inputs: Sequence[torch.Tensor] | None) -> tuple[Outputs | None, float]:
    """The outputs in float64, or ``None`` where the model cannot run so, or computes something else so.

    The second value is the relative spacing of the coarsest type that the model casts to on its way, or 0.
    """
    mode = _KeepFloat64(coarsest_eps(copies.pristine))
    default = torch.get_default_dtype()
    try:
        call = copies.in_float64(inputs)  # may build the model anew, which must draw the same numbers as ever
        torch.set_default_dtype(torch.float64)
        with uncompiled(), mode:
            exact = run(call)
    except Exception:  # beside the model itself, moving its parts to another type can raise anything
        return None, mode.coarser
    finally:
        torch.set_default_dtype(default)
    return (exact if _alike(exact, own) else None), mode.coarser


def _alike(one: Outputs, other: Outputs) -> bool:
    return len(one) == len(other) and all(a.shape == b.shape for a, b in zip(one, other, strict=True))


def _perturbed(copies: Copies, own: Outputs, inputs: Sequence[torch.Tensor] | None) -> list[Outputs]:
    """The outputs with every weight and input moved by half a unit in its last place, several times.

    This is stochastic arithmetic (Vignes, 1993; Parker, 1997) on the inputs of the computation: an algorithm that is
    backward stable answers a rounding error as it answers a perturbation of its inputs of that size.
    """
    generator = torch.Generator().manual_seed(0)

    def perturbed(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype) * 2 - 1
        return tensor + tensor * signs * (torch.finfo(tensor.dtype).eps / 2)

    runs = []
    for _ in range(PERTURBATIONS):
        call = copies.fresh() if inputs is None else with_inputs(copies.fresh(), inputs)
        with torch.no_grad():
            for tensor in (*call.model.parameters(), *call.model.buffers()):
                tensor.data = perturbed(tensor)  # in place would fail on a tensor whose elements share memory
            args, kwargs = pytree.tree_map_only(torch.Tensor, perturbed, (call.args, call.kwargs))
        try:
            moved = run(Call(model=call.model, args=args, kwargs=kwargs))
        except PrepareError:  # a perturbed input can be illegal; the other runs decide
            continue
        if _alike(moved, own):
            runs.append(moved)
    return runs


def _unit_in_last_place(tensor: torch.Tensor) -> float:
    """The spacing of floating numbers at the tensor's largest finite value; 1 for integers and booleans."""
    if not tensor.is_floating_point():
        return 1.0
    info = torch.finfo(tensor.dtype)
    exponent = torch.frexp(torch.tensor(max(_largest(tensor), info.tiny), dtype=torch.float64)).exponent.item() - 1
    units = FLOAT64_UNITS if tensor.dtype == torch.float64 else 1.0
    return float(units * info.eps * 2.0**exponent)
