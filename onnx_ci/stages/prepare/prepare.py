"""Everything that the cells of a recipe need before any export: the live model, its inputs and its reference outputs."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from onnx_ci.collection.axis_sizes import AxisSize, MultipleOf
from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import ConfigurationError
from onnx_ci.matrix.plan import DriftLimit, PlannedCell
from onnx_ci.onnx_model.precision import Precision
from onnx_ci.onnx_model.saved_inputs import ExpectedInput, find_inputs, read_inputs
from onnx_ci.processes.allocator import return_free_memory, return_large_blocks
from onnx_ci.processes.capture import timed
from onnx_ci.results.records import Finding, InputDomain, Severity, TensorSketch
from onnx_ci.results.rules import finding
from onnx_ci.stages.inputs.axes import DeclaredAxes, declared_axes, dynamic_shapes_tree
from onnx_ci.stages.inputs.branches import Branches, BranchFinder, UntakenBranch
from onnx_ci.stages.inputs.call_probes import call_probes
from onnx_ci.stages.inputs.domains import InputDomains
from onnx_ci.stages.inputs.inferred_domains import watch_lookups
from onnx_ci.stages.inputs.probes import EXAMPLE, ModelProber, Probe, RandomProber
from onnx_ci.stages.inputs.sequences import Sequences
from onnx_ci.stages.inputs.sizes import ResizedProbes
from onnx_ci.stages.inputs.special_values import Variation, constants_of, variations
from onnx_ci.stages.model.arrays import as_array, as_tensor
from onnx_ci.stages.model.containers import Container, Path, containers_in, name_of, named_leaves
from onnx_ci.stages.model.copies import Copies, copied_call, is_large
from onnx_ci.stages.model.devices import TF32_EPS, exact_arithmetic
from onnx_ci.stages.model.live_model import (
    Call,
    Outputs,
    PrepareError,
    bound_arguments,
    build_on,
    dtype_name,
    flatten_outputs,
    has_noise,
    input_tensors,
    on_cpu,
    recipe_error,
    run,
    run_tree,
    with_own_inputs,
)
from onnx_ci.stages.model.probe_weights import assign_weights, with_probe_weights
from onnx_ci.stages.model.tensor_sketch import sketch
from onnx_ci.stages.prepare.observability import NoGradientsError, Observability, affect_outputs, observe
from onnx_ci.stages.prepare.side_effects import SideEffects, find_side_effects
from onnx_ci.stages.reference.reference import Reference, at_precision, largest_value, make_reference, random_reference
from onnx_ci.stages.reference.runtime_rounding import with_runtime_rounding
from onnx_ci.text import listed


@dataclass(frozen=True, kw_only=True)
class Exportable:
    """What an export needs of a recipe. ``fresh()`` returns a new copy of the model and its arguments, one for each export."""

    recipe: Recipe
    device: str
    fresh: Callable[..., Call]
    """The method of :class:`~onnx_ci.stages.model.copies.Copies`."""
    pristine: Call
    """The call that ``fresh()`` copies; it is never run or changed."""
    axes: Mapping[str, Mapping[int, str]]
    """The declared dynamic axes by input or output name, from ``dynamic_axes`` or ``dynamic_shapes``."""
    dynamic_shapes: tuple[Any, ...] | None
    """The inputs' dynamic axes as ``dynamic_shapes`` of ``torch.export``, in the order of forward's parameters."""


@dataclass(frozen=True, kw_only=True)
class Prepared(Exportable):
    """A recipe ready for its cells."""

    probes: tuple[Probe, ...]
    """The example first. One may have several special values in its rows: see :attr:`separated`."""
    separate: Callable[[], tuple[Probe, ...]] | None
    """Makes the probes of which each has a single kind of special values; ``None`` if all of them already are such."""
    cpu_outputs: Outputs | None
    """For a GPU, the model's outputs on the CPU in its own data type; ``None`` on the CPU, or if the model cannot run there."""
    inputs: tuple[InputDomain, ...]
    """What the inputs are, and which values they are given."""
    input_names: tuple[str | None, ...]
    """The declared name of each tensor argument, or ``None``."""
    arguments: tuple[Container, ...]
    """The arguments of other classes than tuple, list and dict."""
    outputs: tuple[Container, ...]
    """The outputs of such classes."""
    untaken_branches: tuple[UntakenBranch, ...]
    """The branches of which no probe takes the other side."""
    findings: tuple[Finding, ...]
    """What is wrong before any export."""
    changed_by_running: tuple[str, ...]
    """The state that a run of the model changes, so that it is not attributed to the export."""
    has_side_effects: bool
    """Whether one run of the model may affect another one, or an export; also if that is unknown."""
    exports_own_parameters: bool
    """Whether an export gets the parameters of ``pristine`` instead of copies, for which there may not be enough memory."""
    has_probe_weights: bool
    """Whether the model has probe weights instead of its own."""
    observability: Observability | None
    """Which modules affect the outputs measurably; ``None`` if gradients cannot show it."""
    weights_sketch: TensorSketch
    """A sketch of the exported parameters and buffers."""
    arguments_sketch: TensorSketch
    """A sketch of the tensor arguments."""
    timings: Mapping[str, float]
    """Seconds by stage."""

    @functools.cached_property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by name, if ``export_params=False`` makes them inputs of the file; otherwise empty."""
        if self.recipe.export_options.get("export_params", True):
            return {}
        return {name: tensor.detach().cpu() for name, tensor in self.pristine.model.state_dict().items()}

    @functools.cached_property
    def hides_modules(self) -> bool:
        """Whether the weights hide modules that other weights may show. One that nothing uses, such as a pooler, none can."""
        seen = self.observability
        if seen is None or not seen.hidden:
            return False
        may_be_unused = set(seen.hidden) == set(seen.without_gradient)
        return not may_be_unused or affect_outputs(self.fresh(), seen.hidden, self.example.reference.own)

    def weights_are_unchanged(self) -> bool:
        """Whether the parameters and buffers still are what :attr:`weights_sketch` describes."""
        return _sketch_of_weights(self.pristine.model) == self.weights_sketch

    @functools.cached_property
    def separated(self) -> Prepared:
        """The same with a probe for each kind of special values, by which a file is judged that is wrong on several at once."""
        return self if self.separate is None else replace(self, probes=self.separate(), separate=None)

    @property
    def example(self) -> Probe:
        """The recipe's own input."""
        return self.probes[0]

    def at_precision(self, precision: Precision) -> Prepared:
        """The same, and if a file fails, it is judged again in units of the rounding of a lower precision."""
        if precision.eps <= self.example.reference.eps:
            return self
        if self.separate is not None:
            return self.separated.at_precision(precision)
        if self.recipe.nondeterministic:
            return replace(self, probes=tuple(each.with_eps(precision.eps) for each in self.probes))
        refined = (
            (each, functools.partial(at_precision, self.fresh, each.inputs, each.reference, precision)) for each in self.probes
        )
        probes = tuple(replace(each, refinements=(*each.refinements, lowered)) for each, lowered in refined)
        return replace(self, probes=probes)


