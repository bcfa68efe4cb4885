"""From a recipe to what its cells need before any export: the live model, its inputs, and what it computes on them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnx_ci.axes import declared_axes, dynamic_shapes_tree
from onnx_ci.calls import (
    Call,
    PrepareError,
    build,
    dtype_name,
    exact_arithmetic,
    flatten_inputs,
    move,
    on_cpu,
    recipe_error,
    run,
)
from onnx_ci.probes import EXAMPLE, Probe, moved_probes
from onnx_ci.recipe import Recipe
from onnx_ci.records import Finding
from onnx_ci.reference import make_reference
from onnx_ci.rules import finding


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A recipe ready for its cells. ``fresh()`` gives each export its own copy of the model and its arguments."""

    recipe: Recipe
    device: str
    fresh: Callable[[], Call]
    probes: tuple[Probe, ...]
    """The example first, then the moved axes."""
    input_names: tuple[str | None, ...]
    """For each tensor argument its declared name, or ``None``."""
    axes: Mapping[str, Mapping[int, str]]
    """The declared dynamic axes by input or output name, whichever way the recipe declared them."""
    dynamic_shapes: tuple[Any, ...] | None
    """The dynamic axes of the inputs as ``torch.export`` takes them: a tree like the arguments in forward's order."""
    findings: tuple[Finding, ...]
    """What the references already show: an axis that cannot be moved, noise too large to judge by, no float64."""

    @property
    def example(self) -> Probe:
        """The recipe's own input."""
        return self.probes[0]


def prepare(recipe: Recipe, device: str = "cpu", *, weights: str | None = None) -> Prepared:
    """Build the recipe's model on ``device`` and compute its references.

    Args:
        weights: handed to a recipe function that takes ``weights``: which trained weights to load.

    Raises:
        PrepareError: the recipe cannot be used; the error carries the finding.
    """

    def rebuild() -> Call:
        return move(build(recipe, weights), device)

    pristine = rebuild()

    def fresh() -> Call:
        try:
            return copy.deepcopy(pristine)
        except Exception:  # a model that cannot be copied (non-leaf tensors as attributes) is built again under its seed
            return rebuild()

    flat = flatten_inputs(pristine)
    tensors = [value for _, value in flat]
    names = recipe.input_names
    if len(names) > len(tensors):
        raise PrepareError(
            finding(
                "name-mismatch",
                f"input_names declares {len(names)} names and args hold {len(tensors)} tensors",
                remedy="Declare one name for every tensor in args, nested ones included, and none for Python numbers.",
            )
        )
    input_names = tuple(names[i] if i < len(names) else None for i in range(len(tensors)))
    with exact_arithmetic():
        own = run(fresh())
        if not own:
            raise recipe_error("the model returns no tensor", "Return at least one tensor from forward.")
        if any(tensor.is_complex() for tensor in own):
            raise recipe_error("the model returns a complex tensor, which ONNX cannot", "Return torch.view_as_real of it.")
        axes = declared_axes(recipe, pristine, flat, own)
        example = Probe(name=EXAMPLE, inputs=on_cpu(tensors), reference=make_reference(fresh, own))
        moved, immovable = moved_probes(recipe, fresh, example, input_names, axes)
    probes = (example, *moved)
    return Prepared(
        recipe=recipe,
        device=device,
        fresh=fresh,
        probes=probes,
        input_names=input_names,
        axes=axes,
        dynamic_shapes=dynamic_shapes_tree(pristine, input_names, axes),
        findings=(*immovable, *_too_noisy(recipe, probes), *_without_float64(probes)),
    )


def _too_noisy(recipe: Recipe, probes: Sequence[Probe]) -> list[Finding]:
    """Outputs whose noise exceeds half of their digits: a comparison by drift would let almost anything pass."""
    if recipe.rtol is not None or recipe.atol is not None:
        return []
    findings = []
    for probe in probes:
        for position, (own, noise) in enumerate(zip(probe.reference.own, probe.reference.noise, strict=True)):
            if not own.is_floating_point() or not own.numel():
                continue
            finite = own[torch.isfinite(own)].abs()
            largest = finite.max().double().item() if finite.numel() else 0.0
            if largest and noise > largest * torch.finfo(own.dtype).eps ** 0.5:
                findings.append(
                    finding(
                        "vacuous",
                        f"on {probe.name!r}, output {position} of the model in {dtype_name(own)} and in float64 differ by "
                        f"{noise:.2g} where the largest value is {largest:.2g}: drift cannot judge it",
                        remedy="A random model needs eval() or a seed in forward; an ill-conditioned one needs rtol or atol.",
                        noise=noise,
                        max_abs=largest,
                    )
                )
    return findings


def _without_float64(probes: Sequence[Probe]) -> list[Finding]:
    fallen = [probe.name for probe in probes if probe.reference.method != "float64"]
    if not fallen:
        return []
    said = f"the model cannot run in float64 (on {', '.join(fallen)}): its noise is estimated by perturbation"
    return [finding("no-float64", said)]
