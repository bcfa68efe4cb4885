"""The inputs on which file and model are compared: the recipe's example, and others that make a wrong export visible.

The eager model judges what is legal: an input that it refuses is not used. Probes are drawn under fixed seeds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_ci.calls import Outputs, PrepareError, run
from onnx_ci.copies import Copies
from onnx_ci.recipe import Recipe
from onnx_ci.records import Finding
from onnx_ci.reference import Reference, in_proportion, make_reference
from onnx_ci.rules import finding

EXAMPLE = "example"
"""The name of the recipe's own input among the probes."""

LARGE = 10.0
"""What the example's floating values are multiplied with in the probe of large values."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One input on which the file and the model are compared."""

    name: str
    inputs: Outputs
    """The tensors among the arguments, flattened in the order of the graph's inputs, on the CPU."""
    reference: Reference
    special: bool = False
    """Whether the values are at the edge of what the model is for; NaN and infinity are forgiven there."""
    ties: bool = False
    """Whether values are equal that seldom are: which of equals comes first, nobody promises."""
    refine: Callable[[], Reference] | None = None
    """Gives a better reference, where a failure by this one would be premature."""


class Prober:
    """Tries inputs on copies of a model and makes probes of those that it accepts."""

    def __init__(self, copies: Copies, example: Probe) -> None:
        self._copies = copies
        self.example = example

    def probe(self, name: str, inputs: Sequence[torch.Tensor], *, special: bool = False, quick: bool = False) -> Probe | None:
        """The probe, or ``None`` if the model refuses the inputs or they are the example's own."""
        if all(map(_same, inputs, self.example.inputs)):
            return None

        try:
            self._copies.rehearse(inputs)
            own = run(self._copies.running(inputs))
        except PrepareError:
            return None
        proportion = in_proportion(own, self.example.reference) if quick else None

        @functools.cache
        def precise() -> Reference:
            return make_reference(self._copies, own, inputs)

        return Probe(
            name=name,
            inputs=tuple(inputs),
            reference=proportion or precise(),
            special=special,
            ties=special and any(map(_is_float, inputs)),
            refine=precise if proportion else None,
        )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


# --- values -----------------------------------------------------------------------------------------------------------


def fresh_probes(prober: Prober) -> list[Probe]:
    """Inputs drawn like the example: all at once, or one at a time where the model refuses that."""
    inputs = prober.example.inputs
    for attempt in range(len(_STEPS)):
        if probe := prober.probe("fresh", [drawn_alike(tensor, attempt) for tensor in inputs]):
            return [probe]
    probes = []
    for index in range(len(inputs)):
        for attempt in range(len(_STEPS)):
            changed = [drawn_alike(tensor, attempt) if i == index else tensor for i, tensor in enumerate(inputs)]
            if probe := prober.probe(f"fresh input {index}", changed):
                probes.append(probe)
                break
    return probes


# How a constant integer moves, in the order of trying: a count or a size may only go to its neighbours or multiples.
_STEPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor + 1,
    lambda tensor: tensor - 1,
    lambda tensor: tensor * 2,
    lambda tensor: tensor * 3,
    lambda tensor: tensor // 2,
)