def prepare(
    planned: PlannedCell,
    *,
    probe_weights: bool | None = False,
    export_ahead: Callable[[Exportable], None] | None = None,
) -> Prepared:
    """Build the model of a cell's recipe on the cell's device and compute its references.

    The result can be used for every exporter and opset of the same recipe, device and settings.

    Args:
        planned: the cell.
        probe_weights: whether the model gets weights that reveal errors, instead of its own; ``None`` for unless the recipe's
            function loads weights. A model that fails on its example with these weights keeps its own.
        export_ahead: called as soon as an export could begin, unless that may take too much memory or must not be used: see
            :attr:`Prepared.has_side_effects`.

    Raises:
        PrepareError: the recipe cannot be used; the error carries the finding.
    """
    recipe, device = planned.recipe, planned.cell.device
    timings: dict[str, float] = {}
    is_undecided, has_probe_weights = probe_weights is None, False

    def rebuild() -> Call:
        nonlocal probe_weights, has_probe_weights
        with exact():  # restores the modes that the recipe itself changes
            call = build_on(recipe, device, planned.weights)
            if probe_weights is None:
                probe_weights = not call.loaded_with
            if probe_weights:
                probed = with_probe_weights(copied_call(call) or build_on(recipe, device, planned.weights))
                if probed is not None:
                    assign_weights(call, probed)
                    has_probe_weights = True
            return call

    on_gpu = device != "cpu"
    exact = functools.partial(exact_arithmetic, tf32=recipe.tf32 and on_gpu, for_reference=on_gpu)
    with exact():
        with timed("build", timings):
            pristine = rebuild()
        counts_memory = is_large(pristine.model)
        if counts_memory:
            return_large_blocks()
            return_free_memory()  # that of the weights which probe weights have replaced
        copies = Copies(pristine, rebuild, eps=TF32_EPS if recipe.tf32 and on_gpu else 0.0)
        tensors = input_tensors(pristine)
        input_names = tuple(name for _, name in itertools.zip_longest(tensors, recipe.input_names[: len(tensors)]))
        with timed("reference", timings):
            with watch_lookups() as lookups:
                made = copies.first_run()
            own, outputs = flatten_outputs(made), tuple(containers_in(made))
            _check_outputs(made, own, recipe)
            axes = declared_axes(recipe, pristine, tensors, own)
            exportable = Exportable(
                recipe=recipe,
                device=device,
                fresh=copies.fresh,
                pristine=pristine,
                axes=axes.labels,
                dynamic_shapes=dynamic_shapes_tree(pristine, input_names, axes),
            )
            looks_for_side_effects = "side-effects" not in planned.skip_stages and not recipe.nondeterministic
            if export_ahead is not None and looks_for_side_effects and not counts_memory:
                export_ahead(exportable)
            reference = random_reference(copies, own) if recipe.nondeterministic else make_reference(copies, own)
            as_runtimes = functools.cache(functools.partial(with_runtime_rounding, copies, reference))
            refinements = () if recipe.nondeterministic else (as_runtimes,)
            example = Probe(name=EXAMPLE, inputs=on_cpu(tensors), reference=reference, refinements=refinements)
            cpu_outputs = _cpu_outputs(copies) if on_gpu else None
            copies.try_on_cpu_first = cpu_outputs is not None
        findings = [
            *(_loaded_weights(pristine) if is_undecided else ()),
            *_global_changes(pristine),
            *_baked_arguments(pristine),
            *_unsupported_outputs(made, recipe),
            *_misordered_names(pristine, made, recipe),
            *_extra_names(recipe, len(tensors)),
        ]
        with timed("sketch", timings):
            weights_sketch = _sketch_of_weights(pristine.model)
            arguments_sketch = sketch(tensors)
        effects = SideEffects()
        observability, measured = None, False
        if looks_for_side_effects:
            with timed("side-effects", timings):
                effects = find_side_effects(copies, own, example.inputs, training=recipe.training)
                findings += effects.findings
                if effects.can_share:
                    copies.share()
        with timed("probes", timings):
            prober = (RandomProber if recipe.nondeterministic else ModelProber)(copies, example)
            domains = InputDomains(recipe.domains, input_names, axes.labels, example.inputs, _own_names(pristine), lookups)
            given = [*_given_probes(planned, prober, input_names, axes.labels)]
            sequences = Sequences(copies, recipe, example, axes, domains)
            special: Sequence[Variation] = ()
            if "special-inputs" not in planned.skip_stages:
                special = [*variations(example.inputs, domains, constants_of(pristine.model))]
            finder = BranchFinder(copies, prober, axes.inputs, sequences.following, domains)
            is_observed = effects.can_share and "branches" not in planned.skip_stages
            single = call_probes(
                prober,
                axes.inputs,
                sequences.following,
                domains,
                special,
                skip_stages=planned.skip_stages,
                can_use_rows=is_observed and not recipe.feedback and not finder.decides_by_values,
            )
            example = prober.example
            found = [example, *given, *single.probes]
            if recipe.feedback and "steps" not in planned.skip_stages:
                steps, incomplete = sequences.probes(found)
                found += steps
                findings += incomplete
            probes = tuple(found)
        branches = Branches()
        if "branches" not in planned.skip_stages:
            with timed("branches", timings):
                # Who allows it knows that no input takes the other side.
                branches = finder.find(probes, search="untaken-branch" not in planned.allow)
                probes += branches.probes

        def separate() -> tuple[Probe, ...]:
            with exact():
                return (example, *given, *single.separated(), *branches.probes)

        findings += [*_untested_axes(single.resized, probes, axes), *_undeclared_relations(single.resized, axes)]
        findings += _too_noisy(planned.max_drift, probes)
        findings += _without_float64(probes)
        if "sizes" not in planned.skip_stages:
            findings += [*_constant_axes(recipe, probes, axes.labels), *_wrong_outputs(recipe, probes, axes)]
        last = copies.release()
        if "observability" not in planned.skip_stages and not recipe.nondeterministic:
            with timed("observability", timings), contextlib.suppress(NoGradientsError):
                observability = observe(last or copies.fresh(), example.reference.noise, _limits(planned, own))
                measured = True
            findings += _hidden_modules(observability) if measured else [_observability_unknown()]
    return Prepared(
        **vars(exportable),
        has_side_effects=not effects.can_share,
        exports_own_parameters=counts_memory and effects.can_share and not on_gpu,
        probes=probes,
        separate=functools.cache(separate) if single.has_special_rows else None,
        cpu_outputs=cpu_outputs,
        inputs=domains.described(),
        input_names=input_names,
        arguments=tuple(containers_in(bound_arguments(pristine))),
        outputs=outputs,
        untaken_branches=branches.untaken,
        findings=tuple(findings),
        changed_by_running=tuple(effects.changed),
        has_probe_weights=has_probe_weights,
        observability=observability,
        weights_sketch=weights_sketch,
        arguments_sketch=arguments_sketch,
        timings=timings,
    )


