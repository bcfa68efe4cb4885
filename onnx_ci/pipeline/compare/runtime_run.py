"""One runtime on one file: load it, run it on every probe, and compare its outputs with the model's."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onnx_ci.errors import first_line
from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.onnx_model.saved_inputs import file_name, write_inputs
from onnx_ci.onnx_model.signature import Signature, remedy_of_type
from onnx_ci.pipeline.compare.drift import TOO_NOISY, compare_refined
from onnx_ci.pipeline.compare.random_outputs import compare_random
from onnx_ci.pipeline.contract import contract
from onnx_ci.pipeline.inputs.probes import EXAMPLE, InputStatus, Probe
from onnx_ci.pipeline.model.devices import ran_out_of_memory
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.tensors import as_array, in_declared_type, is_finite
from onnx_ci.pipeline.reference.random_samples import Sample, sample_of
from onnx_ci.pipeline.run.files_together import FilesTogether, RunFilesError
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.pipeline.run.runtime import BrokenRuntimeError, Runtime, Session
from onnx_ci.processes.capture import timed
from onnx_ci.results.records import Finding, OutputDrift, Severity
from onnx_ci.results.rules import REMEDIES, RULES, finding
from onnx_ci.text import count, listed, listed_shortly


@dataclass(frozen=True, kw_only=True)
class RuntimeRun:
    """The result of running a file with one runtime."""

    runtime: str
    is_deployed: bool
    """Whether models are deployed with it, so that its errors fail the cell; otherwise it is a reference runtime."""
    outputs: tuple[OutputDrift, ...]
    findings: tuple[Finding, ...]
    device: str = "cpu"
    is_onnxruntime: bool = False
    """Whether the runtime is ONNX Runtime, so that it can also run the file without its optimizer."""

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What the file does wrong: errors, and warnings of degenerate inputs."""
        return tuple(each for each in self.findings if each.severity is not Severity.NOTE)

    @property
    def fails_on_inputs(self) -> bool:
        """Whether there are faults that depend on the inputs."""
        return not all(map(is_of_runtime_alone, self.faults))


