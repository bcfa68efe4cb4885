"""Orders the rooms model, reference and inputs: everything that the cells of a recipe share before any export.

The model is built, run once on the example, and run again to find out what a run changes. Then it is run on other inputs, and
its gradients show which of its modules affect the outputs.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import ConfigurationError
from onnx_ci.matrix.plan import CellTask
from onnx_ci.onnx_model.saved_inputs import ExpectedInput, find_inputs, read_inputs
from onnx_ci.pipeline.domains.axes import DeclaredAxes, declared_axes, dynamic_shapes_tree
from onnx_ci.pipeline.domains.input_domains import InputDomains
from onnx_ci.pipeline.domains.uses import uses_of_inputs
from onnx_ci.pipeline.inputs.branches import Branches, BranchFinder, UntakenBranch
from onnx_ci.pipeline.inputs.call_probes import call_probes
from onnx_ci.pipeline.inputs.decisions import observed
from onnx_ci.pipeline.inputs.long_axes import long_probes
from onnx_ci.pipeline.inputs.probes import EXAMPLE, InputStatus, ModelProber, Probe, Probes, RandomProber
from onnx_ci.pipeline.inputs.sequences import Sequences
from onnx_ci.pipeline.inputs.special_values import constants_of, variations
from onnx_ci.pipeline.model.build import build, completed, with_names
from onnx_ci.pipeline.model.call import (
    Call,
    PrepareError,
    SkippedByRecipeError,
    input_tensors,
    names_in_model,
    recipe_error,
    with_inputs,
)
from onnx_ci.pipeline.model.containers import containers_in, name_of, named_leaves
from onnx_ci.pipeline.model.copies import Copies, copied_call, is_large
from onnx_ci.pipeline.model.devices import TF32_EPS, exact_arithmetic
from onnx_ci.pipeline.model.global_state import Changes
from onnx_ci.pipeline.model.module import weights_of
from onnx_ci.pipeline.model.probe_weights import assign_weights, with_probe_weights
from onnx_ci.pipeline.model.recipe_model import CallSignature, RecipeModel
from onnx_ci.pipeline.model.running import flatten_outputs, run, run_tree
from onnx_ci.pipeline.model.tensor_sketch import sketch
from onnx_ci.pipeline.model.tensors import Outputs, as_array, as_tensor, dtype_name, has_noise, on_cpu, same_shapes
from onnx_ci.pipeline.prepare import findings
from onnx_ci.pipeline.prepare.observability import NoGradientsError, Observability, affect_outputs, observe, seen_in_steps
from onnx_ci.pipeline.prepare.side_effects import (
    SideEffects,
    as_of_ties,
    differ,
    find_kept_sizes,
    find_side_effects,
    is_same_watched,
)
from onnx_ci.pipeline.prepare.written_sizes import find_written_sizes
from onnx_ci.pipeline.reference.random_samples import random_reference
from onnx_ci.pipeline.reference.reference import make_reference
from onnx_ci.pipeline.reference.runtime_rounding import with_runtime_rounding
from onnx_ci.pipeline.trace.recorder import Tracer
from onnx_ci.pipeline.trace.trace import Operator
from onnx_ci.processes.allocator import return_free_memory, return_large_blocks
from onnx_ci.processes.capture import timed
from onnx_ci.results.records import Finding, InputDomain

LARGE = 2**20
"""How many elements an operator returns on a large example, in the mean. It then takes as long as its export, or longer."""


class Weights(enum.Enum):
    """Which weights a model is prepared with."""

    OWN = "own"
    """Those that the recipe's function gives it."""
    PROBE = "probe"
    """Weights that reveal errors (``model.probe_weights``). A model that fails on its example with them keeps its own."""
    PROBE_UNLESS_LOADED = "probe unless loaded"
    """Its own if the recipe's function loads weights, otherwise probe weights."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A recipe ready for its cells."""

    model: RecipeModel
    probes: Probes
    untaken_branches: tuple[UntakenBranch, ...]
    """The branches of which no probe takes the other side."""
    findings: tuple[Finding, ...]
    """What is wrong before any export."""
    observability: Observability | None
    """Which modules affect the outputs measurably; ``None`` if gradients cannot show it."""
    timings: Mapping[str, float]
    """Seconds by stage."""

    @property
    def hides_all_modules(self) -> bool:
        """Whether no module has a measurable effect on the outputs."""
        return self.observability is not None and bool(self.observability.hidden) and not self.observability.visible

    @functools.cached_property
    def hides_modules(self) -> bool:
        """Whether the weights hide modules that other weights may show. One that nothing uses, such as a pooler, none can."""
        if self.observability is None or not self.observability.hidden:
            return False
        hidden, own = self.observability.hidden, self.probes.example.reference.own
        return self.observability.has_gradients or affect_outputs(self.model.fresh(), hidden, own)


