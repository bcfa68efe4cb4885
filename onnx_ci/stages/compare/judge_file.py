"""One runtime on one file: load it, run it on every probe, and compare its outputs with the model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from onnx_ci.errors import first_line
from onnx_ci.matrix.plan import DriftLimit
from onnx_ci.onnx_model.saved_inputs import file_name, write_inputs
from onnx_ci.onnx_model.signature import Signature
from onnx_ci.processes.capture import timed
from onnx_ci.results.records import Finding, OutputDrift, Severity
from onnx_ci.results.rules import finding
from onnx_ci.stages.compare.drift import Comparison, compare_refined
from onnx_ci.stages.compare.random_outputs import compare_random
from onnx_ci.stages.contract import contract
from onnx_ci.stages.inputs.probes import Legality, Probe
from onnx_ci.stages.model.arrays import as_array, in_declared_type
from onnx_ci.stages.model.devices import ran_out_of_memory
from onnx_ci.stages.model.live_model import is_finite
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.stages.reference.random_samples import sample_of
from onnx_ci.stages.run.runtime import Runtime, Session
from onnx_ci.text import count


@dataclass(frozen=True, kw_only=True)
class RuntimeRun:
    """The result of running a file with one runtime."""

    runtime: str
    is_deployed: bool
    """Whether models are deployed with it, so that its errors fail the cell; otherwise it is a reference runtime."""
    outputs: tuple[OutputDrift, ...]
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What the file does wrong: errors, and warnings of degenerate inputs."""
        return tuple(each for each in self.findings if each.severity is not Severity.NOTE)

    @property
    def fails_on_inputs(self) -> bool:
        """Whether there are faults that depend on the inputs."""
        return any(each.rule not in ("load-error", "provider-mismatch") for each in self.faults)


def run_file(
    runtime: Runtime,
    path: Path,
    signature: Signature,
    prepared: Prepared,
    *,
    device: str,
    max_drift: DriftLimit,
    timings: dict[str, float],
) -> RuntimeRun:
    """Run the file at ``path`` on every probe and compare its outputs.

    Errors of the runtime become findings, except for out-of-memory errors of a GPU, which are raised.

    Args:
        device: the device to run on.
        max_drift: the largest drift that passes.
        timings: the seconds of each stage are added to it.
    """
    trial = _FileRun(runtime, signature, prepared, device, max_drift, timings)
    trial.run(path)
    return RuntimeRun(
        runtime=runtime.name,
        is_deployed=runtime.is_deployed,
        outputs=tuple(trial.outputs),
        findings=tuple(trial.findings),
    )


class _FileRun:
    """The state of one run."""

    def __init__(
        self,
        runtime: Runtime,
        signature: Signature,
        prepared: Prepared,
        device: str,
        max_drift: DriftLimit,
        timings: dict[str, float],
    ) -> None:
        self._runtime, self._signature, self._prepared = runtime, signature, prepared
        self._device, self._max_drift, self._timings = device, max_drift, timings
        self._names = [value.name for value in signature.outputs]
        self.outputs: list[OutputDrift] = []
        self.findings: list[Finding] = []

    def run(self, path: Path) -> None:
        device = self._device
        try:
            with timed("load", self._timings):
                session = self._runtime.load(path, device)
        except Exception as error:  # each runtime raises its own classes
            _raise_if_out_of_memory(error)
            message = first_line(error).replace(str(path), "the file")  # its path differs each time
            self.findings.append(finding("load-error", f"{self._runtime.name} cannot load the file: {message}"))
            return
        if session.provider != device.partition(":")[0]:
            self.findings.append(
                finding("provider-mismatch", f"{self._runtime.name} ran on {session.provider}, but {device} was requested")
            )
            return
        self._judge_probes(session)
        if device != "cpu":
            self.findings += self._check_nodes_on_cpu(session, device)

    def _check_nodes_on_cpu(self, session: Session, device: str) -> Iterator[Finding]:
        """A note if some nodes of a session on the GPU ran on the CPU; an error if the recipe forbids it."""
        nodes, must = session.nodes_on_cpu, self._prepared.recipe.all_on_device
        if nodes:
            named = ", ".join(nodes[:3]) + (" and more" if len(nodes) > 3 else "")
            ran = f"ran {count(len(nodes), 'node')} on cpu"
            message = f"{self._runtime.name} {ran}, but {device} was requested: {named}"
            severity = Severity.ERROR if must else Severity.NOTE
            yield finding("provider-mismatch", message, remedy=_NO_KERNEL, severity=severity, details={"nodes": list(nodes)})
        elif nodes is None and must:
            message = f"{self._runtime.name} does not report which nodes ran on {device}, but the recipe requires all to"
            remedy = "Check why the file does not run, or why no profile can be written."
            yield finding("provider-mismatch", message, remedy=remedy)

    def _judge_probes(self, session: Session) -> None:
        declared_wrong = False
        failing = "run-error"
        # The outputs of probes that a step follows.
        kept: dict[str, list[torch.Tensor]] = {each.follows: [] for each in self._prepared.probes if each.follows is not None}
        for probe in self._prepared.probes:
            if probe.follows is not None:
                if not (outputs := kept.pop(probe.follows)):
                    continue  # the file failed in the step before
                probe = probe.fed_with(outputs)
            try:
                feeds = feeds_of(self._signature, self._prepared, probe)
                with timed("run", self._timings):
                    got = session.run(feeds)
                    drawn = [[*map(sample_of, session.run(feeds, seed=seed))] for seed in _seeds(len(probe.samples))]
            except Exception as error:  # each runtime raises its own classes
                _raise_if_out_of_memory(error)
                rule = "edge-mismatch" if probe.legality is Legality.DEGENERATE else failing
                message = f"{self._runtime.name} fails on {probe.name!r}: {first_line(error)}"
                self.findings.append(finding(rule, message, probe=probe.name))
                continue
            if probe.name in kept:
                kept[probe.name] = got
            if probe is self._prepared.example:
                failing = "baked-shape"  # a file that runs on the example fails on other sizes because of them
            with timed("compare", self._timings):
                if probe.samples:
                    self.findings += compare_random(self._names, drawn, probe)
                else:
                    comparison = self._compare(got, probe)
                    self.outputs += comparison.outputs
                    self.findings += comparison.findings
                if not declared_wrong:
                    wrong_shapes = contract.compare_execution(self._signature, got, probe)
                    declared_wrong = bool(wrong_shapes)
                    self.findings += wrong_shapes
        self.findings += [*never_compared(self.outputs), *_never_drawn(self._names, self._prepared.probes)]

    def _compare(self, got: list[torch.Tensor], probe: Probe) -> Comparison:
        return compare_refined(self._names, got, probe, self._max_drift, self._runtime.name)


