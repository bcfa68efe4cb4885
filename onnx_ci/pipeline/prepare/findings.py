"""What is wrong with a recipe before any export: its names, arguments and outputs, its axes, and how far it can be compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from onnx_ci.collection.axis_sizes import AxisSize, MultipleOf, unnamed_axes
from onnx_ci.collection.recipe import Recipe
from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.pipeline.domains.axes import DeclaredAxes, misordered
from onnx_ci.pipeline.inputs import conditions
from onnx_ci.pipeline.inputs.probes import EXAMPLE, InputStatus, Probe
from onnx_ci.pipeline.inputs.sizes import ResizedProbes
from onnx_ci.pipeline.model.call import (
    Call,
    PrepareError,
    bound_arguments,
    extra_names,
    recipe_error,
    wrapper_without_constants,
)
from onnx_ci.pipeline.model.containers import name_of, named_leaves
from onnx_ci.pipeline.model.module import unlike_others
from onnx_ci.pipeline.model.tensors import Outputs, dtype_name, has_noise, largest_value
from onnx_ci.pipeline.prepare.observability import Observability
from onnx_ci.pipeline.prepare.side_effects import lines_that_draw
from onnx_ci.pipeline.trace.recorder import MOST_EVENTS
from onnx_ci.pipeline.trace.trace import Trace, UnseenRead
from onnx_ci.results.records import Finding, Severity, SourceLine
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.text import count, listed, listed_shortly


def check_outputs(result: Any, tensors: Outputs, recipe: Recipe) -> None:
    """Raise a :class:`PrepareError` unless a model's outputs can be exported and have the declared names."""
    if not tensors:
        message = f"the model returns no tensor: its output is of the class {type(result).__name__}"
        raise recipe_error(message, REMEDIES["no-tensor"])
    if any(tensor.is_complex() for tensor in tensors):
        raise recipe_error("the model returns a complex tensor, which cannot be exported", "Return torch.view_as_real of it.")
    if len(recipe.output_names) > len(tensors):
        message = f"output_names declares {len(recipe.output_names)} names, but the model returns {len(tensors)} tensors"
        raise PrepareError(finding("name-mismatch", message, remedy="Declare one name for every tensor that forward returns."))


def check_parameters(call: Call, outputs: Outputs) -> None:
    """Raise a :class:`PrepareError` if a parameter makes outputs NaN: nothing that a file computes there could be verified."""

    def has_nan(tensor: torch.Tensor) -> bool:
        return has_noise(tensor) and bool(tensor.isnan().any())

    for name, weight in call.model.named_parameters() if any(map(has_nan, outputs)) else ():
        if unlike_others(weight) is None and has_nan(weight):
            raise recipe_error(
                f"the weight {name!r} is NaN in {int(weight.isnan().sum())} of {count(weight.numel(), 'value')}, and the model "
                "returns NaN on its example",
                "Load a checkpoint without NaN: training that diverges saves NaN without an error.",
            )


# --- the call ---------------------------------------------------------------------------------------------------------


def of_call(call: Call, result: Any, recipe: Recipe, *, tells_loading: bool) -> Iterator[Finding]:
    """Findings about a model, its arguments and what it returns, with a note if it loads weights and that is asked for."""
    if call.loaded_with and tells_loading:
        message = f"the recipe loads weights ({listed(call.loaded_with)}), so the model is exported with these"
        yield finding("loaded-weights", message)
    for remark in call.remarks:
        yield finding("model-kind", remark)
    if call.global_changes.descriptions:
        changed = ", ".join(call.global_changes.descriptions)
        yield finding("global-state", f"building the model changes {changed} and does not restore it")
    yield from _baked_arguments(call)
    for path, leaf in named_leaves(result):
        if leaf is not None and not isinstance(leaf, torch.Tensor):
            message = f"the model returns a {type(leaf).__name__} at {name_of(path)}, which an ONNX output cannot hold"
            yield finding("output-mismatch", message, remedy=REMEDIES["other-outputs"])
    yield from _misordered_names(call, result, recipe)
    if (extra := extra_names(call, recipe.input_names)) is not None:
        yield extra