def _sketch_of_weights(model: torch.nn.Module) -> TensorSketch:
    return sketch([*model.parameters(), *model.buffers()])


def describe_inputs(planned: PlannedCell) -> tuple[InputDomain, ...]:
    """What the inputs of a cell's recipe are, and which values they are given, without computing any reference.

    Raises:
        PrepareError: the recipe cannot be used; the error carries the finding.
    """
    recipe = planned.recipe
    call = build_on(recipe, planned.cell.device, planned.weights)
    tensors = input_tensors(call)
    names = tuple(name for _, name in itertools.zip_longest(tensors, recipe.input_names[: len(tensors)]))
    with watch_lookups() as lookups:
        made = run_tree(with_own_inputs(call), seed=recipe.seed)
    axes = declared_axes(recipe, call, tensors, flatten_outputs(made))
    return InputDomains(recipe.domains, names, axes.labels, on_cpu(tensors), _own_names(call), lookups).described()


def _given_probes(
    planned: PlannedCell, prober: ModelProber, names: Sequence[str | None], axes: Mapping[str, Mapping[int, str]]
) -> Iterator[Probe]:
    """The inputs in files that the recipe or the settings name.

    Raises:
        PrepareError: a file does not exist, cannot be read, or contains other arrays than the model's inputs; or the model
            rejects them.
    """
    expected = [
        ExpectedInput(
            name=name,
            dtype=as_array(tensor).dtype,
            dims=tuple(None if axis in axes.get(name or "", {}) else size for axis, size in enumerate(tensor.shape)),
        )
        for name, tensor in zip(names, prober.example.inputs, strict=True)
    ]
    for each in planned.inputs:
        try:
            for name, path in find_inputs(each.folder, each.patterns).items():
                tensors = [as_tensor(array) for array in read_inputs(path, expected)]
                yield prober.required(name, tensors)
        except ConfigurationError as error:
            raise recipe_error(str(error), _INPUTS) from None
        except PrepareError as error:
            raise recipe_error(f"{error.finding.message} on the inputs of {name}", _INPUTS) from None