def prepare(task: CellTask, weights: Weights = Weights.OWN) -> Prepared:
    """Build the model of a cell's recipe on the cell's device and compute its references.

    The result can be used for every exporter and opset of the same recipe, device and settings. A :class:`PrepareError` carries
    a finding: the recipe cannot be used.
    """
    timings: dict[str, float] = {}
    builder = _Builder(task, weights)
    with builder.exact_arithmetic():
        copies = _built(builder, timings)
        task = replace(task, recipe=completed(task.recipe, copies.pristine))
        tracer = Tracer(copies)
        first = _first_run(copies, tracer, task, timings)
        with timed("sketch", timings):
            weights_sketch = sketch(weights_of(copies.pristine.model))
        probes, untaken_branches, of_inputs = _probes(copies, tracer, first, task, timings, builder)
        observability, of_observability = _observability(copies, copies.release(), probes.all, task, timings)
    all_findings = (
        *findings.of_call(copies.pristine, first.result, task.recipe, tells_loading=weights is Weights.PROBE_UNLESS_LOADED),
        *(() if copies.is_watchable else [findings.not_watchable()]),
        *first.effects.findings,
        *of_inputs,
        *of_observability,
    )
    model = RecipeModel(
        recipe=task.recipe,
        signature=first.signature,
        pristine=copies.pristine,
        fresh=copies.fresh,
        has_probe_weights=builder.has_probe_weights,
        exports_own_parameters=is_large(copies.pristine.model) and first.effects.can_share and not builder.is_on_gpu,
        changed_by_running=tuple(first.effects.changed),
        is_watchable=copies.is_watchable,
        weights_sketch=weights_sketch,
    )
    return Prepared(
        model=model,
        probes=probes,
        untaken_branches=untaken_branches,
        findings=all_findings,
        observability=observability,
        timings=timings,
    )


def describe_inputs(task: CellTask) -> tuple[InputDomain, ...]:
    """What the inputs of a cell's recipe are, and which values they are given, without computing any reference."""
    call = build(task.recipe, task.cell.device, task.weights)
    recipe = completed(task.recipe, call)
    tensors = input_tensors(call)
    named = with_names(recipe, call)
    names = _input_names(named, tensors)
    result = run_tree(with_inputs(call), seed=recipe.seed)
    axes = declared_axes(named, call, tensors, flatten_outputs(result))
    example = on_cpu(tensors)
    tracer = Tracer(Copies(call, lambda: build(recipe, task.cell.device, task.weights)))
    uses = uses_of_inputs(tracer, tracer.trace(example), example)
    return InputDomains(recipe.domains, names, axes.labels, example, names_in_model(call), uses).described()


