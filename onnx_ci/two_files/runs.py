"""Two ONNX files on the same inputs: one of them is the reference, and its rounding the unit of drift.

The reference is evaluated in float64 by ONNX's reference evaluator where that can be done, as the eager model of a recipe is
by PyTorch; otherwise its rounding is estimated by perturbing its weights and inputs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx_ir import DataType
from onnx_ir.tensor_adapters import to_torch_dtype

from onnx_ci.errors import first_line
from onnx_ci.matrix.plan import DriftLimit
from onnx_ci.onnx_model.precision import PRECISIONS, Precision, in_float64, lowest_precision, perturbable_tensors
from onnx_ci.onnx_model.signature import Signature, Value, axis_label, axis_variables
from onnx_ci.results.records import Finding, OutputDrift, Severity
from onnx_ci.results.rules import finding
from onnx_ci.stages.compare.drift import Terms, compare_refined
from onnx_ci.stages.compare.judge_file import never_compared, save_failing
from onnx_ci.stages.inputs.axes import InputAxes, Place
from onnx_ci.stages.inputs.domains import UNKNOWN
from onnx_ci.stages.inputs.probes import EXAMPLE, Legality, Probe, Prober, is_float, is_same
from onnx_ci.stages.inputs.random_values import fresh_probes
from onnx_ci.stages.inputs.sizes import resized_probes
from onnx_ci.stages.inputs.special_values import special_probes, variations
from onnx_ci.stages.model.arrays import as_array, as_tensor, in_declared_type
from onnx_ci.stages.model.live_model import Outputs, has_noise
from onnx_ci.stages.reference.reference import (
    PERTURBATIONS,
    Reference,
    lowered_reference,
    perturbed,
    proportional_reference,
    reference_from,
    same_shapes,
)
from onnx_ci.stages.run.runtime import Runtime, Session
from onnx_ci.text import listed
from onnx_ci.two_files.quantized import QuantizedActivation, quantized_activations, quantized_tensors, with_jitter

Sizes = Mapping[str, tuple[int, ...]]
"""Sizes of dynamic axes by name: the first is that of the example, the others are tried, too."""


CLIPPED_SHARE = 0.001
"""If a file clips more than this share of an activation, it was not calibrated for the input, which proves nothing."""


QUANTIZED_SHARE = 1 / 16
"""The share of the differences between perturbed runs that is the noise of a quantized file, beside that of its activations."""
JITTERED_SHARE = 1 / 8
"""The share of the differences between jittered runs that is noise: they move activations by more than rounding does."""


class LoadedFile:
    """One of the two files, loaded into a runtime.

    Args:
        name: what messages call it.
        path: where it is, with its external data in the same folder.
        places: for each of its inputs, the position of the corresponding input of the reference.
        outputs: the positions of its compared outputs.

    Raises:
        Exception: the runtime cannot load it; each runtime raises its own classes.
    """

    def __init__(
        self, runtime: Runtime, name: str, path: Path, signature: Signature, places: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self.name, self.path, self.signature = name, path, signature
        self.precision = lowest_precision(onnx.load(path, load_external_data=False))
        self._runtime, self._places, self.output_places = runtime, places, outputs
        self._session = runtime.load(path, "cpu")
        self._perturbed: dict[Precision | None, list[Session]] = {}
        self._with_activations: Session | None = None
        self._jittered: Sequence[Session] | None = None

    def run(self, inputs: Sequence[torch.Tensor], session: Session | None = None) -> Outputs:
        """The compared outputs on ``inputs``, which are in the order of the reference's. Raises what the runtime raises."""
        made = (session or self._session).run(self._feeds(inputs))
        return tuple(made[place] for place in self.output_places)

    def _feeds(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        pairs = zip(self.signature.inputs, self._places, strict=True)
        return {value.name: in_declared_type(inputs[place], value.element_type) for value, place in pairs}

    def in_float64(self, inputs: Sequence[torch.Tensor]) -> Outputs | None:
        """The compared outputs in float64, or ``None`` if the reference evaluator cannot compute them."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy warns of overflow and division by zero, which files may contain
                widened = [tensor.double() if is_float(tensor) else tensor for tensor in inputs]
                pairs = zip(self.signature.inputs, self._places, strict=True)
                made: Any = self._evaluator.run(None, {value.name: as_array(widened[place]) for value, place in pairs})
                return tuple(as_tensor(made[place]) for place in self.output_places)
        except Exception:  # it lacks operators, or these in float64, and can raise anything
            return None

    @functools.cached_property
    def _evaluator(self) -> onnx.reference.ReferenceEvaluator:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(in_float64(onnx.load(self.path)))

    @functools.cached_property
    def activations(self) -> tuple[QuantizedActivation, ...]:
        """The activations that the file quantizes with a fixed scale."""
        if self.precision is None or not self.precision.is_uniform:
            return ()
        return tuple(quantized_activations(onnx.load(self.path)))

    @property
    def ranges(self) -> dict[int, tuple[float, float]]:
        """The ranges that quantized inputs were calibrated for, by the position of the reference's input."""
        places = dict(zip((value.name for value in self.signature.inputs), self._places, strict=True))
        return {places[each.source]: each.range for each in self.activations if each.source in places}

    def clips(self, inputs: Sequence[torch.Tensor], scratch: Path) -> bool:
        """Whether ``inputs`` are outside of the range that a quantized file was calibrated for: it clips activations."""
        if not self.activations:
            return False
        if self._with_activations is None:
            model = onnx.load(self.path)
            model.graph.ClearField("output")
            for number, each in enumerate(self.activations):  # an Identity, because an activation may be an input of the graph
                value = model.graph.output.add(name=f"onnx-ci.activation.{number}")
                model.graph.node.add(op_type="Identity", input=[each.source or each.name], output=[value.name])
            self._with_activations = self._runtime.load(_saved(model, scratch / "activations.onnx"), "cpu")
        made = self._with_activations.run(self._feeds(inputs))
        return any(map(_is_clipped, made, self.activations))

    def jittered_runs(self, inputs: Sequence[torch.Tensor], scratch: Path) -> list[Outputs]:
        """The compared outputs of several runs, each with every quantized activation moved by up to one step."""
        if self._jittered is None:
            model = onnx.load(self.path)
            few = PERTURBATIONS if quantized_tensors(model) else 0
            self._jittered = [
                self._runtime.load(_saved(with_jitter(model, seed), scratch / f"jitter-{seed}.onnx"), "cpu")
                for seed in range(few)
            ]
        return [self.run(inputs, session) for session in self._jittered]

    def perturbed_runs(
        self, inputs: Sequence[torch.Tensor], own: Outputs, precision: Precision | None, scratch: Path
    ) -> list[Outputs]:
        """The compared outputs of several runs, each with every weight and input moved by half a step of a precision."""
        generator = torch.Generator().manual_seed(0)
        runs = []
        for session in self._perturbed_sessions(precision, scratch):
            with contextlib.suppress(Exception):  # a perturbed input can be invalid; the other runs decide
                runs.append(self.run([perturbed(tensor, generator, precision) for tensor in inputs], session))
        return [made for made in runs if same_shapes(made, own)]

    def _perturbed_sessions(self, precision: Precision | None, scratch: Path) -> Sequence[Session]:
        sessions = self._perturbed.setdefault(precision, [])
        if sessions:
            return sessions
        generator = torch.Generator().manual_seed(1)
        for run in range(PERTURBATIONS):
            model = onnx.load(self.path)
            for tensor in perturbable_tensors(model):
                moved = perturbed(as_tensor(onnx.numpy_helper.to_array(tensor)), generator, precision)
                tensor.CopyFrom(onnx.numpy_helper.from_array(as_array(moved), tensor.name))
            path = _saved(model, scratch / f"{precision.name if precision else 'own'}-{run}.onnx")
            sessions.append(self._runtime.load(path, "cpu"))
        return sessions


def _saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")
    return path


def _is_clipped(values: torch.Tensor, activation: QuantizedActivation) -> bool:
    """Whether ``values`` of an activation are outside of its range, or, if they are integers, at its limits."""
    low, high = activation.range
    least, most = int(activation.integers.min), int(activation.integers.max)
    # Where the lowest integer stands for zero, the quantization is a ReLU, too.
    has_low = activation.zero_point != least
    if activation.source is not None:
        clipped = (values > high + activation.scale) | ((values < low - activation.scale) & has_low)
    else:
        clipped = (values == most) | ((values == least) & has_low)
    return int(clipped.sum()) > CLIPPED_SHARE * values.numel()


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What was found out about two files by running them."""

    outputs: tuple[OutputDrift, ...]
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]
    """The names of inputs that both files reject."""


class _FileProber:
    """Runs two files on inputs and makes probes of those that both accept; the first one's outputs are the reference.

    Args:
        scratch: a folder for perturbed copies of the reference.
    """

    example: Probe

    def __init__(self, reference: LoadedFile, tested: LoadedFile, scratch: Path) -> None:
        self._reference, self._tested, self._scratch = reference, tested, scratch
        self._files = (reference, tested)
        precisions = [each for each in PRECISIONS.values() if each in (reference.precision, tested.precision)]
        self._lower = precisions[-1] if precisions else None
        self.inputs: dict[str, Sequence[torch.Tensor]] = {}
        """The inputs that at least one file accepts."""
        self.got: dict[str, Outputs] = {}
        """The tested file's outputs by the name of the probe."""
        self.left_out: dict[str, None] = {}
        self.clipped: dict[str, None] = {}
        """The names of drawn inputs outside of the range that a quantized file was calibrated for."""
        self.findings: list[Finding] = []

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The ranges that quantized inputs were calibrated for, by the reference's names."""
        names = [value.name for value in self._reference.signature.inputs]
        return {names[place]: limits for file in self._files for place, limits in file.ranges.items()}

    @property
    def is_calibrated(self) -> bool:
        """Whether a file has calibrated ranges, of which inputs may be outside."""
        return any(file.activations for file in self._files)

    def probe(self, name: str, inputs: Sequence[torch.Tensor], *, special: bool = False, quick: bool = False) -> Probe | None:
        if name in self.got or all(map(is_same, inputs, self.example.inputs)):
            return None
        return self.first_probe(name, inputs, special=special, like=self.example.reference if quick else None)

    def first_probe(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        *,
        special: bool = False,
        is_given: bool = False,
        like: Reference | None = None,
    ) -> Probe | None:
        """The probe, or ``None`` if a file rejects the inputs, or a quantized one was not calibrated for them.

        Args:
            is_given: whether the user gave the inputs: what a file makes of them always counts.
            like: a reference in proportion to which the noise is estimated, if that can be done.
        """
        made: list[Outputs] = []
        errors: list[tuple[str, str]] = []
        for file in self._files:
            try:
                made.append(file.run(inputs))
            except Exception as error:  # each runtime raises its own classes
                errors.append((file.name, first_line(error)))
        if len(errors) == 1:
            [(rejecting, reason)] = errors
            message = f"only {rejecting} rejects {name!r}: {reason}"
            self.findings.append(finding("run-error", message, remedy=_ONE_REJECTS, probe=name))
        elif errors:
            self.left_out[name] = None
        if made:
            self.inputs[name] = inputs
        if errors:
            return None
        if not is_given and any(file.clips(inputs, self._scratch) for file in self._files):
            self.clipped[name] = None
            return None
        own, self.got[name] = made
        proportion = proportional_reference(own, like) if like else None

        @functools.cache
        def precise() -> Reference:
            return self._precise(own, inputs)

        refinements: list[Callable[[], Reference]] = [precise] if proportion else []
        if (lower := self._lower) is not None:
            refinements = [lambda: self._lowered(name, proportion or precise(), inputs, lower)]
        return Probe(
            name=name,
            inputs=tuple(inputs),
            reference=proportion or precise(),
            special=special,
            refinements=tuple(refinements),
        )

    def _lowered(self, name: str, like: Reference, inputs: Sequence[torch.Tensor], precision: Precision) -> Reference:
        """``like`` with the noise of a lower precision: of weights, inputs, and quantized activations of the tested file."""
        own, got = like.own, self.got[name]
        runs = self._reference.perturbed_runs(inputs, own, precision, self._scratch)
        if not precision.is_uniform:
            return lowered_reference(like, runs, precision)
        jittered = [
            tuple(a + (c.double() - b.double()) if has_noise(a) else a for a, b, c in zip(own, got, made, strict=True))
            for made in self._tested.jittered_runs(inputs, self._scratch)
            if same_shapes(made, own)
        ]
        if not jittered:  # only the weights are quantized
            return lowered_reference(like, runs, precision)
        lowered = lowered_reference(like, runs, precision, share=QUANTIZED_SHARE)
        return lowered_reference(lowered, jittered, precision, share=JITTERED_SHARE)

    def _precise(self, own: Outputs, inputs: Sequence[torch.Tensor]) -> Reference:
        exact = self._reference.in_float64(inputs)
        lower = self._reference.precision
        return reference_from(
            own,
            exact if exact is not None and same_shapes(exact, own) else None,
            lambda: self._reference.perturbed_runs(inputs, own, None, self._scratch),
            eps=max(torch.finfo(torch.float32).eps, lower.eps if lower else 0.0),
        )


_ONE_REJECTS = "Make both files accept the same sizes and values; onnx-ci show prints the differences of their graphs."
_UNCALIBRATED = "Give inputs like those that the file was calibrated on: --inputs. With some, look for a wrong scale."
_NO_INPUT = "Give inputs that the files accept (--inputs), or sizes (--size)."


def compare_runs(
    reference: LoadedFile,
    tested: LoadedFile,
    given: Mapping[str, Sequence[torch.Tensor]],
    sizes: Sizes,
    max_drift: DriftLimit,
    scratch: Path,
    save_inputs: Path | None = None,
) -> Compared:
    """Run both files on the same inputs and compare their outputs.

    The first input that both accept is the example. The others are like it, as the probes of a recipe are like the recipe's
    example: other values, other sizes of the dynamic axes, zeros, negated and larger numbers.

    Args:
        given: inputs by name, in the order of the reference's inputs; without any, inputs are drawn.
        sizes: sizes of dynamic axes; others are chosen.
        max_drift: the largest drift that passes.
        scratch: a folder for perturbed copies of the reference.
        save_inputs: where the inputs are written on which the files differ, if anywhere.
    """
    prober = _FileProber(reference, tested, scratch)
    values = reference.signature.inputs
    probes = [probe for name, inputs in given.items() if (probe := prober.first_probe(name, inputs, is_given=True))]
    if not given:
        drawn = (prober.first_probe(name, inputs) for name, inputs in _drawn_inputs(values, sizes, prober))
        probes = list(itertools.islice(filter(None, drawn), 1))
        # These were tried until one was accepted.
        (tried, prober.left_out), (clipped, prober.clipped) = (prober.left_out, {}), (prober.clipped, {})
        if not probes and not prober.findings:
            message = f"both files reject every input that was tried: {', '.join(tried)}"
            if clipped:
                message = f"every input that was tried is outside of the calibrated ranges: {', '.join(clipped)}"
            prober.findings.append(finding("vacuous", message, remedy=_UNCALIBRATED if clipped else _NO_INPUT))
    elif not probes and not prober.findings:
        message = f"both files reject every input that was given: {', '.join(prober.left_out)}"
        prober.findings.append(finding("vacuous", message, remedy=_NO_INPUT))
    findings = prober.findings
    if probes:
        prober.example = probes[0]
        probes += _more_probes(prober, values, sizes, findings)
    outputs: list[OutputDrift] = []
    names = [reference.signature.outputs[place].name for place in reference.output_places]
    terms = Terms(
        tested=tested.name,
        reference=reference.name,
        rounding=f"the rounding of {reference.name}",
        remedy="Print the differences of their graphs, weights included: onnx-ci show A.onnx B.onnx.",
        is_traced=False,
    )
    for probe in probes:
        compared = compare_refined(names, prober.got[probe.name], probe, max_drift, "onnxruntime", terms)
        outputs += compared.outputs
        findings += compared.findings
    findings += never_compared(outputs, of=reference.name)
    if perturbed_on := [probe.name for probe in probes if probe.reference.method == "perturbation"]:
        message = (
            f"ONNX's reference evaluator cannot run {reference.name} in float64 (on {', '.join(perturbed_on)}): its rounding "
            "is estimated by perturbation"
        )
        findings.append(finding("no-float64", message, remedy="No action is needed."))
    if prober.clipped:
        message = f"not compared on {listed(prober.clipped)}: outside of the ranges that a quantized file was calibrated for"
        remedy = "No action is needed. To compare on such inputs, give some: --inputs."
        findings.append(finding("vacuous", message, severity=Severity.NOTE, remedy=remedy))
    if save_inputs is not None:
        save_failing(findings, prober.inputs, [value.name for value in values], save_inputs)
    return Compared(outputs=tuple(outputs), findings=tuple(findings), left_out=tuple(prober.left_out))


def _more_probes(prober: Prober, values: Sequence[Value], sizes: Sizes, findings: list[Finding]) -> list[Probe]:
    """Inputs like the example; an axis that both files accept at one size only is noted in ``findings``."""
    probes = fresh_probes(prober)
    positive = [tensor.abs() if is_float(tensor) else tensor for tensor in prober.example.inputs]
    if probe := prober.probe("floats positive", positive):  # for logarithms and square roots
        probes.append(probe)
    special = (each for each in variations(prober.example.inputs, UNKNOWN) if each.legality is not Legality.EXTREME)
    axes = _input_axes(values, sizes, prober.example.inputs)
    resized = resized_probes(prober, axes)
    for label, tried in resized.untested([prober.example, *resized.probes], axes):
        message = f"the dynamic axis {label!r} was compared at one size only: the files reject {', '.join(map(str, tried))}"
        remedy = f"Name sizes that they accept: --size {label}=SIZE,SIZE."
        findings.append(finding("vacuous", message, severity=Severity.NOTE, remedy=remedy))
    return [*probes, *resized.probes, *special_probes(prober, special)]


def _input_axes(values: Sequence[Value], sizes: Sizes, example: Sequence[torch.Tensor]) -> InputAxes:
    """The dynamic axes of a file's inputs. An axis for which one size is given keeps it."""
    variables = axis_variables(values)
    places = [
        Place(index=index, axis=axis, size=variables.sizes[axis_label(value, axis)])
        for index, value in enumerate(values)
        for axis, dim in enumerate(value.dims or ())
        if not isinstance(dim, int)
    ]
    known = InputAxes(places=tuple(places)).sizes_in(example)
    # Inputs that were given need not have the sizes that the file declares.
    held = [place for place in places if all(name in known for name in place.size.names)]
    return InputAxes(
        places=tuple(held),
        declared={label: few[1:] for label, few in sizes.items() if len(few) > 1},
        fixed=frozenset(label for label, few in sizes.items() if len(few) == 1),
    )


# --- inputs made from the signature -----------------------------------------------------------------------------------

_OTHER_SIZES = (None, 8, 16, 32, 64, 128, 224, 1)
"""The sizes of dynamic axes, in the order of trying; ``None`` for small ones that differ from each other."""
_INTEGERS = (10, 2, 1)
"""Random integers are below this number, in the order of trying: an index may only have few values."""
_FACTORS = (1.0, 0.5, 0.25)
"""Factors of random numbers, in the order of trying, where a quantized file may not have been calibrated for large ones."""


def _drawn_inputs(values: Sequence[Value], sizes: Sizes, prober: _FileProber) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Random inputs for a signature with names, in the order of trying."""
    variables = axis_variables(values)
    has_batch = len(set(variables.positions.values())) > 1
    has_integers = any(not to_torch_dtype(DataType(value.element_type)).is_floating_point for value in values)
    ranges, factors = prober.ranges, _FACTORS if prober.is_calibrated else _FACTORS[:1]
    seen = set()
    for size in _OTHER_SIZES if variables.positions else (None,):
        chosen: dict[str, int] = {}
        for place, (label, axis) in enumerate(variables.positions.items()):
            # Beside other axes, the first one is usually a batch, of which a large one takes long.
            other = 2 + place if size is None or (has_batch and axis == 0 and size > 1) else size
            chosen[label] = sizes[label][0] if label in sizes else other
        shapes = variables.shapes(values, chosen)
        if shapes is None:
            continue
        for below in _INTEGERS if has_integers else _INTEGERS[:1]:
            names = [f"{label}={size}" for label, size in chosen.items()]
            name = ",".join(names + ([f"integers below {below}"] if has_integers else [])) or EXAMPLE
            if name not in seen:
                seen.add(name)
                for factor in factors:
                    pairs = zip(values, shapes, strict=True)
                    yield name, [_random(value, shape, below, factor, ranges.get(value.name)) for value, shape in pairs]


def _random(value: Value, shape: Sequence[int], below: int, factor: float, limits: tuple[float, float] | None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    dtype = to_torch_dtype(DataType(value.element_type))
    if dtype.is_floating_point and limits is not None:  # half of the range: other probes have larger values
        low, high = (factor * each / 2 for each in limits)
        return (low + (high - low) * torch.rand(shape, generator=generator)).to(dtype)
    if dtype.is_floating_point:
        return (factor * torch.randn(shape, generator=generator)).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else below, shape, generator=generator).to(dtype)