_INPUTS = "Fix the file, or the recipe's inputs or --inputs that name it."


def _limits(planned: PlannedCell, own: Outputs) -> list[float]:
    """The largest drift that passes, for each output; 1 for values that are compared exactly."""
    names = itertools.zip_longest(planned.recipe.output_names[: len(own)], own)
    return [planned.max_drift.of(name, dtype_name(tensor)) if has_noise(tensor) else 1.0 for name, tensor in names]


def _cpu_outputs(copies: Copies) -> Outputs | None:
    try:
        with exact_arithmetic():
            return run(copies.on_cpu())
    except Exception:  # a model may only support its device, and moving it can raise anything
        return None


def _check_outputs(made: Any, own: Outputs, recipe: Recipe) -> None:
    if not own:
        message = f"the model returns no tensor: its output is of the class {type(made).__name__}"
        raise recipe_error(message, f"Return at least one tensor from forward. {_CHOOSE_OUTPUTS}")
    if any(tensor.is_complex() for tensor in own):
        raise recipe_error("the model returns a complex tensor, which cannot be exported", "Return torch.view_as_real of it.")
    if len(recipe.output_names) > len(own):
        message = f"output_names declares {len(recipe.output_names)} names, but the model returns {len(own)} tensors"
        raise PrepareError(finding("name-mismatch", message, remedy="Declare one name for every tensor that forward returns."))