def drawn_alike(tensor: torch.Tensor, attempt: int = 0) -> torch.Tensor:
    """A tensor of the same kind with other values.

    Floats come near those of the example and keep their signs; a tensor that holds infinities is a mask and stays.
    Integers come from the example's range, or move by a step, ``attempt``, where it holds one value only. Masks, boolean or
    of zeros and ones, are shuffled along their last axis, so that no row becomes empty or full.
    """
    generator = torch.Generator().manual_seed(1 + attempt)
    if not tensor.numel() or tensor.is_complex():
        return tensor
    if tensor.is_floating_point():
        if not bool(torch.isfinite(tensor).all()):
            return tensor
        picked = tensor.flatten()[torch.randint(0, tensor.numel(), tensor.shape, generator=generator)]
        factor = torch.exp(0.25 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        return (picked.double() * factor).to(tensor.dtype)
    low, high = int(tensor.min()), int(tensor.max())
    if tensor.dtype == torch.bool or (low, high) == (0, 1):
        return tensor[..., torch.randperm(tensor.shape[-1], generator=generator)] if tensor.dim() else tensor
    if low == high:
        return _STEPS[attempt](tensor)
    return torch.randint(low, high + 1, tensor.shape, generator=generator).to(tensor.dtype)


def special_probes(prober: Prober) -> list[Probe]:
    """Inputs chosen by data type: zero, negated and large floats; repeated and negative integers; full and empty masks."""
    probes = []
    for name, change in _SPECIAL:
        changed = [change(tensor) for tensor in prober.example.inputs]
        if probe := prober.probe(name, changed, special=True, quick=True):
            probes.append(probe)
    return probes


def _only(
    kind: Callable[[torch.Tensor], bool], change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: change(tensor) if kind(tensor) and tensor.numel() else tensor


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point()


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether a tensor is boolean, or holds zeros and ones as integers."""
    if tensor.dtype == torch.bool:
        return True
    return _is_integer(tensor) and tensor.numel() > 1 and {int(tensor.min()), int(tensor.max())} <= {0, 1}


def _first_row(value: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[:1] = value
        return changed

    return _only(lambda tensor: _is_mask(tensor) and tensor.dim() > 1, change)


_SPECIAL: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("floats zero", _only(_is_float, torch.zeros_like)),
    ("floats negated", _only(_is_float, torch.neg)),
    ("floats large", _only(_is_float, lambda tensor: tensor * LARGE)),
    ("integers repeated", _only(_is_integer, lambda tensor: torch.full_like(tensor, int(tensor.flatten()[0])))),
    ("integers negative", _only(lambda tensor: _is_integer(tensor) and tensor.dtype.is_signed, lambda tensor: -1 - tensor)),
    ("masks full", _only(_is_mask, torch.ones_like)),
    ("masks empty", _only(_is_mask, torch.zeros_like)),
    ("first row true", _first_row(True)),
    ("first row false", _first_row(False)),
)


# --- sizes ------------------------------------------------------------------------------------------------------------


def moved_probes(
    prober: Prober, recipe: Recipe, input_names: tuple[str | None, ...], axes: Mapping[str, Mapping[int, str]]
) -> tuple[list[Probe], list[Finding]]:
    """Inputs at other sizes of the dynamic axes: all axes together, then each alone, at larger sizes and at 1.

    Axes of one name always move together. An axis that the model lets nobody move is a claim that nothing proves:
    ``vacuous``.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for index, name in enumerate(input_names):
        for axis, label in axes.get(name or "", {}).items():
            places.setdefault(label, []).append((index, axis))
    example = prober.example.inputs
    sizes = {label: example[where[0][0]].shape[where[0][1]] for label, where in places.items()}
    found: dict[tuple[tuple[str, int], ...], Probe | None] = {}

    def attempt(change: Mapping[str, int]) -> Probe | None:
        # One other size has its own float64 run; for the others its proportion to the rounding of the example will do.
        quick = any(found.values())
        change = {label: size for label, size in change.items() if size != sizes[label]}
        key = tuple(change.items())
        if key and key not in found:
            tensors = list(example)
            for label, size in change.items():
                for index, axis in places[label]:
                    tensors[index] = resized(tensors[index], axis, size)
            name = ",".join(f"{label}={size}" for label, size in change.items())
            # Slices that differ cannot hide one another; a model that refuses such values may take the same ones again.
            drawn = [*map(drawn_alike, tensors)]
            found[key] = prober.probe(name, drawn, quick=quick) or prober.probe(name, tensors, quick=quick)
        return found.get(key)

    for together in _together(sizes, recipe):
        if attempt(together):
            break
    for label, size in sizes.items():
        for other in recipe.probes.get(label) or _alone(size):
            if attempt({label: other}):
                break
        if label not in recipe.probes:
            attempt({label: 1})
    if not recipe.probes:
        attempt(dict.fromkeys(sizes, 1))
    probes = [probe for probe in found.values() if probe is not None]
    moved = {label for key, probe in found.items() if probe is not None for label, _ in key}
    return probes, [_never_moved(label, found) for label in sizes if label not in moved]


def _together(sizes: Mapping[str, int], recipe: Recipe) -> Iterator[dict[str, int]]:
    """Ways to move all axes at once, in the order of trying.

    First to sizes that differ from one another, then to multiples of the example's, for models that ask for them, then to
    smaller ones.
    """
    ways: tuple[Callable[[int, int], int], ...] = (
        lambda size, position: size + 1 + position,
        lambda size, _: 2 * size,
        lambda size, position: max(1, size - 1 - position),
    )
    for way in ways:
        yield {
            label: recipe.probes[label][0] if label in recipe.probes else way(size, position)
            for position, (label, size) in enumerate(sizes.items())
        }


def _alone(size: int) -> Iterator[int]:
    """Sizes for one axis, in the order of trying.

    The first is past any branch on twice the size and shares no factor with it, so that neither a frozen branch nor a
    frozen multiple survives.
    """
    return (
        other for other in (2 * size + 1, size + 1, 2 * size, size - 1, 3 * size, size // 2) if other >= 1 and other != size
    )


def _never_moved(label: str, found: Mapping[tuple[tuple[str, int], ...], Probe | None]) -> Finding:
    tried = sorted({size for key in found for each, size in key if each == label})
    return finding(
        "vacuous",
        f"the dynamic axis {label!r} was never tried: the model itself refuses the sizes {', '.join(map(str, tried))}",
        remedy=f"Name a size that the model takes, probes={{{label!r}: SIZE}}, or do not declare the axis dynamic.",
    )


def resized(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """``tensor`` with ``size`` along ``axis``: the same slices again."""
    old = tensor.shape[axis]
    if old == 0:
        return tensor.new_zeros([size if i == axis else n for i, n in enumerate(tensor.shape)])
    return tensor.index_select(axis, torch.arange(size) % old)


def all_probes(
    prober: Prober,
    recipe: Recipe,
    input_names: tuple[str | None, ...],
    axes: Mapping[str, Mapping[int, str]],
    without: Sequence[str] = (),
) -> tuple[tuple[Probe, ...], list[Finding]]:
    """Every probe of a recipe, the example first; ``without`` leaves out kinds: ``fresh``, ``sizes``, ``special``."""
    probes: list[Probe] = [prober.example]
    findings: list[Finding] = []
    if "fresh" not in without:
        probes += fresh_probes(prober)
    if "sizes" not in without:
        moved, findings = moved_probes(prober, recipe, input_names, axes)
        probes += moved
    if "special" not in without:
        probes += special_probes(prober)
    return tuple(probes), findings