class _Builder:
    """Builds the model of a recipe, as often as it is asked to, with the same kind of weights each time."""

    def __init__(self, task: CellTask, weights: Weights) -> None:
        self._task, self._weights = task, weights
        self.is_on_gpu = task.cell.device != "cpu"
        self.uses_tf32 = task.recipe.tf32 and self.is_on_gpu
        self.has_probe_weights = False

    def exact_arithmetic(self) -> contextlib.AbstractContextManager[None]:
        """The arithmetic in which references are computed."""
        return exact_arithmetic(tf32=self.uses_tf32, for_reference=self.is_on_gpu)

    def build(self) -> Call:
        """The model and its arguments."""
        with self.exact_arithmetic():  # restores the modes that the recipe itself changes
            call = self._build()
            if self._weights is Weights.PROBE_UNLESS_LOADED:
                self._weights = Weights.OWN if call.loaded_with else Weights.PROBE
            if self._weights is Weights.PROBE:
                probed = with_probe_weights(copied_call(call) or self._build())
                if probed is not None:
                    assign_weights(call, probed)
                    self.has_probe_weights = True
            return call

    def changes(self) -> Changes:
        """What building the model changes in the global state of the process, once more."""
        with self.exact_arithmetic():
            return self._build().global_changes

    def _build(self) -> Call:
        return build(self._task.recipe, self._task.cell.device, self._task.weights)


def _built(builder: _Builder, timings: dict[str, float]) -> Copies:
    with timed("build", timings):
        pristine = builder.build()
        if is_large(pristine.model):
            return_large_blocks()
            return_free_memory()  # that of the weights which probe weights have replaced
        else:
            with contextlib.suppress(PrepareError, SkippedByRecipeError):  # some recipes can be built only once
                pristine = replace(pristine, global_changes=pristine.global_changes.without_imports(builder.changes))
    return Copies(pristine, builder.build, eps=TF32_EPS if builder.uses_tf32 else 0.0)


@dataclass(frozen=True, kw_only=True)
class _FirstRun:
    """What is known of a model after one run on its example."""

    result: Any
    """What the model returned."""
    axes: DeclaredAxes
    signature: CallSignature
    example: Probe
    cpu_outputs: Outputs | None
    effects: SideEffects


def _first_run(copies: Copies, tracer: Tracer, task: CellTask, timings: dict[str, float]) -> _FirstRun:
    """Run the model on its example, find out what that changes, and compute the reference."""
    recipe = task.recipe
    named = with_names(recipe, copies.pristine)
    tensors = input_tensors(copies.pristine)
    with timed("reference", timings):
        result = copies.first_run()
        outputs = flatten_outputs(result)
        findings.check_outputs(result, outputs, recipe)
        findings.check_parameters(copies.pristine, outputs)
        axes = declared_axes(named, copies.pristine, tensors, outputs)
        cpu_outputs = None
        if task.cell.device != "cpu":
            # A model may only support its device, and moving it can raise anything.
            with contextlib.suppress(Exception), exact_arithmetic():
                cpu_outputs = run(copies.on_cpu())
        copies.try_on_cpu_first = cpu_outputs is not None
    effects = SideEffects()
    if not (recipe.nondeterministic or task.is_quick):
        with timed("side-effects", timings):
            effects = find_side_effects(copies, tracer, on_cpu(tensors), outputs, training=recipe.training)
            if effects.can_share:  # all further runs share one copy
                copies.share()
    with timed("reference", timings):
        if not (recipe.nondeterministic or effects.is_exact or is_same_watched(copies, outputs)):
            copies.is_watchable = False
            copies.convert_at_once()  # on use, weights are converted by an intervention
        reference = random_reference(copies, outputs) if recipe.nondeterministic else make_reference(copies, outputs)
        as_runtimes = functools.cache(functools.partial(with_runtime_rounding, copies, reference))
        refinements = () if recipe.nondeterministic else (as_runtimes,)
        example = Probe(name=EXAMPLE, inputs=on_cpu(tensors), reference=reference, refinements=refinements, is_given=True)
    input_names = _input_names(named, tensors)
    paths = [path for path, leaf in named_leaves(result) if isinstance(leaf, torch.Tensor)]
    signature = CallSignature(
        input_names=input_names,
        axes=axes.labels,
        dynamic_shapes=dynamic_shapes_tree(copies.pristine, input_names, axes),
        outputs=tuple(containers_in(result)),
        own_output_names=tuple(map(name_of, paths)) if paths[0] and isinstance(paths[0][0], str) else (),
    )
    return _FirstRun(
        result=result,
        axes=axes,
        signature=signature,
        example=example,
        cpu_outputs=cpu_outputs,
        effects=effects,
    )