_CHOOSE_OUTPUTS = "To choose among what the model returns, wrap it: onnx_ci.adapt(model, outputs=NAMES_OR_FUNCTION)."


# --- findings before the export -------------------------------------------------------------------------------------


def _global_changes(call: Call) -> Iterator[Finding]:
    if call.global_changes.descriptions:
        changed = ", ".join(call.global_changes.descriptions)
        yield finding("global-state", f"building the model changes {changed} and does not restore it")


def _loaded_weights(call: Call) -> Iterator[Finding]:
    if call.loaded_with:
        message = f"the recipe loads weights ({listed(call.loaded_with)}), so the model is exported with these"
        yield finding("loaded-weights", message)


def _baked_arguments(call: Call) -> Iterator[Finding]:
    """Arguments that are not tensors: the exporters turn them into constants.

    Booleans and ``None`` are options of the model; numbers and strings are data, which the file no longer accepts.
    """
    for path, leaf in named_leaves(bound_arguments(call)):
        if isinstance(leaf, (str, int, float)) and not isinstance(leaf, bool):
            fate = "becomes a constant of the file"
            if not isinstance(leaf, str):
                fate += " or, with TorchScript, an undeclared input"
            message = f"the argument {name_of(path)} is the {type(leaf).__name__} {leaf!r}, which {fate}"
            yield finding("baked-argument", message)


