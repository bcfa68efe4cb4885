"""A recipe's dynamic axes, checked against its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import did_you_mean
from onnx_ci.results.rules import finding
from onnx_ci.stages.prepare.live_model import Call, Outputs, PrepareError, bound_arguments, signature_of


def declared_axes(
    recipe: Recipe, call: Call, flat: list[tuple[pytree.KeyPath, torch.Tensor]], outputs: Outputs
) -> dict[str, dict[int, str]]:
    """The dynamic axes by tensor name, checked against the names and ranks of the inputs and outputs."""
    ranks = {name: tensor.dim() for name, (_, tensor) in zip(recipe.input_names, flat, strict=False)}
    ranks |= {name: tensor.dim() for name, tensor in zip(recipe.output_names, outputs, strict=False)}
    if recipe.dynamic_shapes is not None:
        axes = _axes_from_shapes(recipe, call, flat)
    else:
        axes = {name: dict(declared) for name, declared in recipe.dynamic_axes.items()}
    for name, declared in axes.items():
        if name not in ranks:
            message = f"dynamic_axes names {name!r}, which is neither in input_names nor in output_names"
            raise PrepareError(finding("unknown-axis", message + did_you_mean(name, ranks)))
        for axis in declared:
            if not 0 <= axis < ranks[name]:
                raise PrepareError(
                    finding("unknown-axis", f"{name!r} has no axis {axis}: it has {ranks[name]} axes, counted from 0")
                )
    known = {axis for declared in axes.values() for axis in declared.values()}
    sizes: dict[str, int] = {}
    for name, (_, tensor) in zip(recipe.input_names, flat, strict=False):
        for axis, label in axes.get(name, {}).items():
            if sizes.setdefault(label, tensor.shape[axis]) != tensor.shape[axis]:
                message = f"the axis name {label!r} is used for axes of size {sizes[label]} and {tensor.shape[axis]}"
                remedy = "Give axes that vary independently different names."
                raise PrepareError(finding("name-mismatch", message, remedy=remedy))
    for label in recipe.dynamic_sizes:
        if label not in known:
            message = f"dynamic_sizes names the axis {label!r}, which is not declared{did_you_mean(label, known)}"
            raise PrepareError(finding("unknown-axis", message))
        if set(recipe.dynamic_sizes[label]) == {sizes.get(label)}:
            message = f"dynamic_sizes gives no size for {label!r} other than the example's, {sizes[label]}"
            raise PrepareError(finding("vacuous", message, remedy="Name a size that differs from the example's."))
    return axes


def _axes_from_shapes(recipe: Recipe, call: Call, flat: list[tuple[pytree.KeyPath, torch.Tensor]]) -> dict[str, dict[int, str]]:
    """``dynamic_shapes``, which has the structure of forward's arguments, as axes by input name."""
    if len(recipe.input_names) < len(flat):
        raise PrepareError(
            finding("name-mismatch", f"dynamic_shapes needs input_names: {len(flat)} names, one for every tensor in args")
        )
    bound = bound_arguments(call)
    spec = recipe.dynamic_shapes
    if isinstance(spec, Mapping):
        signature = signature_of(call.model)
        known = list(signature.parameters if signature else bound)
        unknown = next((name for name in spec if name not in known), None)
        if unknown is not None:
            message = f"dynamic_shapes names {unknown!r}, which is not an argument of forward{did_you_mean(unknown, known)}"
            raise PrepareError(finding("unknown-axis", message))
        spec = [spec.get(name) for name in bound]
    leaves, _ = pytree.tree_flatten_with_path(list(bound.values()))
    paths = [path for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    axes: dict[str, dict[int, str]] = {}
    for name, path in zip(recipe.input_names, paths, strict=False):
        leaf = spec
        for key in path:
            if leaf is None:
                break
            try:
                leaf = leaf[key.key if isinstance(key, pytree.MappingKey) else cast("pytree.SequenceKey[Any]", key).idx]
            except (LookupError, TypeError, AttributeError):
                message = f"dynamic_shapes does not match the structure of args: it has no entry for {name!r}"
                raise PrepareError(finding("unknown-axis", message)) from None
        entries = leaf.items() if isinstance(leaf, Mapping) else enumerate(leaf or ())
        declared = {
            axis: dim if isinstance(dim, str) else getattr(dim, "__name__", f"{name}_dim_{axis}")
            for axis, dim in entries
            if dim is not None and not isinstance(dim, int) and dim != torch.export.Dim.STATIC
        }
        if declared:
            axes[name] = declared
    return axes


def dynamic_shapes_tree(
    call: Call, input_names: tuple[str | None, ...], axes: Mapping[str, Mapping[int, str]]
) -> tuple[Any, ...] | None:
    """The inputs' dynamic axes as ``dynamic_shapes`` of ``torch.export``, or ``None`` if there are none."""
    if not axes:
        return None
    names = iter(input_names)

    def leaf(value: Any) -> dict[int, str] | None:
        return dict(axes.get(next(names) or "", {})) if isinstance(value, torch.Tensor) else None

    return tuple(pytree.tree_map(leaf, list(bound_arguments(call).values())))
