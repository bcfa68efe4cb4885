"""Two files on the same inputs: one of them is the reference, and its rounding is the unit of drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.onnx_model.signature import Value
from onnx_ci.pipeline.compare.drift import Terms, compare_refined
from onnx_ci.pipeline.compare.runtime_run import never_compared, save_failing
from onnx_ci.pipeline.domains.axes import InputAxes, Place
from onnx_ci.pipeline.domains.input_domains import UNKNOWN
from onnx_ci.pipeline.inputs.probes import InputStatus, Probe, is_float
from onnx_ci.pipeline.inputs.random_values import fresh_probes
from onnx_ci.pipeline.inputs.sizes import resized_probes
from onnx_ci.pipeline.inputs.special_values import special_probes, variations
from onnx_ci.pipeline.run.quantized_file import MOST_ERROR, WRONG_SCALE, ScaleFit, too_coarse
from onnx_ci.results.records import Finding, OutputDrift, Severity
from onnx_ci.results.rules import finding
from onnx_ci.text import listed
from onnx_ci.tools.two_files.drawn_inputs import drawn_inputs
from onnx_ci.tools.two_files.interfaces import Sizes, axis_label, axis_variables
from onnx_ci.tools.two_files.loaded_file import LoadedFile
from onnx_ci.tools.two_files.probes import FileProber

_UNCALIBRATED = "Give inputs like those that the file was calibrated on: --inputs. With some, look for a wrong scale."
_UNLIKE = "To compare with all scales in use, give inputs of the calibration: --inputs."
_NO_INPUT = "Give inputs that the files accept (--inputs), or sizes (--size)."


@dataclass(frozen=True, kw_only=True)
class Request:
    """What two files are run on, and how far they may differ."""

    inputs: Mapping[str, Sequence[torch.Tensor]]
    """Inputs by name, in the order of the reference's inputs; without any, inputs are drawn."""
    sizes: Sizes
    """Sizes of dynamic axes; others are chosen."""
    limit: DriftLimit
    save_inputs: Path | None
    """Where the inputs are written on which the files differ, if anywhere."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What is found out about two files by running them."""

    outputs: tuple[OutputDrift, ...] = ()
    findings: tuple[Finding, ...] = ()
    left_out: tuple[str, ...] = ()
    """The names of inputs that both files reject."""


_UNCOMPARED = "Give inputs for which the outputs are finite and can be compared: --inputs."


def compare_runs(reference: LoadedFile, tested: LoadedFile, request: Request) -> Runs:
    """Run both files on the same inputs and compare their outputs.

    The first input that both accept is the example. The others are like it, as the probes of a recipe are like the recipe's
    example: other values, other sizes of the dynamic axes, zeros, negated and larger numbers.
    """
    prober = FileProber(reference, tested)
    values = reference.file.signature.inputs
    probes = _first_probes(prober, values, request)
    if probes:
        prober.example = probes[0]
        probes += _more_probes(prober, values, request.sizes)
    outputs, differences = _compare_outputs(prober, probes, request.limit)
    findings = [*prober.findings, *differences, *never_compared(outputs, differences, reference.file.name, _UNCOMPARED)]
    if perturbed_on := [probe.name for probe in probes if probe.reference.method == "perturbation"]:
        message = (
            f"ONNX's reference evaluator cannot run {reference.file.name} in float64 (on {', '.join(perturbed_on)}): its "
            "rounding is estimated by perturbation"
        )
        findings.append(finding("no-float64", message, remedy="No action is needed."))
    findings += _clipped(prober)
    if request.save_inputs is not None:
        save_failing(findings, prober.inputs, [value.name for value in values], request.save_inputs)
    return Runs(outputs=tuple(outputs), findings=tuple(findings), left_out=tuple(prober.rejected))


def _clipped(prober: FileProber) -> Iterator[Finding]:
    """What a quantized file clips: it was not calibrated for these inputs, or the scale of an activation is wrong.

    The range of an input tells these apart; those of other activations do not, because drawn inputs may move them further than
    those of the calibration, although they are of the same range. The file must be right on given inputs.
    """
    outside = {name: each for name, each in prober.clipped.items() if each.is_of_input}
    within = {name: each for name, each in prober.clipped.items() if not each.is_of_input}
    if outside:
        message = f"not compared on {listed(outside)}: outside of the ranges that a quantized file was calibrated for"
        remedy = "No action is needed. To compare on such inputs, give some: --inputs."
        yield finding("vacuous", f"{message}; {_most(outside)}", severity=Severity.NOTE, remedy=remedy)
    if within:
        message = f"not compared on {listed(within)}: the inputs are unlike those of the calibration, or a scale is wrong"
        severity = Severity.NOTE if prober.has_given else Severity.WARNING
        yield finding("vacuous", f"{message}; {_most(within)}", severity=severity, remedy=_UNLIKE)
    if wrong := {name: each for name, each in prober.clipped_given.items() if each.error > MOST_ERROR}:
        worst = max(wrong.values(), key=lambda each: each.error)
        message = (
            f"on {listed(wrong)}, {worst}: {worst.error:.3g} times the error of the best scale; the limit is {MOST_ERROR:g}"
        )
        yield finding("numeric-drift", message, remedy=WRONG_SCALE)
    yield from too_coarse(prober.fits_given)