def _input_names(recipe: Recipe, tensors: Sequence[torch.Tensor]) -> tuple[str | None, ...]:
    return tuple(name for _, name in itertools.zip_longest(tensors, recipe.input_names[: len(tensors)]))


def _probes(
    copies: Copies, tracer: Tracer, first: _FirstRun, task: CellTask, timings: dict[str, float], builder: _Builder
) -> tuple[Probes, tuple[UntakenBranch, ...], list[Finding]]:
    """The probes, the branches of which none takes the other side, and what both show about the recipe."""
    recipe, axes, effects = task.recipe, first.axes, first.effects
    with timed("probes", timings):
        prober = (RandomProber if recipe.nondeterministic else ModelProber)(copies, first.example)
        names = names_in_model(copies.pristine)
        example = first.example.inputs
        trace = effects.trace or tracer.trace(example)
        uses = uses_of_inputs(tracer, trace, example)
        domains = InputDomains(recipe.domains, first.signature.input_names, axes.labels, example, names, uses)
        sequences = Sequences(copies, recipe, first.example, axes, domains)
        finder = BranchFinder(tracer, observed(trace), prober, axes.inputs, sequences.following, domains)
        beginning = (prober.example, *_given_probes(task, prober, first.signature))
        special = () if task.is_quick else variations(example, domains, constants_of(copies.pristine.model), uses)
        of_call = call_probes(
            prober,
            axes.inputs,
            sequences.following,
            domains,
            [*special],
            is_quick=task.is_quick,
            is_large=trace.elements > LARGE * sum(1 for _ in trace.of_kind(Operator)),
            can_use_rows=effects.can_share and not recipe.feedback and not finder.decides_by_values,
        )
        probes = (*beginning, *of_call.probes)
        kept_sizes = [*find_kept_sizes(copies, of_call.resized.probes)] if effects.can_share else []
        of_steps: Sequence[Finding] = ()
        if recipe.feedback and not task.is_quick:
            steps, of_steps = sequences.probes(probes)
            probes += tuple(steps)
    branches = Branches()
    long: Sequence[Probe] = ()
    if not task.is_quick:
        # A recipe that allows the rule states that no input takes the other side.
        can_search = "untaken-branch" not in task.allow
        with timed("branches", timings):
            branches = finder.find(probes, search=can_search)
        if can_search and not recipe.nondeterministic:
            with timed("long-axes", timings):
                long = tuple(long_probes(prober, axes.inputs, finder.directions_from(example), trace.elements))
    probes += (*branches.probes, *long)
    repeats = not any(each.rule == "nondeterministic" for each in effects.findings)
    noisy = findings.noisy_outputs(task.max_drift, probes, trace, repeats=repeats)
    written = find_written_sizes(copies, recipe, axes, first.example, of_call.resized.tried)
    all_findings = [
        *kept_sizes,
        *of_steps,
        *findings.untested_axes(of_call.resized, probes, axes, prober.rejections, written),
        *findings.undeclared_relations(of_call.resized, axes),
        *findings.not_recorded(trace),
        *(as_of_ties(each, copies.fresh) for each in noisy),
        *findings.without_float64(probes),
        *(() if task.is_quick else findings.of_output_sizes(recipe, of_call.resized, probes, axes, written)),
    ]

    def one_kind_probes(separated: Callable[[], tuple[Probe, ...]]) -> tuple[Probe, ...]:
        with builder.exact_arithmetic():
            return (*beginning, *separated(), *branches.probes, *long)

    all_probes = Probes(
        all=probes,
        one_kind_probes=of_call.separated and functools.partial(one_kind_probes, of_call.separated),
        cpu_outputs=first.cpu_outputs,
        inputs=domains.described(),
        left_out=of_call.left_out,
    )
    return all_probes, branches.untaken, all_findings


