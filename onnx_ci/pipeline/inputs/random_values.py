"""Random inputs: drawn from what is known about them, and otherwise like the example's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from onnx_ci.pipeline.domains.input_domains import UNKNOWN, InputDomains
from onnx_ci.pipeline.inputs.probes import Inputs, Probe, Prober, first_accepted, is_integer
from onnx_ci.pipeline.model.tensors import is_finite


def fresh_probes(prober: Prober, domains: InputDomains = UNKNOWN, *, quick: bool = False) -> list[Probe]:
    """Random values in all inputs at once, or in one input at a time if the model rejects that."""
    example = prober.example.inputs
    if probe := first_accepted(prober, "random values", _attempts(example, domains), quick=quick):
        return [probe]
    probes = []
    for index in range(len(example)):
        changed = ([*example[:index], each[index], *example[index + 1 :]] for each in _attempts(example, domains))
        probes.append(first_accepted(prober, f"random values in input {index}", changed, quick=quick))
    return [*filter(None, probes)]


def _attempts(like: Inputs, domains: InputDomains) -> Iterator[list[torch.Tensor]]:
    """New values of all inputs, in the order of trying: an inferred domain may be too large."""
    has_inferred = any(not domains.is_declared(index) for index, _ in domains.items())
    for only_declared in (False, True) if has_inferred else (False,):
        for attempt in range(len(_STEPS)):
            yield random_inputs(like, domains, attempt, only_declared=only_declared)


def random_inputs(like: Inputs, domains: InputDomains, attempt: int = 0, *, only_declared: bool = False) -> list[torch.Tensor]:
    """New values of all inputs in the shapes of ``like``: from their domains, or like theirs."""
    drawn = domains.drawn(like, seed=1 + attempt, only_declared=only_declared)
    return [drawn.get(index, random_like(tensor, attempt)) for index, tensor in enumerate(like)]


# How a constant integer is changed, in the order of trying: a count or size may only accept neighbours or multiples.
_STEPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor + 1,
    lambda tensor: tensor - 1,
    lambda tensor: tensor * 2,
    lambda tensor: tensor * 3,
    lambda tensor: tensor // 2,
)


def random_like(tensor: torch.Tensor, attempt: int = 0) -> torch.Tensor:
    """A tensor of the same shape and type with other values: :func:`drawn_like`, or step ``attempt`` of a constant integer."""
    if is_integer(tensor) and tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
        return _STEPS[attempt](tensor)
    return drawn_like(tensor, seed=1 + attempt)


def drawn_like(tensor: torch.Tensor, *, seed: int) -> torch.Tensor:
    """A tensor of the same shape and type with values drawn like those of ``tensor``.

    Floats are drawn near those of ``tensor``, with the same signs; a tensor with infinities is a mask and returned
    unchanged. The zeros of regular matrices stay where they are, because elsewhere they could make them singular. Integers are
    drawn from the range of ``tensor``. Masks, boolean or of zeros and ones, are shuffled along their last axis, so that no row
    becomes empty or full.
    """
    generator = torch.Generator().manual_seed(seed)
    if not tensor.numel() or tensor.is_complex():
        return tensor
    if tensor.is_floating_point():
        if not bool(is_finite(tensor).all()):
            return tensor
        wide = tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
        picked = wide.flatten()[torch.randint(0, wide.numel(), wide.shape, generator=generator)]
        if bool((wide == 0).any()) and _is_regular(tensor):
            picked = wide
        factor = torch.exp(0.25 * torch.randn(tensor.shape, generator=generator, dtype=torch.float32))
        return (picked * factor).to(tensor.dtype)
    low, high = int(tensor.min()), int(tensor.max())
    if tensor.dtype == torch.bool or (low, high) == (0, 1):
        return tensor[..., torch.randperm(tensor.shape[-1], generator=generator)] if tensor.dim() else tensor
    return torch.randint(low, high + 1, tensor.shape, generator=generator).to(tensor.dtype)


def _is_regular(tensor: torch.Tensor) -> bool:
    """Whether the last two axes are those of regular matrices, such as the identity or a camera's."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2]:
        return False
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    return bool(torch.linalg.slogdet(wide).logabsdet.isfinite().all())