def _baked_arguments(call: Call) -> Iterator[Finding]:
    """Arguments that are not tensors: the exporters turn them into constants.

    Booleans and ``None`` are options of the model; numbers and strings are data, which the file no longer accepts.
    """
    wrapper = wrapper_without_constants(call)
    remedy = None if wrapper is None else f"Pass a tensor, or fix the value: {wrapper}."
    for path, leaf in named_leaves(bound_arguments(call)):
        if isinstance(leaf, (str, int, float)) and not isinstance(leaf, bool):
            fate = "becomes a constant of the file"
            if not isinstance(leaf, str):
                fate += " or, with TorchScript, an undeclared input"
            message = f"the argument {name_of(path)} is the {type(leaf).__name__} {leaf!r}, which {fate}"
            yield finding("baked-argument", message, remedy=remedy)


def _misordered_names(call: Call, result: Any, recipe: Recipe) -> Iterator[Finding]:
    """Declared names that the model uses for another input or output, as a parameter, key or field."""
    inputs, outputs = named_leaves(bound_arguments(call)), named_leaves(result)
    for role, declared_names, leaves in (("input", recipe.input_names, inputs), ("output", recipe.output_names, outputs)):
        paths = [path for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
        if len(declared_names) > len(paths):
            continue  # which is another finding
        last_names = [path[-1] if path and isinstance(path[-1], str) else None for path in paths]
        for model_names in (last_names, [name_of(path) for path in paths]):
            pairs = zip(model_names, declared_names, strict=False)
            if any(name != declared and name in declared_names and declared in model_names for name, declared in pairs):
                yield misordered(role, declared_names, f"the model's own order is {', '.join(map(str, model_names))}")
                break


# --- sizes ------------------------------------------------------------------------------------------------------------

Written = Callable[[Finding, str], Finding]
"""Adds to a finding about an axis, by its name, which numbers in the model should be its size."""


def of_output_sizes(
    recipe: Recipe, resized: ResizedProbes, probes: Sequence[Probe], axes: DeclaredAxes, written: Written
) -> Iterator[Finding]:
    """Findings about the declared axes of outputs, but for those of which no other size was tested."""
    calls = [(probe.inputs, probe.reference.own) for probe in probes]
    names = recipe.output_names[: len(calls[0][1])]
    if (exchanged := axes.exchanged_outputs(names, calls)) is not None:
        raise PrepareError(exchanged)
    untested = {name for name, _ in resized.untested(probes, axes.inputs)}
    yield from (each for label, each in _constant_axes(recipe, probes, axes, written) if label not in untested)
    for name, axis, label, other in axes.exchanged_names(names, calls):
        message = f"axis {axis} of output {name!r} is declared as {label!r}, but is as long as {other!r} on every input"
        yield finding("name-mismatch", message, remedy=f"Declare it as {other!r}.", output=name, details={"axis": axis})
    for probe in probes:
        for wrong in axes.wrong_outputs(recipe.output_names, probe.inputs, probe.reference.own):
            yield finding("name-mismatch", f"{wrong} on {probe.name!r}", remedy=REMEDIES["axis-of-its-own"])
            return


def untested_axes(
    resized: ResizedProbes, probes: Sequence[Probe], axes: DeclaredAxes, rejections: Mapping[str, str], written: Written
) -> Iterator[Finding]:
    """Axes of inputs that are declared dynamic but have the same size on every input; ``rejections`` says why, by its name."""
    for label, sizes in resized.untested(probes, axes.inputs):
        if label in axes.automatic:
            continue
        rejected = ", ".join(map(str, sizes))
        message = f"the dynamic axis {label!r} was not tested: the model itself rejects the sizes {rejected}"
        names = [name for name in (f"{label}={size}" for size in reversed(sizes)) if name in rejections]
        message += "".join(f"; on {name!r}, {rejections[name]}" for name in names[:1])
        remedy = REMEDIES["untested-axis"].format(label)
        untested = finding("vacuous", message, remedy=remedy, details={"dynamic_axis": label})
        yield written(untested, label)


def undeclared_relations(resized: ResizedProbes, axes: DeclaredAxes) -> Iterator[Finding]:
    """What the model requires of the sizes of axes, although the recipe does not declare it."""
    unnamed = unnamed_axes(axes.labels)
    for relation in resized.relations:
        if isinstance(relation.requires, AxisSize) and unnamed & {relation.name, relation.requires.text}:
            continue  # two axes are equal whose relation the recipe leaves to the exporter
        name, rejected = relation.name, ", ".join(map(str, relation.refused))
        match relation.requires:
            case MultipleOf(number=number):
                accepts = f"multiples of {number}"
                remedy = f"Declare it: dynamic_sizes={{{name!r}: onnx_ci.multiple_of({number})}}."
            case AxisSize(text=text):
                accepts = repr(text)
                declarations = (
                    f"{tensor!r}: {{{axis}: {text!r}}}"
                    for tensor, labels in axes.labels.items()
                    for axis, label in labels.items()
                    if label == name
                )
                remedy = f"Declare it in dynamic_axes or dynamic_shapes: {', '.join(declarations)}."
        message = f"the model rejects the sizes {rejected} of the axis {name!r} and accepts {accepts}"
        yield finding("size-relation", message, remedy=remedy)


def _constant_axes(
    recipe: Recipe, probes: Sequence[Probe], axes: DeclaredAxes, written: Written
) -> Iterator[tuple[str, Finding]]:
    """Axes of outputs, by declared names, that have one size on every input on which a wrong one is an error."""
    legal = [probe for probe in probes if probe.legality is InputStatus.LEGAL]
    for position, name in enumerate(recipe.output_names[: len(probes[0].reference.own)]):
        shapes = [probe.reference.own[position].shape for probe in legal]
        sizes_of_inputs = [axes.inputs.sizes_in(probe.inputs) for probe in legal]
        for axis, label in axes.labels.get(name, {}).items():
            if len({shape[axis : axis + 1] for shape in shapes}) == 1:
                where, size = f"axis {axis} of output {name!r}", shapes[0][axis]
                message = f"{where} is declared dynamic as {label!r}, but has size {size} on every input"
                remedy = REMEDIES["follows-no-input"].format(axis, name)
                inputs = zip(recipe.input_names, probes[0].inputs, strict=False)
                alike = ((each, at) for each, tensor in inputs for at, other in enumerate(tensor.shape) if other == size > 1)
                if other := next((pair for pair in alike if pair[1] not in axes.labels.get(pair[0], {})), None):
                    remedy = REMEDIES["undeclared-input-axis"].format(*other, label, axis, name)
                elif label in sizes_of_inputs[0]:
                    pairs = [*zip(shapes, (each[label] for each in sizes_of_inputs), strict=True)]
                    follows = (at for at in range(len(shapes[0])) if all(size in each[at:][:1] for each, size in pairs))
                    remedy = f"Leave axis {axis} out of dynamic_axes[{name!r}]: its size does not follow that of {label!r}"
                    remedy += "".join(f", but that of axis {other} does" for other in itertools.islice(follows, 1)) + "."
                constant = finding("vacuous", message, remedy=remedy, output=name, details={"axis": axis})
                yield label, written(constant, label)


# --- the trace --------------------------------------------------------------------------------------------------------


def not_recorded(trace: Trace) -> Iterator[Finding]:
    """Notes if a trace has not all that the model does, and for each line that hides what it decides by numbers of inputs."""
    if not trace.is_complete:
        has_room = len(trace.events) < MOST_EVENTS
        what = "calls on unusual tensors" if has_room else f"all but its first {len(trace.events):,} calls"
        message = f"what the model does was not recorded as a whole: branches and indices in {what} are not looked for"
        yield finding("untaken-branch", message, severity=Severity.NOTE, remedy="No action is needed if there are none.")
    of_inputs = trace.from_inputs
    lines = dict[SourceLine, str]()
    for read in trace.of_kind(UnseenRead):
        is_reported = any(conditions.is_reported(frame.code, frame.offset) for frame in read.place.frames)
        if read.place.source is not None and not (is_reported or read.place.is_in_torch or of_inputs.isdisjoint(read.values)):
            lines.setdefault(read.place.source, read.function)
    for source, function in lines.items():
        message = f"numbers of the inputs leave torch by {function}, and what is decided by them is not seen"
        yield finding("untaken-branch", message, severity=Severity.NOTE, remedy=REMEDIES["unseen"], source=source)


# --- precision --------------------------------------------------------------------------------------------------------


def noisy_outputs(limit: DriftLimit, probes: Sequence[Probe], trace: Trace, *, repeats: bool) -> Iterator[Finding]:
    """Outputs whose noise affects more than half of their digits: almost any file would pass a comparison by drift.

    A model that seeds itself repeats its numbers on each run, but torch draws other ones in float64. Of the probes, only given
    inputs and the steps of sequences are checked, over which rounding errors can grow. Others that are too noisy prove nothing,
    which is said where files are compared.
    """
    if limit.has_tolerance:
        return
    checked = [probe for probe in probes if probe.is_given or probe.fed]
    for position in range(len(checked[0].reference.own)):
        noisy = next((probe for probe in checked if probe.reference.is_noisy(position)), None)
        if noisy is not None:
            where = "" if noisy.name == EXAMPLE else f" on {noisy.name!r}"
            output, noise = noisy.reference.own[position], noisy.reference.noise[position]
            largest = largest_value(output)
            drawing = lines_that_draw(trace)
            remedy = REMEDIES["rounded"].format(", or fewer steps" if noisy.fed else "") if repeats else REMEDIES["differs"]
            yield finding(
                "vacuous",
                f"output {position} of the model differs by {noise:.2g} between {dtype_name(output)} and float64, and its "
                f"largest value is {largest:.2g}: too noisy to compare by drift{where}",
                remedy=REMEDIES["drawn"] if drawing else remedy,
                source=drawing[0] if drawing else None,
                details={"noise": noise, "max_abs": largest},
            )


def without_float64(probes: Sequence[Probe]) -> Iterator[Finding]:
    """A note if the noise is estimated by perturbation."""
    called = [probe for probe in probes if not probe.fed]
    perturbed = [probe.name for probe in called if probe.reference.method == "perturbation"]
    if perturbed:
        where = "" if len(perturbed) == len(called) else f" (on {listed_shortly(perturbed)})"
        message = f"the model cannot run in float64{where}: its noise is estimated by perturbation"
        yield finding("no-float64", message)


def not_watchable() -> Finding:
    """A note that the model computes something else where its operators are watched."""
    message = (
        "the model returns other bits while its operators are watched, as torch's encoder layers do, so they are not watched: "
        "in float64, casts in its code still round, and equal values are tried in one order only"
    )
    return finding("vacuous", message, severity=Severity.NOTE, remedy=REMEDIES["not-watchable"])


# --- observability ----------------------------------------------------------------------------------------------------


def observability_unknown() -> Finding:
    """A note that this process cannot compute gradients."""
    message = "observability was not measured: the parent process has already computed gradients"
    return finding("vacuous", message, severity=Severity.NOTE, remedy=REMEDIES["no-gradients"])


def of_observability(observability: Observability) -> Iterator[Finding]:
    """Modules in which an error would go unnoticed; an error if that is true of all of them."""
    hidden, visible = observability.hidden, observability.visible
    if not hidden:
        return
    named = ", ".join(map(repr, hidden[:3])) + (" and more" if len(hidden) > 3 else "")
    has = "has" if len(hidden) == 1 else "have"
    message = f"{len(hidden)} of {len(hidden) + len(visible)} modules {has} no measurable effect on the outputs: {named}"
    if visible:
        yield finding("vacuous", message, severity=Severity.NOTE, remedy="An error there can only show on other inputs.")
    else:
        yield finding("vacuous", message, remedy=REMEDIES["hidden-modules"])