def _given_probes(task: CellTask, prober: ModelProber, signature: CallSignature) -> Iterator[Probe]:
    """The inputs in files that the recipe or the settings name; a :class:`PrepareError` says that they cannot be used."""
    expected = [
        ExpectedInput(
            name=name,
            dtype=as_array(tensor).dtype,
            dims=tuple(None if axis in signature.axes.get(name or "", {}) else size for axis, size in enumerate(tensor.shape)),
        )
        for name, tensor in zip(signature.input_names, prober.example.inputs, strict=True)
    ]
    for files in task.inputs:
        try:
            for name, path in find_inputs(Path(files.folder), files.patterns).items():
                given = prober.required(name, [as_tensor(array) for array in read_inputs(path, expected)])
                yield replace(given, is_given=True)
        except ConfigurationError as error:
            raise recipe_error(str(error), _FIX_INPUTS) from None
        except PrepareError as error:
            raise recipe_error(f"{error.finding.message} on the inputs of {name}", _FIX_INPUTS) from None


_FIX_INPUTS = "Fix the file, or the recipe's inputs or --inputs that name it."


def _observability(
    copies: Copies, shared: Call | None, probes: Sequence[Probe], task: CellTask, timings: dict[str, float]
) -> tuple[Observability | None, list[Finding]]:
    """Which modules affect the outputs measurably, if that is asked for and can be measured, and findings about it."""
    if task.is_quick or task.recipe.nondeterministic:
        return None, []
    example = probes[0]
    own = example.reference.own
    names = itertools.zip_longest(task.recipe.output_names[: len(own)], own)
    limits = [task.max_drift.of(name, dtype_name(tensor)) if has_noise(tensor) else 1.0 for name, tensor in names]
    with timed("observability", timings):
        try:
            observability = observe(shared or copies.fresh(), example.reference.noise, limits)
        except NoGradientsError:
            return None, [findings.observability_unknown()]
        if not any(output.is_floating_point() for output in own):  # they have no gradients
            observability = _all_hidden(copies, probes)
        usual = (each for each in probes[1:] if each.legality is InputStatus.LEGAL and not (each.special or each.fed))
        if observability is not None and observability.hidden and (other := next(usual, None)) is not None:
            # A mask of the example can hide modules that other masks show.
            on_other = observe(with_inputs(copies.fresh(), other.inputs), other.reference.noise, limits)
            observability = observability if on_other is None else observability.beside(on_other)
        if observability is None:
            return None, []
        allowed = [unit * limit for unit, limit in zip(example.reference.noise, limits, strict=True)]
        observability = observability.with_visible(seen_in_steps(copies.fresh, observability.flat, own, allowed))
        # In a function of torch.func, no module has a gradient.
        may_affect = not observability.visible and not observability.has_gradients
        if may_affect and affect_outputs(copies.fresh(), observability.hidden, own):
            return None, []
    return observability, [*findings.of_observability(observability)]


def _all_hidden(copies: Copies, probes: Sequence[Probe]) -> Observability | None:
    """The modules of a model whose outputs are the same on all inputs, if they do not depend on the modules either."""
    example = probes[0]
    alike = (probe.reference.own for probe in probes if same_shapes(probe.reference.own, example.reference.own))
    model = copies.pristine.model
    names = tuple(name for name, module in model.named_modules() if name and not any(True for _ in module.children()))
    if any(differ(outputs, example.reference.own) for outputs in alike):
        return None
    if affect_outputs(copies.fresh(), names, example.reference.own):
        return None
    return Observability(visible=(), hidden=names, without_gradient=names)
