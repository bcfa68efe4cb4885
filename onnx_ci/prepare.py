"""From a recipe to what its cells need before any export: the live model, its inputs, and what it computes on them."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ci.axes import declared_axes, dynamic_shapes_tree
from onnx_ci.calls import (
    Call,
    Outputs,
    PrepareError,
    arguments_of,
    bound_arguments,
    build_on,
    dtype_name,
    flatten_inputs,
    flatten_outputs,
    on_cpu,
    recipe_error,
    run,
)
from onnx_ci.capture import timed
from onnx_ci.copies import Copies, copied_call
from onnx_ci.devices import TF32_EPS, exact_arithmetic
from onnx_ci.observability import NoGradientsError, Observability, observe
from onnx_ci.probes import EXAMPLE, Probe, Prober, all_probes
from onnx_ci.purity import examine, remembers
from onnx_ci.recipe import Recipe
from onnx_ci.records import Finding, Severity, Sketch
from onnx_ci.reference import make_reference
from onnx_ci.rules import finding
from onnx_ci.sketch import sketch
from onnx_ci.weights import take_weights, with_probe_weights

RANDOM_RUNS = 16
"""How often a recipe that is random by its own word is run, to compare its moments."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A recipe ready for its cells. ``fresh()`` gives each export its own copy of the model and its arguments."""

    recipe: Recipe
    device: str
    fresh: Callable[[], Call]
    pristine: Call
    """The call that ``fresh()`` copies; nothing runs or changes it."""
    probes: tuple[Probe, ...]
    """The example first."""
    beside: Outputs | None
    """On a GPU, what the model computes on the CPU in its own data type, if it can; otherwise none."""
    samples: tuple[Outputs, ...]
    """For a recipe that is random by its own word, the outputs of several runs; otherwise none."""
    input_names: tuple[str | None, ...]
    """For each tensor argument its declared name, or ``None``."""
    axes: Mapping[str, Mapping[int, str]]
    """The declared dynamic axes by input or output name, whichever way the recipe declared them."""
    dynamic_shapes: tuple[Any, ...] | None
    """The dynamic axes of the inputs as ``torch.export`` takes them: a tree like the arguments in forward's order."""
    findings: tuple[Finding, ...]
    """What is already seen without an export."""
    changed_by_running: tuple[str, ...]
    """What a run of the model changes in it, so that an export is not blamed for it."""
    observability: Observability | None
    """Which modules the comparison can see; ``None`` where gradients cannot tell."""
    weights_sketch: Sketch
    """The model's parameters and buffers as they are exported."""
    arguments_sketch: Sketch
    """The tensors among the arguments."""
    timings: Mapping[str, float]
    """Seconds, stage by stage."""

    @functools.cached_property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The model's weights by name, where the recipe exports the file without them, so that it takes them as inputs."""
        if self.recipe.export_options.get("export_params", True):
            return {}
        return {name: tensor.detach().cpu() for name, tensor in self.pristine.model.state_dict().items()}

    @property
    def example(self) -> Probe:
        """The recipe's own input."""
        return self.probes[0]


