"""The dynamic axes of inputs, and those that a recipe declares, checked against its example.

The sizes of axes are functions of variables (:mod:`onnx_ci.collection.axis_sizes`): the name of an axis is a variable, or an
expression of variables. Only variables are given other sizes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ci.collection.axis_sizes import (
    LONGEST,
    AxisSize,
    DeclaredSizes,
    MultipleOf,
    axis_size,
    axis_size_in,
    permitted,
    solve,
)
from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.pipeline.model.call import Call, PrepareError, bound_arguments, extra_names, recipe_error
from onnx_ci.pipeline.model.containers import children_of, named_leaves
from onnx_ci.pipeline.model.module import signature_of
from onnx_ci.pipeline.model.tensors import Outputs
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.text import listed

# --- the axes of inputs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """A dynamic axis of an input."""

    index: int
    """The position of the input."""
    axis: int
    size: AxisSize


@dataclass(frozen=True, kw_only=True)
class InputAxes:
    """The dynamic axes of inputs. Their sizes follow from those of variables."""

    places: tuple[Place, ...]
    declared: Mapping[str, DeclaredSizes] = field(default_factory=dict)
    """The sizes that a variable can have, by its name, as ``dynamic_sizes`` declares them."""
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and the largest size that a variable can have, as its ``Dim`` declares them."""
    fixed: frozenset[str] = frozenset()
    """Variables that keep their size."""

    def sizes_in(self, inputs: Sequence[torch.Tensor], indices: Collection[int] | None = None) -> dict[str, int]:
        """The sizes of the variables in ``inputs``, read from those at ``indices`` (default: all)."""
        places = (place for place in self.places if indices is None or place.index in indices)
        return solve((place.size, inputs[place.index].shape[place.axis]) for place in places)

    def free_sizes(self, inputs: Sequence[torch.Tensor], following: Collection[int]) -> dict[str, int]:
        """The sizes of the free variables: neither fixed, nor only in inputs of ``following``."""
        independent = {name for place in self.places if place.index not in following for name in place.size.names}
        return {name: size for name, size in self.sizes_in(inputs).items() if name in independent - self.fixed}

    def fitted(
        self,
        inputs: Sequence[torch.Tensor],
        sizes: Mapping[str, int],
        changed: Collection[str],
        *,
        least: int = 1,
        most: float = math.inf,
    ) -> list[torch.Tensor] | None:
        """The inputs with the ``sizes`` of all variables, along the axes with a variable that has ``changed``.

        ``None`` if a size would be smaller than ``least``, or an input would have more than ``most`` elements.
        """
        tensors = list(inputs)
        for place in self.places:
            if not any(name in changed for name in place.size.names):
                continue
            size, tensor = place.size.at(sizes), tensors[place.index]
            if size is None or size < least or size * (tensor.numel() // max(tensor.shape[place.axis], 1)) > most:
                return None
            tensors[place.index] = resized(tensor, place.axis, size)
        return tensors

    def permitted(self, name: str) -> range:
        """The sizes that a variable can have, if they are not listed one by one."""
        declared = self.declared.get(name)
        return permitted(None if isinstance(declared, tuple) else declared, *self.limits.get(name, ()))


def resized(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """``tensor`` with ``size`` along ``axis``, by repeating its slices."""
    old_size = tensor.shape[axis]
    if size == old_size:
        return tensor
    if old_size == 0:
        return tensor.new_zeros([*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]])
    return tensor.index_select(axis, torch.arange(size) % old_size)


# --- the axes that a recipe declares ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DeclaredAxes:
    """The dynamic axes of a recipe's inputs and outputs."""

    labels: Mapping[str, Mapping[int, str]]
    """Their names or expressions, by the name of the input or output and the axis."""
    inputs: InputAxes
    dims: Mapping[str, Any]
    """What dynamo gets in the place of a name: the recipe's own ``Dim`` objects."""
    automatic: frozenset[str]
    """The axes, by name, for which a model need not take other sizes: those with ``Dim.AUTO``."""

    def wrong_outputs(
        self, names: Sequence[str], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Iterator[str]:
        """The outputs, which the model returns for ``inputs``, whose sizes are not the declared expressions, in words."""
        sizes = self.inputs.sizes_in(inputs)
        for name, tensor in zip(names, outputs, strict=False):
            for axis, label in self.labels.get(name, {}).items():
                declared = axis_size_in(name, label)
                if not declared.is_name and (size := declared.at(sizes)) != tensor.shape[axis]:
                    where = f"axis {axis} of output {name!r} is declared as {label!r}"
                    expected = f"which is {size} for {_written(declared, sizes)}"
                    yield f"{where}, {expected}, but the model returns {tensor.shape[axis]}"

    def exchanged_names(
        self, names: Sequence[str], calls: Sequence[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]
    ) -> Iterator[tuple[str, int, str, str]]:
        """The outputs with an axis that has the name of one axis of the inputs, and always the size of another one.

        Args:
            names: of the outputs.
            calls: the inputs and outputs of several calls.

        Yields:
            the name of the output, the axis, its declared name, and the name of the axis of the inputs that it is.
        """
        sizes = [self.inputs.sizes_in(inputs) for inputs, _ in calls]
        for position, name in enumerate(names):
            for axis, label in self.labels.get(name, {}).items():
                actual = [outputs[position].shape[axis] for _, outputs in calls]
                alike = [other for other in sizes[0] if [each.get(other) for each in sizes] == actual]
                if label in sizes[0] and alike and label not in alike and len({*actual}) > 1:
                    yield name, axis, label, alike[0]

    def exchanged_outputs(
        self, names: Sequence[str], calls: Sequence[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]
    ) -> Finding | None:
        """A finding if what is declared of the outputs' axes holds in all ``calls`` only with two of the names exchanged."""
        sizes = [(self.inputs.sizes_in(inputs), outputs) for inputs, outputs in calls]
        axes = {name: [(axis, axis_size_in(name, text)) for axis, text in self.labels.get(name, {}).items()] for name in names}
        follows = {name: all(sizes[0][0].keys() >= {*size.names} for _, size in declared) for name, declared in axes.items()}

        def holds(position: int, name: str) -> bool:
            shapes = [(of_inputs, outputs[position].shape) for of_inputs, outputs in sizes]
            if not all(axis < len(shape) for axis, _ in axes[name] for _, shape in shapes):
                return False
            return not follows[name] or all(
                size.at(known) == shape[axis] for axis, size in axes[name] for known, shape in shapes
            )

        orders = set[tuple[str, ...]]()
        for one, name in enumerate(names):
            for other in range(len(names) if follows[name] and not holds(one, name) else 0):
                order = [*names]
                order[one], order[other] = names[other], name
                if all(map(holds, range(len(names)), order)):
                    orders.add(tuple(order))
        if len(orders) != 1:
            return None
        return misordered("output", names, f"the axes declared for them fit the order {', '.join(orders.pop())}")


def misordered(role: str, declared: Sequence[str], reason: str) -> Finding:
    """Names of inputs or outputs (``role``) are declared in another order than the model's."""
    remedy = f"Declare {role}_names in the model's own order: they are assigned by position."
    return finding("name-mismatch", f"{role}_names lists {', '.join(declared)}, but {reason}", remedy=remedy)


def declared_axes(recipe: Recipe, call: Call, inputs: Sequence[torch.Tensor], outputs: Outputs) -> DeclaredAxes:
    """The dynamic axes, checked against the names, ranks and sizes of the example's inputs and outputs."""
    ranks = {name: tensor.dim() for name, tensor in zip(recipe.input_names, inputs, strict=False)}
    ranks |= {name: tensor.dim() for name, tensor in zip(recipe.output_names, outputs, strict=False)}
    labels, dims = _axes_from_shapes(recipe, call) if recipe.dynamic_shapes is not None else (recipe.dynamic_axes, {})
    places = _places(recipe.input_names[: len(inputs)], labels)
    automatic = frozenset(name for name, dim in dims.items() if _kind(dim) == _kind(torch.export.Dim.AUTO))
    axes = DeclaredAxes(
        labels=labels,
        inputs=InputAxes(places=places, declared=recipe.dynamic_sizes, limits=_limits(dims)),
        dims=dims,
        automatic=automatic,
    )
    outputs_named = recipe.output_names[: len(outputs)]
    for name, by_axis in sorted(labels.items(), key=lambda item: item[0] in outputs_named):
        if name in recipe.input_names[len(inputs) :] and (extra := extra_names(call, recipe.input_names)) is not None:
            raise PrepareError(extra)
        if name not in ranks:
            message = f"dynamic_axes names {name!r}, which is neither in input_names nor in output_names"
            raise PrepareError(finding("unknown-axis", message + did_you_mean(name, ranks)))
        for axis in by_axis:
            if not 0 <= axis < ranks[name]:
                message = f"{name!r} has no axis {axis}: it has {ranks[name]} axes, counted from 0"
                exchanged = axes.exchanged_outputs(outputs_named, [(inputs, outputs)]) if name in outputs_named else None
                raise PrepareError(exchanged or finding("unknown-axis", message))
    _check_example(axes, recipe, inputs, outputs)
    _check_sizes(axes, recipe, inputs)
    return axes


def _places(names: Sequence[str], labels: Mapping[str, Mapping[int, str]]) -> tuple[Place, ...]:
    try:
        return tuple(
            Place(index=index, axis=axis, size=axis_size_in(name, label))
            for index, name in enumerate(names)
            for axis, label in labels.get(name, {}).items()
        )
    except RecipeError as error:  # of dynamic_shapes, whose names are not known when the recipe is declared
        raise PrepareError(finding("unknown-axis", str(error))) from None


def _check_example(axes: DeclaredAxes, recipe: Recipe, inputs: Sequence[torch.Tensor], outputs: Outputs) -> None:
    """Check that the example determines all variables, and has the sizes that they give it."""
    sizes = axes.inputs.sizes_in(inputs)
    for place in axes.inputs.places:
        actual, name = inputs[place.index].shape[place.axis], recipe.input_names[place.index]
        where = f"axis {place.axis} of input {name!r} is declared as {place.size.text!r}"
        unknown = [variable for variable in place.size.names if variable not in sizes]
        if len(unknown) == 1 and place.size.determines(unknown[0], sizes):
            raise PrepareError(finding("name-mismatch", f"{where}, but no {unknown[0]} gives the example's size {actual}"))
        _check_variables(where, place.size, sizes)
        if place.size.is_name and sizes[place.size.text] != actual:
            message = f"the axis name {place.size.text!r} is used for axes of size {sizes[place.size.text]} and {actual}"
            raise PrepareError(finding("name-mismatch", message, remedy=REMEDIES["several-names"]))
        if (size := place.size.at(sizes)) != actual:
            message = f"{where}, which is {size} for {_written(place.size, sizes)}, but the example has {actual}"
            raise PrepareError(finding("name-mismatch", message, remedy="Correct the expression, or the example."))
    for name in recipe.output_names[: len(outputs)]:
        for axis, label in axes.labels.get(name, {}).items():
            if not (declared := axis_size_in(name, label)).is_name:
                where = f"axis {axis} of output {name!r} is declared as {label!r}"
                _check_variables(where, declared, sizes)
    for message in axes.wrong_outputs(recipe.output_names, inputs, outputs):
        raise PrepareError(finding("name-mismatch", message, remedy=REMEDIES["axis-of-its-own"]))


def _check_variables(where: str, size: AxisSize, sizes: Mapping[str, int]) -> None:
    unknown = next((variable for variable in size.names if variable not in sizes), None)
    if unknown is not None:
        message = f"{where}, but {unknown!r} is not an axis of an input{did_you_mean(unknown, sizes)}"
        raise PrepareError(finding("unknown-axis", message, remedy=REMEDIES["unknown-axis"].format(unknown)))


def _written(size: AxisSize, sizes: Mapping[str, int]) -> str:
    """``past = 5``."""
    return listed(f"{name} = {sizes[name]}" for name in size.names)


def _check_sizes(axes: DeclaredAxes, recipe: Recipe, inputs: Sequence[torch.Tensor]) -> None:
    """Check that the axes for which sizes are declared exist and can have other sizes than the example's."""
    sizes = axes.inputs.sizes_in(inputs)
    labels = {*sizes, *(label for of_tensor in axes.labels.values() for label in of_tensor.values())}
    for label, declared in recipe.dynamic_sizes.items():
        if label not in labels:
            message = f"dynamic_sizes names the axis {label!r}, which is not declared{did_you_mean(label, labels)}"
            raise PrepareError(finding("unknown-axis", message))
        if label not in sizes and not axis_size(label).is_name:
            follows = listed(map(repr, axis_size(label).names))
            message = f"dynamic_sizes names the axis {label!r}, whose size follows from {follows}"
            raise PrepareError(finding("unknown-axis", message, remedy=f"Give sizes for {follows}."))
        if isinstance(declared, MultipleOf) and sizes.get(label, 0) % declared.number:
            message = f"dynamic_sizes declares multiples of {declared.number} for {label!r}, but the example has {sizes[label]}"
            raise recipe_error(message, "Correct the number, or choose an example whose size is such a multiple.")
    for label, size in sizes.items():
        one_by_one = recipe.dynamic_sizes.get(label)
        if all(each == size for each in (one_by_one if isinstance(one_by_one, tuple) else axes.inputs.permitted(label)[:2])):
            keyword = "dynamic_sizes" if label in recipe.dynamic_sizes else "its Dim"
            message = f"{keyword} gives no size for {label!r} other than the example's, {size}"
            raise PrepareError(finding("vacuous", message, remedy="Name a size that differs from the example's."))


# --- dynamic_shapes ---------------------------------------------------------------------------------------------------


def _axes_from_shapes(recipe: Recipe, call: Call) -> tuple[dict[str, dict[int, str]], dict[str, Any]]:
    """``dynamic_shapes``, which has the structure of forward's arguments, as axes by input name, and its ``Dim`` objects."""
    bound = bound_arguments(call)
    paths = [path for path, leaf in named_leaves(list(bound.values())) if isinstance(leaf, torch.Tensor)]
    if len(recipe.input_names) < len(paths):
        message = f"dynamic_shapes needs input_names: {len(paths)} names, one for every tensor in args"
        raise PrepareError(finding("name-mismatch", message))
    spec = _spec_by_position(recipe.dynamic_shapes, call, bound)
    axes: dict[str, dict[int, str]] = {}
    dims: dict[str, Any] = {}
    for name, path in zip(recipe.input_names, paths, strict=False):
        try:
            leaf = _entry(spec, list(bound.values()), path)
        except (LookupError, TypeError):
            message = f"dynamic_shapes does not match the structure of args: it has no entry for {name!r}"
            raise PrepareError(finding("unknown-axis", message, remedy=REMEDIES["like-args"])) from None
        entries = leaf.items() if isinstance(leaf, Mapping) else enumerate(leaf or ())
        for axis, dim in entries:
            if dim is not None and not isinstance(dim, int) and dim != torch.export.Dim.STATIC:
                label = dim if isinstance(dim, str) else getattr(dim, "__name__", f"{name}_dim_{axis}")
                axes.setdefault(name, {})[axis] = label
                if not isinstance(dim, str):
                    root = _root(dim)
                    dims |= {label: dim} if root is dim else {root.__name__: root, label: dim}
    return axes, dims


def _entry(spec: Any, arguments: list[Any], path: Sequence[str | int]) -> Any:
    """What ``dynamic_shapes`` has for the tensor at a path: by keys or, as in a list for a class of one's own, by positions."""
    value: Any = arguments
    for key in path:
        if spec is None:
            return None
        children = children_of(value)
        keys = [each for each, _ in children]
        by_position = key in keys and not isinstance(spec, Mapping)
        spec = children_of(spec)[keys.index(key)][1] if by_position else spec[key]
        value = children[keys.index(key)][1] if key in keys else None
    return spec


def _spec_by_position(spec: Any, call: Call, bound: Mapping[str, Any]) -> Any:
    """``dynamic_shapes`` in the order of forward's arguments, also if it names them."""
    if not isinstance(spec, Mapping):
        return spec
    signature = signature_of(call.model)
    parameters = list(signature.parameters if signature else bound)
    unknown = next((name for name in spec if name not in parameters), None)
    if unknown is not None:
        message = f"dynamic_shapes names {unknown!r}, which is not an argument of forward{did_you_mean(unknown, parameters)}"
        raise PrepareError(finding("unknown-axis", message, remedy=REMEDIES["like-args"]))
    return [spec.get(name) for name in bound]


def _kind(dim: Any) -> Any:
    """What a hint such as ``Dim.AUTO(max=8)`` has in common with the same one without limits."""
    return getattr(dim, "type", dim)


def _root(dim: Any) -> Any:
    """The ``Dim`` from which a derived one, such as ``2*past + 1``, is derived; others are their own."""
    return getattr(dim, "root", dim)


def _limits(dims: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The smallest and the largest size that each ``Dim`` gives for its axis."""
    limits = {}
    for name, dim in dims.items():
        if _root(dim) is dim:
            low, high = getattr(dim, "min", None), getattr(dim, "max", None)
            limits[name] = (max(1, low) if isinstance(low, int) else 1, high if isinstance(high, int) else LONGEST - 1)
    return limits


def dynamic_shapes_tree(call: Call, input_names: tuple[str | None, ...], axes: DeclaredAxes) -> tuple[Any, ...] | None:
    """The inputs' dynamic axes as ``dynamic_shapes`` of ``torch.export``, or ``None`` if there are none.

    A ``Dim`` stays what it is, because torch.export treats it otherwise than a name, which torch.onnx takes as ``Dim.DYNAMIC``:
    of an axis that it finds to be static, it raises an error, where it silently fixes one with a ``Dim`` (torch 2.13).
    """
    if not axes.labels:
        return None
    names = iter(input_names)

    def shapes(value: Any) -> Any:
        return pytree.tree_map(shape, value, is_leaf=_is_of_own_class)

    def shape(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            labels = axes.labels.get(next(names) or "", {})
            return {axis: axes.dims.get(label, label) for axis, label in labels.items()}
        # A class of the user's need not be able to hold anything but tensors, so torch.export takes a list in its place.
        return [shapes(child) for _, child in children_of(value)] if _is_of_own_class(value) else None

    return tuple(shapes(list(bound_arguments(call).values())))


def _is_of_own_class(value: Any) -> bool:
    """Whether a value is of a class that the user, or a library, has registered as a pytree."""
    is_builtin = type(value) in pytree.BUILTIN_TYPES or (isinstance(value, tuple) and hasattr(value, "_fields"))
    return not pytree.tree_is_leaf(value) and not is_builtin
