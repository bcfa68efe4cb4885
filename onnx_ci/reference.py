"""What the eager model computes on one input: in its own data type, in float64, and how far rounding moves it.

The difference of the two is the noise, the yardstick of every comparison. A model that cannot run in float64 gets its
noise from perturbation instead (:func:`_perturbation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onnx_ci.calls import Call, Outputs, PrepareError, run

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
    method: str
    """``float64`` or ``perturbation``."""


class _KeepFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turn every request for a smaller floating type (``x.float()``, ``dtype=torch.float32``) into one for float64.

    Without it a hard-coded cast would round in the middle of the exact reference, or mix two types and raise.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.dtype, _widened, (args, kwargs or {}))
        return func(*args, **kwargs)


_SMALLER_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _widened(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in _SMALLER_FLOATS else dtype


def _run_in_float64(call: Call) -> Outputs:
    """The same call with every floating tensor and intermediate in float64, on the CPU."""
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.cpu().to(_widened(tensor.dtype)), (call.args, call.kwargs)
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _KeepFloat64():  # type: ignore[no-untyped-call]
            return run(Call(model=call.model.cpu().double(), args=args, kwargs=kwargs))
    finally:
        torch.set_default_dtype(default)


def make_reference(fresh: Callable[[], Call], own: Outputs) -> Reference:
    """The reference of the call that ``fresh`` makes anew each time; ``own`` is what it computes in its own type."""
    try:
        exact = _run_in_float64(fresh())
        comparable = len(exact) == len(own) and all(a.shape == b.shape for a, b in zip(exact, own, strict=True))
    except PrepareError:
        comparable = False
    if comparable:
        spread = [_max_difference(a, b) for a, b in zip(own, exact, strict=True)]
        method = "float64"
    else:
        exact, spread = own, _perturbation(fresh, own)
        method = "perturbation"
    return Reference(
        own=own,
        exact=tuple(b.double() if a.is_floating_point() else a for a, b in zip(own, exact, strict=True)),
        noise=tuple(max(s, _unit_in_last_place(a)) for s, a in zip(spread, own, strict=True)),
        method=method,
    )


def _perturbation(fresh: Callable[[], Call], own: Outputs) -> list[float]:
    """Noise without float64: how far the outputs move when every weight and input moves by half a unit in its last place.

    This is stochastic arithmetic (Vignes, 1993; Parker, 1997) on the inputs of the computation: an algorithm that is
    backward stable answers a rounding error as it answers a perturbation of its inputs of that size.
    """
    spread = [0.0] * len(own)
    generator = torch.Generator().manual_seed(0)

    def perturbed(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype) * 2 - 1
        return tensor + tensor * signs * (torch.finfo(tensor.dtype).eps / 2)

    for _ in range(PERTURBATIONS):
        call = fresh()
        with torch.no_grad():
            for tensor in (*call.model.parameters(), *call.model.buffers()):
                tensor.copy_(perturbed(tensor))
            args, kwargs = pytree.tree_map_only(torch.Tensor, perturbed, (call.args, call.kwargs))
        try:
            moved = run(Call(model=call.model, args=args, kwargs=kwargs))
        except PrepareError:  # a perturbed input can be illegal; the other runs decide
            continue
        spread = [
            max(s, _max_difference(a, b)) if a.shape == b.shape else s for s, a, b in zip(spread, own, moved, strict=True)
        ]
    return spread


def _max_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = (one.double() - other.double()).abs()
    difference = difference[torch.isfinite(difference)]
    return difference.max().item() if difference.numel() else 0.0


def _unit_in_last_place(tensor: torch.Tensor) -> float:
    """The spacing of floating numbers at the tensor's largest finite value; 1 for integers and booleans."""
    if not tensor.is_floating_point():
        return 1.0
    info = torch.finfo(tensor.dtype)
    finite = tensor[torch.isfinite(tensor)].abs()
    largest = finite.max().double().item() if finite.numel() else 0.0
    exponent = torch.frexp(torch.tensor(max(largest, info.tiny), dtype=torch.float64)).exponent.item() - 1
    return float(info.eps * 2.0**exponent)
