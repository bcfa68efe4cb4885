"""One runtime on one file: load it, run it on every probe, compare what it computes with what the model does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from onnx_ci import contract
from onnx_ci.capture import timed
from onnx_ci.compare import Comparison, compare, compare_moments
from onnx_ci.devices import ran_out_of_memory
from onnx_ci.errors import first_line
from onnx_ci.onnx_file import Signature
from onnx_ci.prepare import Prepared
from onnx_ci.probes import Probe
from onnx_ci.records import Finding, OutputDrift, Severity
from onnx_ci.rules import finding
from onnx_ci.runtime import Runtime, Session


@dataclass(frozen=True, kw_only=True)
class RuntimeRun:
    """What one runtime made of a file."""

    runtime: str
    is_deployed: bool
    """Whether models are shipped to it, so that its faults fail the cell; otherwise it is a witness."""
    outputs: tuple[OutputDrift, ...]
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong enough to fail the cell."""
        return tuple(each for each in self.findings if each.severity is Severity.ERROR)


def run_file(
    runtime: Runtime,
    path: Path,
    signature: Signature,
    prepared: Prepared,
    *,
    device: str,
    limit: float,
    timings: dict[str, float],
) -> RuntimeRun:
    """Run the file at ``path`` on everything that ``prepared`` has for it.

    What the runtime raises becomes findings, unless it is a GPU without room.

    Args:
        device: where it is to run.
        limit: the drift that just passes, where the recipe names none.
        timings: gets the seconds of each stage added.
    """
    trial = _Trial(runtime, signature, prepared, device, limit, timings)
    trial.run(path)
    return RuntimeRun(
        runtime=runtime.name,
        is_deployed=runtime.is_deployed,
        outputs=tuple(trial.outputs),
        findings=tuple(trial.findings),
    )


class _Trial:
    """What is known while the runtime runs."""

    def __init__(
        self, runtime: Runtime, signature: Signature, prepared: Prepared, device: str, limit: float, timings: dict[str, float]
    ) -> None:
        self._runtime, self._signature, self._prepared = runtime, signature, prepared
        self._device, self._limit, self._timings = device, limit, timings
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
            said = first_line(error).replace(str(path), "the file")  # where it lies is another place each time
            self.findings.append(finding("load-error", f"{self._runtime.name} cannot load the file: {said}"))
            return
        if session.provider != device.partition(":")[0]:
            self.findings.append(
                finding("provider-mismatch", f"{self._runtime.name} ran on {session.provider} where {device} was asked for")
            )
            return
        if self._prepared.samples:
            self._judge_moments(session)
        else:
            self._judge_probes(session)
        if device != "cpu":
            self.findings += self._left_to_the_cpu(session, device)

    def _left_to_the_cpu(self, session: Session, device: str) -> Iterator[Finding]:
        """What did not run on the GPU though the session did: a note, unless the recipe says that all must."""
        nodes, must = session.left_to_the_cpu, self._prepared.recipe.all_on_device
        if nodes:
            named = ", ".join(nodes[:3]) + (" and more" if len(nodes) > 3 else "")
            ran = f"ran {len(nodes)} node{'s' * (len(nodes) > 1)} on cpu"
            said = f"{self._runtime.name} {ran} where {device} was asked for: {named}"
            severity = Severity.ERROR if must else Severity.NOTE
            yield finding("provider-mismatch", said, remedy=_NO_KERNEL, severity=severity, nodes=list(nodes))
        elif nodes is None and must:
            said = f"{self._runtime.name} does not tell which nodes ran on {device}, and the recipe says that all must"
            yield finding("provider-mismatch", said, remedy="See why the file does not run, or why no profile can be written.")

    def _judge_moments(self, session: Session) -> None:
        """Compare a model that is random by its recipe's word: moments in place of values."""
        feeds = self._feeds(self._prepared.example)
        try:
            with timed("run", self._timings):
                runs = [session.run(feeds) for _ in self._prepared.samples]
        except Exception as error:  # each runtime raises its own classes
            _raise_if_out_of_memory(error)
            self.findings.append(finding("run-error", f"{self._runtime.name} fails on the example: {first_line(error)}"))
            return
        self.findings += compare_moments(self._names, runs, self._prepared.samples)

    def _feeds(self, probe: Probe) -> dict[str, torch.Tensor]:
        return feeds_of(self._signature, self._prepared, probe)

    def _judge_probes(self, session: Session) -> None:
        declared_wrong = False
        failing = "run-error"
        for probe in self._prepared.probes:
            try:
                with timed("run", self._timings):
                    got = session.run(self._feeds(probe))
            except Exception as error:  # each runtime raises its own classes
                _raise_if_out_of_memory(error)
                self.findings.append(
                    finding(failing, f"{self._runtime.name} fails on {probe.name!r}: {first_line(error)}", probe=probe.name)
                )
                continue
            if probe is self._prepared.example:
                failing = "baked-shape"  # a file that runs on the example fails on other sizes because of them
            with timed("compare", self._timings):
                comparison = self._compare(got, probe)
                if probe.refine is not None and any(each.severity is Severity.ERROR for each in comparison.findings):
                    comparison = self._compare(got, replace(probe, reference=probe.refine(), refine=None))
                if not declared_wrong:
                    told = contract.compare_execution(self._signature, got, probe)
                    declared_wrong = bool(told)
                    self.findings += told
            self.outputs += comparison.outputs
            self.findings += comparison.findings
        self.findings += _never_compared(self.outputs)

    def _compare(self, got: list[torch.Tensor], probe: Probe) -> Comparison:
        return compare(self._names, got, probe, self._prepared.recipe, self._limit, self._runtime.name)


_NO_KERNEL = "The provider has no kernel for them at this opset or data type; another opset may help, or other operators."


def feeds_of(signature: Signature, prepared: Prepared, probe: Probe) -> dict[str, torch.Tensor]:
    """What the file takes, by name: the inputs of ``probe``, and weights that the file does not hold."""
    weights = {name: prepared.weights[name] for name in signature.weights}
    return {**dict(zip((value.name for value in signature.inputs), probe.inputs, strict=True)), **weights}


def _raise_if_out_of_memory(error: Exception) -> None:
    if ran_out_of_memory(error):
        raise error


def _never_compared(outputs: Iterable[OutputDrift]) -> list[Finding]:
    """Outputs of which no element was ever compared: they are empty, or never finite and stable in the model."""
    compared: dict[str, bool] = {}
    for each in outputs:
        compared[each.name] = compared.get(each.name, False) or each.index is not None
    said = "was never compared: on every input it is empty, or none of its values is finite and stable in the model"
    return [finding("vacuous", f"output {name!r} {said}") for name, seen in compared.items() if not seen]