def prepare(
    recipe: Recipe,
    device: str = "cpu",
    *,
    weights: str | None = None,
    built: Call | None = None,
    probe_weights: bool = False,
    limit: float = 16.0,
    without: Sequence[str] = (),
) -> Prepared:
    """Build the recipe's model on ``device`` and compute its references.

    Args:
        weights: handed to a recipe function that takes ``weights``: which trained weights to load.
        built: the recipe's model where it is built already; it is used up.
        probe_weights: give the model weights under which a wrong layer shows, in place of its own.
        limit: the drift that just passes, for what the comparison can see.
        without: stages to leave out, of :data:`onnx_ci.config.STAGES`.

    Raises:
        PrepareError: the recipe cannot be used; the error carries the finding.
    """
    timings: dict[str, float] = {}

    def rebuild() -> Call:
        nonlocal built
        with exact():  # puts back what the recipe itself switches
            call, built = built or build_on(recipe, device, weights), None
            if probe_weights:
                probed = with_probe_weights(copied_call(call) or build_on(recipe, device, weights))
                if probed is not None:
                    take_weights(call, probed)
            return call

    on_gpu = device != "cpu"
    exact = functools.partial(exact_arithmetic, tf32=recipe.tf32 and on_gpu, deterministic=on_gpu)
    with exact():
        with timed("build", timings):
            pristine = rebuild()
        copies = Copies(pristine, rebuild, eps=TF32_EPS if recipe.tf32 and on_gpu else 0.0)
        flat = flatten_inputs(pristine)
        tensors = [value for _, value in flat]
        input_names = tuple(name for _, name in itertools.zip_longest(tensors, recipe.input_names[: len(tensors)]))
        with timed("reference", timings):
            made = copies.first_run()
            own = flatten_outputs(made)
            _check_outputs(own, recipe)
            axes = declared_axes(recipe, pristine, flat, own)
            example = Probe(name=EXAMPLE, inputs=on_cpu(tensors), reference=make_reference(copies, own))
            beside = _beside(copies) if on_gpu else None
            copies.rehearses = beside is not None
        findings = [
            *_left_changed(pristine),
            *_baked_arguments(pristine),
            *_lost_outputs(made, recipe),
            *_swapped_names(pristine, made, recipe),
            *_surplus_names(recipe, len(tensors)),
        ]
        with timed("sketch", timings):
            weights_sketch = sketch([*pristine.model.parameters(), *pristine.model.buffers()])
            arguments_sketch = sketch(tensors)
        probes: tuple[Probe, ...] = (example,)
        samples: tuple[Outputs, ...] = ()
        changed: list[str] = []
        seen, measured = None, False
        if recipe.random:
            samples = tuple(run(copies.running(), seed=seed) for seed in range(RANDOM_RUNS))
        else:
            if "purity" not in without:
                with timed("purity", timings):
                    impure, changed = examine(copies, own, training=recipe.training)
                    findings += impure
                    if not changed and not impure:
                        copies.share()
                        if remembers(copies, example.inputs):
                            copies.release()
            with timed("probes", timings):
                probes, immovable = all_probes(Prober(copies, example), recipe, input_names, axes, without)
            findings += [*immovable, *_too_noisy(recipe, example), *_without_float64(probes)]
            if "sizes" not in without:
                findings += _fixed_outputs(recipe, probes, axes)
            copies.release()
            if "observability" not in without:
                with timed("observability", timings), contextlib.suppress(NoGradientsError):
                    seen = observe(copies.fresh(), example.reference.noise, limit)
                    measured = True
                findings += _blind(seen) if measured else [_not_measured()]
    return Prepared(
        recipe=recipe,
        device=device,
        fresh=copies.fresh,
        pristine=pristine,
        probes=probes,
        beside=beside,
        samples=samples,
        input_names=input_names,
        axes=axes,
        dynamic_shapes=dynamic_shapes_tree(pristine, input_names, axes),
        findings=tuple(findings),
        changed_by_running=tuple(changed),
        observability=seen,
        weights_sketch=weights_sketch,
        arguments_sketch=arguments_sketch,
        timings=timings,
    )


def _beside(copies: Copies) -> Outputs | None:
    try:
        with exact_arithmetic():
            return run(copies.on_cpu())
    except Exception:  # a model may be made for its device alone, and moving its parts can raise anything
        return None


def _check_outputs(own: Outputs, recipe: Recipe) -> None:
    if not own:
        raise recipe_error("the model returns no tensor", "Return at least one tensor from forward.")
    if any(tensor.is_complex() for tensor in own):
        raise recipe_error("the model returns a complex tensor, which ONNX cannot", "Return torch.view_as_real of it.")
    if len(recipe.output_names) > len(own):
        said = f"output_names declares {len(recipe.output_names)} names and the model returns {len(own)} tensors"
        raise PrepareError(finding("name-mismatch", said, remedy="Declare one name for every tensor that forward returns."))


# --- what is already seen -------------------------------------------------------------------------------------------


def _left_changed(call: Call) -> Iterator[Finding]:
    if call.left_changed.words:
        yield finding("global-state", f"building the model changes {', '.join(call.left_changed.words)} and leaves it so")


def _baked_arguments(call: Call) -> Iterator[Finding]:
    """Arguments that are no tensors: the exporters write their values into the file.

    A flag or None is an option of the model; a number or a text is data that the file will never take again.
    """
    leaves, _ = pytree.tree_flatten_with_path(arguments_of(call))
    for path, leaf in leaves:
        if isinstance(leaf, (str, int, float)) and not isinstance(leaf, bool):
            fate = "the file holds as a constant"
            if not isinstance(leaf, str):
                fate += " or, from TorchScript, takes as an input that nobody declared"
            said = f"the argument at {pytree.keystr(path)} is the {type(leaf).__name__} {leaf!r}, which {fate}"
            yield finding("baked-argument", said)


def _lost_outputs(made: Any, recipe: Recipe) -> Iterator[Finding]:
    """Outputs that no file can carry as they are: numbers and texts, and the keys of a dict."""
    leaves, _ = pytree.tree_flatten_with_path(made)
    for path, leaf in leaves:
        if leaf is not None and not isinstance(leaf, torch.Tensor):
            said = f"the model returns a {type(leaf).__name__} at {pytree.keystr(path)}, which no output of the file can carry"
            yield finding("output-mismatch", said)
    if isinstance(made, Mapping) and not recipe.output_names:
        keys = ", ".join(str(key) for key, value in made.items() if value is not None)
        said = f"the model returns a dict; its keys ({keys}) are not in the file"
        yield finding("output-mismatch", said, severity=Severity.NOTE, remedy="Declare output_names in the order of the dict.")