_NO_KERNEL = "The provider has no kernel for them at this opset or data type; another opset may help, or other operators."


def feeds_of(signature: Signature, prepared: Prepared, probe: Probe) -> dict[str, torch.Tensor]:
    """The file's inputs by name: those of ``probe``, and the weights if the file was exported without them."""
    weights = {name: prepared.weights[name] for name in signature.weights}
    pairs = zip(signature.inputs, probe.inputs, strict=True)
    return {**{value.name: in_declared_type(tensor, value.element_type) for value, tensor in pairs}, **weights}


def save_failing(
    findings: Iterable[Finding], inputs: Mapping[str, Sequence[torch.Tensor]], names: Sequence[str | None], folder: Path
) -> None:
    """Write the inputs on which a file fails, each as one file that ``--inputs`` reads.

    Args:
        inputs: the inputs by the name of the probe.
        names: the inputs' names; those without one get their position.
        folder: where the files are written.
    """
    failing = {each.probe for each in findings if each.severity is not Severity.NOTE}
    for probe, tensors in inputs.items():
        if probe in failing:
            named = zip(names, tensors, strict=True)
            arrays = {name or str(place): as_array(tensor) for place, (name, tensor) in enumerate(named)}
            write_inputs(folder / file_name(probe), arrays)


def _raise_if_out_of_memory(error: Exception) -> None:
    if ran_out_of_memory(error):
        raise error


def never_compared(outputs: Iterable[OutputDrift], of: str = "the model") -> list[Finding]:
    """Findings about outputs of which no element was ever compared; ``of`` is what messages call the reference."""
    compared: dict[str, bool] = {}
    for each in outputs:
        compared[each.name] = compared.get(each.name, False) or each.index is not None
    return [_nothing_compared(name, f"finite and stable in {of}") for name, seen in compared.items() if not seen]


def _never_drawn(names: Iterable[str], probes: Sequence[Probe]) -> list[Finding]:
    """Findings about random outputs of which no element could ever be compared."""
    samples = [sample for probe in probes for sample in probe.samples]
    if not samples:
        return []
    seen = [any(bool(is_finite(sample[position].values).any()) for sample in samples) for position in range(len(samples[0]))]
    return [_nothing_compared(name, "finite in the model") for name, is_seen in zip(names, seen, strict=True) if not is_seen]


def _nothing_compared(name: str, what: str) -> Finding:
    message = f"output {name!r} was never compared: on every input it is empty, or none of its values is {what}"
    return finding("vacuous", message)


def _seeds(count: int) -> list[int]:
    """Seeds for runs of a random file. By default, ONNX Runtime (1.31.1) counts up, and such runs depend on each other."""
    return torch.randint(1, 2**31 - 1, (count,), generator=torch.Generator().manual_seed(0)).tolist()
