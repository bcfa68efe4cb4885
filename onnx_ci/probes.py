"""The inputs on which file and model are compared: the recipe's example, and the same at other sizes of its dynamic axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_ci.calls import Call, PrepareError, run, with_inputs
from onnx_ci.recipe import Recipe
from onnx_ci.records import Finding
from onnx_ci.reference import Reference, make_reference
from onnx_ci.rules import finding

EXAMPLE = "example"
"""The name of the recipe's own input among the probes."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One input on which the file and the model are compared."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    """The tensors among the arguments, flattened in the order of the graph's inputs, on the CPU."""
    reference: Reference


def moved_probes(
    recipe: Recipe,
    fresh: Callable[[], Call],
    example: Probe,
    input_names: tuple[str | None, ...],
    axes: Mapping[str, Mapping[int, str]],
) -> tuple[list[Probe], list[Finding]]:
    """The example at another size of every dynamic axis: all moved together, or one at a time where the model refuses that.

    The eager model judges what is legal. An axis that it lets nobody move is a claim that nothing proves: ``vacuous``.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for index, name in enumerate(input_names):
        for axis, label in axes.get(name or "", {}).items():
            places.setdefault(label, []).append((index, axis))
    if not places:
        return [], []

    def attempt(sizes: Mapping[str, int]) -> Probe | None:
        tensors = list(example.inputs)
        for label, size in sizes.items():
            for index, axis in places[label]:
                tensors[index] = _resized(tensors[index], axis, size)

        def moved() -> Call:
            return with_inputs(fresh(), [tensor.clone() for tensor in tensors])

        try:
            own = run(moved())
        except PrepareError:
            return None
        name = ",".join(f"{label}={size}" for label, size in sizes.items())
        return Probe(name=name, inputs=tuple(tensors), reference=make_reference(moved, own))

    candidates = {label: _other_sizes(recipe, example, label, where) for label, where in places.items()}
    for choice in range(max(len(sizes) for sizes in candidates.values())):
        together = attempt({label: sizes[min(choice, len(sizes) - 1)] for label, sizes in candidates.items()})
        if together is not None:
            return [together], []
    probes, immovable = [], []
    for label, sizes in candidates.items():
        probe = next((probe for size in sizes if (probe := attempt({label: size})) is not None), None)
        if probe is not None:
            probes.append(probe)
            continue
        immovable.append(
            finding(
                "vacuous",
                f"the dynamic axis {label!r} was never tried: the model itself refuses the sizes {', '.join(map(str, sizes))}",
                remedy=f"Name a size that the model takes, probes={{{label!r}: SIZE}}, or do not declare the axis dynamic.",
            )
        )
    return probes, immovable


def _other_sizes(recipe: Recipe, example: Probe, label: str, where: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Sizes to try for an axis: the recipe's, or the next one up, then multiples for models that ask for them."""
    if label in recipe.probes:
        return recipe.probes[label]
    index, axis = where[0]
    size = example.inputs[index].shape[axis]
    return tuple(
        other for other in dict.fromkeys((size + 1, 2 * size, size - 1, 3 * size, size // 2)) if other >= 1 and other != size
    )


def _resized(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """``tensor`` with ``size`` along ``axis``: the same slices again, floating values drawn anew from those it holds.

    Values drawn from the example stay in its range, and slices that differ cannot hide one another.
    """
    old = tensor.shape[axis]
    if old == 0:
        return tensor.new_zeros([size if i == axis else n for i, n in enumerate(tensor.shape)])
    resized = tensor.index_select(axis, torch.arange(size) % old)
    if not tensor.is_floating_point() or tensor.numel() < 2:
        return resized
    draw = torch.randint(0, tensor.numel(), resized.shape, generator=torch.Generator().manual_seed(size))
    return tensor.flatten()[draw]