def _swapped_names(call: Call, made: Any, recipe: Recipe) -> Iterator[Finding]:
    """Declared names that the model itself gives to another input or output: by parameter, by key or by field."""
    bound, _ = pytree.tree_flatten_with_path(bound_arguments(call))
    returned, _ = pytree.tree_flatten_with_path(made)
    for role, declared, leaves in (("input", recipe.input_names, bound), ("output", recipe.output_names, returned)):
        own = [_last_name(path) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
        for name, given in zip(own, declared, strict=False):
            if name != given and name in declared and given in own:
                said = f"{role}_names gives {', '.join(declared)} and the model's own order is {', '.join(map(str, own))}"
                remedy = f"Give {role}_names in the model's own order: a file has no keys, only an order."
                yield finding("name-mismatch", said, remedy=remedy)
                break


def _surplus_names(recipe: Recipe, count: int) -> Iterator[Finding]:
    """More names than inputs: TorchScript gives the rest to weights, in their order, which few people mean."""
    if len(recipe.input_names) > count:
        said = f"input_names declares {len(recipe.input_names)} names and args hold {count} tensors"
        remedy = (
            "Declare one name for every tensor in args, nested ones included, and none for Python numbers. "
            'Names for weights are meant with allow=["name-mismatch"].'
        )
        yield finding("name-mismatch", said, remedy=remedy)


def _last_name(path: pytree.KeyPath) -> str | None:
    key = path[-1] if path else None
    if isinstance(key, pytree.MappingKey):
        return str(key.key)
    return key.name if isinstance(key, pytree.GetAttrKey) else None


def _fixed_outputs(recipe: Recipe, probes: Sequence[Probe], axes: Mapping[str, Mapping[int, str]]) -> Iterator[Finding]:
    """Axes of outputs that are declared dynamic and had one size on every input."""
    for position, name in enumerate(recipe.output_names[: len(probes[0].reference.own)]):
        for axis, label in axes.get(name, {}).items():
            sizes = {probe.reference.own[position].shape[axis] for probe in probes}
            if len(sizes) == 1:
                said = (
                    f"axis {axis} of output {name!r} is declared dynamic as {label!r} and has size {sizes.pop()} on every input"
                )
                yield finding(
                    "vacuous", said, remedy="Do not declare the axis dynamic, or declare the input's axis that moves it."
                )


def _too_noisy(recipe: Recipe, example: Probe) -> Iterator[Finding]:
    """Outputs whose noise exceeds half of their digits: a comparison by drift would let almost anything pass."""
    if recipe.rtol is not None or recipe.atol is not None:
        return
    for position, (own, noise) in enumerate(zip(example.reference.own, example.reference.noise, strict=True)):
        if not own.is_floating_point() or not own.numel():
            continue
        finite = own[torch.isfinite(own)].abs()
        largest = finite.max().double().item() if finite.numel() else 0.0
        if largest and noise > largest * max(example.reference.eps, torch.finfo(own.dtype).eps) ** 0.5:
            yield finding(
                "vacuous",
                f"output {position} of the model in {dtype_name(own)} and in float64 differ by {noise:.2g} where the largest "
                f"value is {largest:.2g}: drift cannot judge it",
                remedy="An ill-conditioned model needs rtol or atol, or an example on which it is better conditioned.",
                noise=noise,
                max_abs=largest,
            )


def _without_float64(probes: Sequence[Probe]) -> Iterator[Finding]:
    fallen = [probe.name for probe in probes if probe.reference.method == "perturbation"]
    if fallen:
        said = f"the model cannot run in float64 (on {', '.join(fallen)}): its noise is estimated by perturbation"
        yield finding("no-float64", said)


def _not_measured() -> Finding:
    said = "what the comparison can see was not measured: the process that started this one has computed gradients before"
    remedy = "Run the gate in a process that has trained nothing, or with isolation=none."
    return finding("vacuous", said, severity=Severity.NOTE, remedy=remedy)


def _blind(seen: Observability | None) -> Iterator[Finding]:
    """Modules that the comparison cannot see; an error where it sees none."""
    if seen is None or not seen.blind:
        return
    named = ", ".join(repr(name) for name in seen.blind[:3]) + (" and more" if len(seen.blind) > 3 else "")
    said = f"{len(seen.blind)} of {len(seen.blind) + len(seen.seen)} modules do not show in the outputs: {named}"
    if seen.seen:
        yield finding("vacuous", said, severity=Severity.NOTE, remedy="What does not show could be replaced by anything.")
    else:
        yield finding("vacuous", said)
