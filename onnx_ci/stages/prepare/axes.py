"""A recipe's dynamic axes, checked against its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import did_you_mean
from onnx_ci.results.rules import finding
from onnx_ci.stages.prepare.containers import children_of, named_leaves
from onnx_ci.stages.prepare.live_model import Call, Outputs, PrepareError, bound_arguments, signature_of


def declared_axes(recipe: Recipe, call: Call, inputs: Sequence[torch.Tensor], outputs: Outputs) -> dict[str, dict[int, str]]:
    """The dynamic axes by tensor name, checked against the names and ranks of the inputs and outputs."""
    ranks = {name: tensor.dim() for name, tensor in zip(recipe.input_names, inputs, strict=False)}
    ranks |= {name: tensor.dim() for name, tensor in zip(recipe.output_names, outputs, strict=False)}
    if recipe.dynamic_shapes is not None:
        axes = _axes_from_shapes(recipe, call)
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
    for name, tensor in zip(recipe.input_names, inputs, strict=False):
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


def _axes_from_shapes(recipe: Recipe, call: Call) -> dict[str, dict[int, str]]:
    """``dynamic_shapes``, which has the structure of forward's arguments, as axes by input name."""
    bound = bound_arguments(call)
    paths = [path for path, leaf in named_leaves(list(bound.values())) if isinstance(leaf, torch.Tensor)]
    if len(recipe.input_names) < len(paths):
        raise PrepareError(
            finding("name-mismatch", f"dynamic_shapes needs input_names: {len(paths)} names, one for every tensor in args")
        )
    spec = recipe.dynamic_shapes
    if isinstance(spec, Mapping):
        signature = signature_of(call.model)
        known = list(signature.parameters if signature else bound)
        unknown = next((name for name in spec if name not in known), None)
        if unknown is not None:
            message = f"dynamic_shapes names {unknown!r}, which is not an argument of forward{did_you_mean(unknown, known)}"
            raise PrepareError(finding("unknown-axis", message))
        spec = [spec.get(name) for name in bound]
    axes: dict[str, dict[int, str]] = {}
    for name, path in zip(recipe.input_names, paths, strict=False):
        leaf = spec
        for key in path:
            if leaf is None:
                break
            try:
                leaf = leaf[key]
            except (LookupError, TypeError):
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

    def shapes(value: Any) -> Any:
        return pytree.tree_map(shape, value, is_leaf=_is_of_own_class)

    def shape(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return dict(axes.get(next(names) or "", {}))
        # A class of the user's need not be able to hold anything but tensors, so torch.export takes a list in its place.
        return [shapes(child) for child in children_of(value)] if _is_of_own_class(value) else None

    return tuple(shapes(list(bound_arguments(call).values())))


def _is_of_own_class(value: Any) -> bool:
    """Whether a value is of a class that the user, or a library, has registered as a pytree."""
    is_builtin = type(value) in pytree.BUILTIN_TYPES or (isinstance(value, tuple) and hasattr(value, "_fields"))
    return not pytree.tree_is_leaf(value) and not is_builtin