@dataclass(kw_only=True)
class FileRun:
    """One run of a file on every probe, while it goes on: what is known so far."""

    runtime: Runtime
    signature: Signature
    model: RecipeModel
    probes: Sequence[Probe]
    device: str
    max_drift: DriftLimit
    timings: dict[str, float] = field(default_factory=dict)
    """The seconds of each stage are added to it."""
    outputs: list[OutputDrift] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    runs_example: bool = False
    probe: str | None = None
    """The name of the one that it runs on; ``None`` while the file is loaded."""
    clipped: dict[str, str] = field(default_factory=dict)
    """What a quantized file clips on inputs that onnx-ci made, by the name of the probe."""

    def __post_init__(self) -> None:
        self.names = [value.name for value in self.signature.outputs]

    def run(self, path: Path) -> RuntimeRun:
        """Load the file, run it on every probe and compare its outputs.

        Errors of the runtime become findings, except for out-of-memory errors of a GPU, which are raised.
        """
        try:
            session = self._loaded(path)
            if session is not None:
                self._run_probes(session)
                if self.device != "cpu" or session.nodes_on_cpu is not None:
                    self.findings += self._nodes_on_cpu(session)
        except BrokenRuntimeError as fault:
            self.findings.append(self._fault(fault))
        findings = self.findings
        if self.model.recipe.run_files is not None:  # each file may be judged by itself
            alone = REMEDIES["each-file-alone"]
            findings = [
                dataclasses.replace(each, remedy=alone) if each.severity is Severity.ERROR and each.probe else each
                for each in findings
            ]
        return RuntimeRun(
            runtime=self.runtime.name,
            is_deployed=self.runtime.is_deployed,
            outputs=tuple(self.outputs),
            findings=tuple(findings),
            device=self.device,
            is_onnxruntime=isinstance(self.runtime, OnnxRuntime),
        )

    def _loaded(self, path: Path) -> Session | None:
        """The file in the runtime, on the device; ``None`` if that is not possible, which is a finding."""
        try:
            with timed("load", self.timings):
                run_files, load = self.model.recipe.run_files, functools.partial(self.runtime.load, device=self.device)
                if run_files is None:
                    session: Session = load(path)
                else:  # those in a folder, which the recipe's function runs
                    session = FilesTogether(path, load, run_files, self.model.pristine, len(self.names))
        except Exception as error:  # each runtime raises its own classes
            if isinstance(error, BrokenRuntimeError) or ran_out_of_memory(error):
                raise
            reason = _describe_error(error).replace(str(path), "the file")  # its path differs each time
            message, details = f"{self.runtime.name} cannot load the file: {reason}", {"runtime": self.runtime.name}
            remedy = REMEDIES["not-implemented"] if "NOT_IMPLEMENTED" in reason else remedy_of_type(reason)
            self.findings.append(finding("load-error", message, details=details, remedy=remedy))
            return None
        if session.provider != self.device.partition(":")[0]:
            message = f"{self.runtime.name} ran on {session.provider}, but {self.device} was requested"
            self.findings.append(finding("provider-mismatch", message, details={"runtime": self.runtime.name}))
            return None
        return session

    def _fault(self, fault: BrokenRuntimeError) -> Finding:
        """The one finding about a runtime that died or broke a promise, whatever it was given."""
        name, where = self.runtime.name, "while loading the file" if self.probe is None else f"on {self.probe!r}"
        remedy = REMEDIES["conformance"].format(name) if fault.rule == "run-error" else None
        return finding(fault.rule, f"{where}, {name} {fault}", details={"runtime": name}, remedy=remedy)

    def _run_probes(self, session: Session) -> None:
        outputs_of: dict[str, Sequence[torch.Tensor]] = {}
        followed = {probe.follows for probe in self.probes}
        has_wrong_shapes = False
        for probe in self.probes:
            if probe.follows is not None and probe.follows not in outputs_of:
                continue  # the file failed in the step before
            fed = probe if probe.follows is None else probe.fed_with(outputs_of.pop(probe.follows))
            outputs, samples = self._run_probe(session, fed)
            if outputs is None:
                continue
            if probe.name in followed:
                outputs_of[probe.name] = outputs
            with timed("compare", self.timings):
                self._compare(outputs, samples, fed)
                if not has_wrong_shapes:
                    axes = self.model.signature.axes
                    wrong_shapes = contract.compare_execution(self.signature, outputs, fed, axes, self.probes)
                    has_wrong_shapes = bool(wrong_shapes)
                    self.findings += wrong_shapes
        self.findings += [*never_compared(self.outputs, self.findings), *_never_drawn(self.names, self.probes)]
        if self.clipped:
            clipping = next(iter(self.clipped.values()))
            message = f"differences on {listed(self.clipped)} are not errors, because of what is clipped there: {clipping}"
            self.findings.append(finding("vacuous", message, severity=Severity.NOTE, remedy=REMEDIES["uncalibrated"]))

    def _run_probe(self, session: Session, probe: Probe) -> tuple[list[torch.Tensor] | None, list[list[Sample]]]:
        """The outputs on a probe, ``None`` if the file fails; and for a random model, samples of the outputs of more runs."""
        self.probe = probe.name
        try:
            feeds = feeds_of(self.signature, self.model.weights, probe)
            with timed("run", self.timings):
                outputs = session.run(feeds)
                # By default, ONNX Runtime (1.31.1) counts seeds up, and such runs depend on each other.
                seeds = torch.randint(1, 2**31 - 1, (len(probe.samples),), generator=torch.Generator().manual_seed(0)).tolist()
                samples = [[*map(sample_of, session.run(feeds, seed=seed))] for seed in seeds]
        except Exception as error:  # each runtime raises its own classes
            if isinstance(error, BrokenRuntimeError) or ran_out_of_memory(error):
                raise
            message = f"{self.runtime.name} fails on {probe.name!r}: {_describe_error(error)}"
            if isinstance(error, RunFilesError):  # it says which file, or that the recipe's function failed
                message = f"on {probe.name!r}, {_describe_error(error)}"
            details = {"runtime": self.runtime.name}
            # A file that runs on the example fails on other sizes because of them.
            rule = "baked-shape" if self.runs_example else "run-error"
            rule = "edge-mismatch" if probe.legality is InputStatus.DEGENERATE else rule
            self.findings.append(finding(rule, message, probe=probe.name, details=details))
            return None, []
        self.runs_example = self.runs_example or probe.name == EXAMPLE
        return outputs, samples

    def _compare(self, outputs: list[torch.Tensor], samples: list[list[Sample]], probe: Probe) -> None:
        if probe.samples:
            self.findings += compare_random(self.names, samples, probe)
            return
        comparison = compare_refined(self.names, outputs, probe, self.max_drift)
        self.outputs += (dataclasses.replace(each, runtime=self.runtime.name) for each in comparison.outputs)
        self.findings += map(self._as_on_example, comparison.findings)
        if comparison.clipping is not None:
            self.clipped[probe.name] = comparison.clipping

    def _as_on_example(self, fault: Finding) -> Finding:
        """A fault on another input; as one of the example, too, if the file is almost as far off there, within the limit.

        A frozen value makes a file right on the example. One that is imprecise everywhere has no frozen value.
        """
        if fault.rule != "baked-value" or fault.drift is None:
            return fault
        on_example = (each.drift for each in self.outputs if each.probe == EXAMPLE and each.name == fault.output)
        is_alike = fault.drift <= _ALIKE * next(on_example, 0.0)
        rule = RULES["numeric-drift"]
        remedy = rule.remedy if fault.remedy == RULES[fault.rule].remedy else fault.remedy
        return dataclasses.replace(fault, rule=rule.id, remedy=remedy) if is_alike else fault

    def _nodes_on_cpu(self, session: Session) -> Iterator[Finding]:
        """A note if some nodes of a session on the GPU ran on the CPU; an error if the recipe forbids it."""
        nodes, must = session.nodes_on_cpu, self.model.recipe.all_on_device
        details: dict[str, Any] = {"runtime": self.runtime.name}
        if nodes:
            named = ", ".join(nodes[:3]) + (" and more" if len(nodes) > 3 else "")
            ran = f"ran {count(len(nodes), 'node')} on cpu"
            wanted = "not with its provider" if self.device == "cpu" else f"but {self.device} was requested"
            message = f"{self.runtime.name} {ran}, {wanted}: {named}"
            severity = Severity.ERROR if must else Severity.NOTE
            details["nodes"] = [*nodes]
            yield finding("provider-mismatch", message, remedy=REMEDIES["no-kernel"], severity=severity, details=details)
        elif nodes is None and must:
            message = f"{self.runtime.name} does not report which nodes ran on {self.device}, but the recipe requires all to"
            yield finding("provider-mismatch", message, remedy=REMEDIES["no-profile"], details=details)