def _most(clipped: Mapping[str, ScaleFit]) -> ScaleFit:
    return max(clipped.values(), key=lambda each: each.share)


def _first_probes(prober: FileProber, values: Sequence[Value], request: Request) -> list[Probe]:
    """The probes of the given inputs, or of the first drawn input that both files accept.

    If there is none, that is a finding, unless the inputs are findings themselves because only one file rejects them.
    """
    if request.inputs:
        attempts = (prober.first_probe(name, inputs, is_given=True) for name, inputs in request.inputs.items())
        probes = [probe for probe in attempts if probe is not None]
        if not probes and not prober.findings:
            message = f"both files reject every input that was given: {', '.join(prober.rejected)}"
            prober.findings.append(finding("vacuous", message, remedy=_NO_INPUT))
        return probes
    for name, inputs in drawn_inputs(values, request.sizes, prober.ranges, is_calibrated=prober.is_calibrated):
        if probe := prober.first_probe(name, inputs):
            prober.rejected = {}  # attempts, not inputs that the comparison leaves out
            clipped = prober.clipped.items()
            prober.clipped = {f"larger numbers like {name}": each for name, each in clipped if not each.is_of_input}
            return [probe]
    if not prober.findings:
        message, remedy = f"both files reject every input that was tried: {', '.join(prober.rejected)}", _NO_INPUT
        if prober.clipped:
            names = ", ".join(prober.clipped)
            message = f"every input that was tried is outside of the calibrated ranges: {names}; {_most(prober.clipped)}"
            remedy = _UNCALIBRATED
        prober.findings.append(finding("vacuous", message, remedy=remedy))
    prober.rejected, prober.clipped = {}, {}
    return []


def _more_probes(prober: FileProber, values: Sequence[Value], sizes: Sizes) -> list[Probe]:
    """Inputs like the example. An axis that both files accept at one size only is a note of the prober."""
    example = prober.example
    fresh = fresh_probes(prober)
    positive = [tensor.abs() if is_float(tensor) else tensor for tensor in example.inputs]
    if probe := prober.probe("floats positive", positive):  # for logarithms and square roots
        fresh.append(probe)
    axes = _input_axes(values, sizes, example.inputs)
    resized = resized_probes(prober, axes)
    for label, tried in resized.untested([example, *resized.probes], axes):
        message = f"the dynamic axis {label!r} was compared at one size only, not at {', '.join(map(str, tried))}"
        remedy = f"Name sizes that they accept: --size {label}=SIZE,SIZE."
        prober.findings.append(finding("vacuous", message, severity=Severity.NOTE, remedy=remedy))
    special = (each for each in variations(example.inputs, UNKNOWN) if each.legality is not InputStatus.EXTREME)
    return [*fresh, *resized.probes, *special_probes(prober, special)]


def _input_axes(values: Sequence[Value], sizes: Sizes, example: Sequence[torch.Tensor]) -> InputAxes:
    """The dynamic axes of a file's inputs. An axis for which one size is given keeps it."""
    variables = axis_variables(values)
    places = [
        Place(index=index, axis=axis, size=variables.sizes[axis_label(value, axis)])
        for index, value in enumerate(values)
        for axis, dim in enumerate(value.dims or ())
        if not isinstance(dim, int)
    ]
    # Inputs that the user gives need not have the sizes that the file declares.
    sizes_of_example = InputAxes(places=tuple(places)).sizes_in(example)
    fitting = [place for place in places if all(name in sizes_of_example for name in place.size.names)]
    return InputAxes(
        places=tuple(fitting),
        declared={label: few[1:] for label, few in sizes.items() if len(few) > 1},
        fixed=frozenset(label for label, few in sizes.items() if len(few) == 1),
    )


def _compare_outputs(prober: FileProber, probes: Sequence[Probe], limit: DriftLimit) -> tuple[list[OutputDrift], list[Finding]]:
    """How far the outputs of the tested file deviate on each probe, and what is wrong with them."""
    reference, tested = prober.reference.file, prober.tested.file
    names = [reference.signature.outputs[place].name for place in reference.output_places]
    terms = Terms(
        tested=tested.name,
        reference=reference.name,
        rounding=f"the rounding of {reference.name}",
        remedy="Print the differences of their graphs, weights included: onnx-ci show A.onnx B.onnx.",
        is_traced=False,
    )
    outputs: list[OutputDrift] = []
    findings: list[Finding] = []
    for probe in probes:
        compared = compare_refined(names, prober.outputs[probe.name], probe, limit, terms)
        outputs += compared.outputs
        findings += compared.findings
    return outputs, findings