def _unsupported_outputs(made: Any, recipe: Recipe) -> Iterator[Finding]:
    """Outputs that ONNX cannot represent: numbers, strings, other objects, and the names in a container."""
    leaves = named_leaves(made)
    for path, leaf in leaves:
        if leaf is not None and not isinstance(leaf, torch.Tensor):
            message = f"the model returns a {type(leaf).__name__} at {name_of(path)}, which an ONNX output cannot hold"
            yield finding("output-mismatch", message, remedy=f"Return tensors only. {_CHOOSE_OUTPUTS}")
    paths = [path for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not recipe.output_names and isinstance(paths[0][0] if paths[0] else None, str):
        names = ", ".join(map(name_of, paths))
        message = f"the model returns a {type(made).__name__}; its names ({names}) are not in the file"
        remedy = "Declare output_names in this order."
        yield finding("output-mismatch", message, severity=Severity.NOTE, remedy=remedy)


def _misordered_names(call: Call, made: Any, recipe: Recipe) -> Iterator[Finding]:
    """Declared names that the model uses for another input or output, as a parameter, key or field."""
    bound, returned = named_leaves(bound_arguments(call)), named_leaves(made)
    for role, declared, leaves in (("input", recipe.input_names, bound), ("output", recipe.output_names, returned)):
        paths = [path for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
        for own in ([_last_name(path) for path in paths], [name_of(path) for path in paths]):
            if any(name != given and name in declared and given in own for name, given in zip(own, declared, strict=False)):
                message = f"{role}_names lists {', '.join(declared)}, but the model's own order is {', '.join(map(str, own))}"
                remedy = f"Declare {role}_names in the model's own order: they are assigned by position."
                yield finding("name-mismatch", message, remedy=remedy)
                break


def _extra_names(recipe: Recipe, count: int) -> Iterator[Finding]:
    """More names than inputs: TorchScript assigns the rest to weights, which is rarely intended."""
    if len(recipe.input_names) > count:
        message = f"input_names declares {len(recipe.input_names)} names, but args contain {count} tensors"
        remedy = (
            "Declare one name for every tensor in args, including nested ones, and none for Python numbers. "
            'To name weights as well, add allow=["name-mismatch"].'
        )
        yield finding("name-mismatch", message, remedy=remedy)


def _own_names(call: Call) -> list[str | None]:
    """What the model calls its inputs: the parameters of forward, or keys and fields within them."""
    paths = [path for path, leaf in named_leaves(bound_arguments(call)) if isinstance(leaf, torch.Tensor)]
    return [name_of(path) for path in paths]


def _last_name(path: Path) -> str | None:
    return path[-1] if path and isinstance(path[-1], str) else None


def _untested_axes(resized: ResizedProbes, probes: Sequence[Probe], axes: DeclaredAxes) -> Iterator[Finding]:
    """Axes of inputs that are declared dynamic but have the same size on every input."""
    for label, sizes in resized.untested(probes, axes.inputs):
        rejected = ", ".join(map(str, sizes))
        message = f"the dynamic axis {label!r} was not tested: the model itself rejects the sizes {rejected}"
        remedy = (
            f"Name a size that the model accepts, dynamic_sizes={{{label!r}: SIZE}}, or whose multiples it accepts, "
            f"dynamic_sizes={{{label!r}: onnx_ci.multiple_of(NUMBER)}}. If the size follows from another axis, name the axis "
            "by that, such as 'past + 1'. Otherwise do not declare it dynamic."
        )
        yield finding("vacuous", message, remedy=remedy)


def _undeclared_relations(resized: ResizedProbes, axes: DeclaredAxes) -> Iterator[Finding]:
    """What the model requires of the sizes of axes, although the recipe does not declare it."""
    for relation in resized.relations:
        name, rejected = relation.name, ", ".join(map(str, relation.refused))
        message = f"the model rejects the sizes {rejected} of the axis {name!r} "
        match relation.requires:
            case MultipleOf(number=number):
                message += f"and accepts multiples of {number}"
                remedy = f"Declare it: dynamic_sizes={{{name!r}: onnx_ci.multiple_of({number})}}."
            case AxisSize(text=text):
                message += f"and accepts {text!r}"
                declared = (
                    f"{tensor!r}: {{{axis}: {text!r}}}"
                    for tensor, labels in axes.labels.items()
                    for axis, label in labels.items()
                    if label == name
                )
                remedy = f"Declare it in dynamic_axes or dynamic_shapes: {', '.join(declared)}."
        yield finding("size-relation", message, remedy=remedy)


def _wrong_outputs(recipe: Recipe, probes: Sequence[Probe], axes: DeclaredAxes) -> Iterator[Finding]:
    """Expressions that are declared for axes of outputs, and that are not their sizes on some input."""
    for probe in probes:
        wrong = next(axes.wrong_outputs(recipe.output_names, probe.inputs, probe.reference.own), None)
        if wrong is not None:
            remedy = "Correct the expression, or give the axis its own name."
            yield finding("name-mismatch", f"{wrong} on {probe.name!r}", remedy=remedy)
            return


def _constant_axes(recipe: Recipe, probes: Sequence[Probe], axes: Mapping[str, Mapping[int, str]]) -> Iterator[Finding]:
    """Axes of outputs that are declared dynamic but have the same size on every input."""
    for position, name in enumerate(recipe.output_names[: len(probes[0].reference.own)]):
        for axis, label in axes.get(name, {}).items():
            sizes = {probe.reference.own[position].shape[axis] for probe in probes}
            if len(sizes) == 1:
                where = f"axis {axis} of output {name!r}"
                message = f"{where} is declared dynamic as {label!r}, but has size {sizes.pop()} on every input"
                remedy = "Do not declare the axis dynamic, or declare the input's axis that determines its size."
                yield finding("vacuous", message, remedy=remedy)


def _too_noisy(limit: DriftLimit, probes: Sequence[Probe]) -> Iterator[Finding]:
    """Outputs whose noise affects more than half of their digits: almost any file would pass a comparison by drift.

    Of the probes, only the example and the steps of sequences are checked, over which rounding errors can grow.
    """
    if limit.has_tolerance:
        return
    checked = [probe for probe in probes if probe.name == EXAMPLE or probe.fed]
    for position in range(len(checked[0].reference.own)):
        noisy = next((probe for probe in checked if _is_too_noisy(probe.reference, position)), None)
        if noisy is not None:
            own, noise = noisy.reference.own[position], noisy.reference.noise[position]
            largest = largest_value(own)
            yield finding(
                "vacuous",
                f"output {position} of the model differs by {noise:.2g} between {dtype_name(own)} and float64, and its largest "
                f"value is {largest:.2g}: too noisy to compare by drift{f' on {noisy.name!r}' if noisy.fed else ''}",
                remedy="An ill-conditioned model needs rtol or atol, or an example on which it is better conditioned"
                f"{', or fewer steps' if noisy.fed else ''}.",
                details={"noise": noise, "max_abs": largest},
            )


def _is_too_noisy(reference: Reference, position: int) -> bool:
    own = reference.own[position]
    if not has_noise(own):
        return False
    largest = largest_value(own)
    return largest > 0 and reference.noise[position] > largest * max(reference.eps, torch.finfo(own.dtype).eps) ** 0.5


def _without_float64(probes: Sequence[Probe]) -> Iterator[Finding]:
    perturbed = [probe.name for probe in probes if probe.reference.method == "perturbation" and not probe.fed]
    if perturbed:
        message = f"the model cannot run in float64 (on {', '.join(perturbed)}): its noise is estimated by perturbation"
        yield finding("no-float64", message)


def _observability_unknown() -> Finding:
    message = "observability was not measured: the parent process has already computed gradients"
    remedy = "Run onnx-ci in a process that has not computed gradients, or with isolation=none."
    return finding("vacuous", message, severity=Severity.NOTE, remedy=remedy)


def _hidden_modules(observability: Observability | None) -> Iterator[Finding]:
    """Modules in which an error would go unnoticed; an error if that is true of all of them."""
    if observability is None or not observability.hidden:
        return
    hidden, visible = observability.hidden, observability.visible
    named = ", ".join(map(repr, hidden[:3])) + (" and more" if len(hidden) > 3 else "")
    message = f"{len(hidden)} of {len(hidden) + len(visible)} modules have no measurable effect on the outputs: {named}"
    if visible:
        yield finding("vacuous", message, severity=Severity.NOTE, remedy="An error in such a module cannot be detected.")
    else:
        yield finding("vacuous", message)