def is_of_runtime_alone(fault: Finding) -> bool:
    """Whether a fault is about a runtime and about none of the inputs."""
    return fault.probe is None and "runtime" in fault.details


_ALIKE = 4.0
"""How many times as far off as on the example a file may be that is imprecise everywhere."""


def feeds_of(signature: Signature, weights: Mapping[str, torch.Tensor], probe: Probe) -> dict[str, torch.Tensor]:
    """The file's inputs by name: those of ``probe``, and its ``weights`` if it was exported without them."""
    pairs = zip(signature.inputs, probe.inputs, strict=True)
    feeds = {value.name: in_declared_type(tensor, value.element_type) for value, tensor in pairs}
    return feeds | {name: weights[name] for name in signature.weights}


def save_failing(
    findings: Iterable[Finding], inputs: Mapping[str, Sequence[torch.Tensor]], names: Sequence[str | None], folder: Path
) -> None:
    """Write the inputs on which a file fails, each as a file for ``--inputs``. Those without a name get their position."""
    failing = {each.probe for each in findings if each.severity is not Severity.NOTE}
    for probe, tensors in inputs.items():
        if probe in failing:
            named = zip(names, tensors, strict=True)
            arrays = {name or str(place): as_array(tensor) for place, (name, tensor) in enumerate(named)}
            write_inputs(folder / file_name(probe), arrays)


def _describe_error(error: Exception) -> str:
    return _IN_ONNXRUNTIME.sub(" ", first_line(error))


_IN_ONNXRUNTIME = re.compile(r" ?/onnxruntime_src/\S+:\d+ [^()]*\([^()]*\)(?: const)? ")


def never_compared(
    outputs: Iterable[OutputDrift], findings: Iterable[Finding], of: str = "the model", remedy: str | None = None
) -> list[Finding]:
    """Findings about outputs of which no element was ever compared. Where only one side is finite, it was, and is wrong."""
    is_compared = {each.output: True for each in findings if each.output and each.rule == "nonfinite-mismatch"}
    for output in outputs:
        is_compared[output.name] = is_compared.get(output.name, False) or output.index is not None
    return [_nothing_compared(name, f"finite and stable in {of}", remedy) for name, is_one in is_compared.items() if not is_one]


def too_noisy(outputs: Sequence[OutputDrift]) -> Iterator[Finding]:
    """A note about each output that is too noisy on some inputs: they prove nothing about it.

    Left out are extreme inputs, and those on which the output is about as small as the example's noise: no declaration helps
    there.
    """
    noisy: dict[str, dict[str, OutputDrift]] = {}
    usual = {each.name: each for each in outputs if each.probe == EXAMPLE}
    for each in outputs:
        example = usual.get(each.name, each)
        if each.unproven == TOO_NOISY and each.limit <= example.limit and (each is example or each.noise > example.noise):
            noisy.setdefault(each.name, {}).setdefault(each.probe, each)
    for name, by_probe in noisy.items():
        worst = max(by_probe.values(), key=lambda each: each.noise / each.max_abs)
        where = f"on {worst.probe!r}, " if len(by_probe) > 1 else ""
        message = (
            f"output {name!r} is too noisy on {listed_shortly([*map(repr, by_probe)])} to prove anything: {where}"
            f"its noise is {worst.noise:.2g}, and its largest value is {worst.max_abs:.2g}"
        )
        yield finding("vacuous", message, severity=Severity.NOTE, remedy=REMEDIES["never-given"])


def _never_drawn(names: Iterable[str], probes: Sequence[Probe]) -> list[Finding]:
    """Findings about random outputs of which no element could ever be compared."""
    samples = [sample for probe in probes for sample in probe.samples]
    if not samples:
        return []
    by_output = zip(names, zip(*samples, strict=True), strict=True)
    never = [name for name, runs in by_output if not any(bool(is_finite(sample.values).any()) for sample in runs)]
    return [_nothing_compared(name, "finite in the model") for name in never]


def _nothing_compared(name: str, what: str, remedy: str | None = None) -> Finding:
    message = f"output {name!r} was never compared: on every input it is empty, or none of its values is {what}"
    return finding("vacuous", message, remedy=remedy)
