"""One runtime on one file: load it, run it on every probe, compare what it computes with what the model does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from onnx_ci import contract
from onnx_ci.capture import timed
from onnx_ci.compare import Comparison, compare, compare_moments
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
    """Run the file at ``path`` on everything that ``prepared`` has for it. What the runtime raises becomes findings.

    Args:
        device: where it is to run.
        limit: the drift that just passes, where the recipe names none.
        timings: gets the seconds of each stage added.
    """
    trial = _Trial(runtime, signature, prepared, limit, timings)
    trial.run(path, device)
    return RuntimeRun(
        runtime=runtime.name,
        is_deployed=runtime.is_deployed,
        outputs=tuple(trial.outputs),
        findings=tuple(trial.findings),
    )


class _Trial:
    """What is known while the runtime runs."""

    def __init__(
        self, runtime: Runtime, signature: Signature, prepared: Prepared, limit: float, timings: dict[str, float]
    ) -> None:
        self._runtime, self._signature, self._prepared, self._limit = runtime, signature, prepared, limit
        self._timings = timings
        self._inputs = [value.name for value in signature.inputs]
        self._names = [value.name for value in signature.outputs]
        self.outputs: list[OutputDrift] = []
        self.findings: list[Finding] = []

    def run(self, path: Path, device: str) -> None:
        try:
            with timed("load", self._timings):
                session = self._runtime.load(path, device)
        except Exception as error:  # each runtime raises its own classes
            said = first_line(error).replace(str(path), "the file")  # where it lies is another place each time
            self.findings.append(finding("load-error", f"{self._runtime.name} cannot load the file: {said}"))
            return
        if session.provider != device.partition(":")[0]:
            self.findings.append(
                finding("provider-mismatch", f"{self._runtime.name} ran on {session.provider} where {device} was asked for")
            )
        elif self._prepared.samples:
            self._judge_moments(session)
        else:
            self._judge_probes(session)

    def _judge_moments(self, session: Session) -> None:
        """Compare a model that is random by its recipe's word: moments in place of values."""
        feeds = self._feeds(self._prepared.example)
        try:
            with timed("run", self._timings):
                runs = [session.run(feeds) for _ in self._prepared.samples]
        except Exception as error:  # each runtime raises its own classes
            self.findings.append(finding("run-error", f"{self._runtime.name} fails on the example: {first_line(error)}"))
            return
        self.findings += compare_moments(self._names, runs, self._prepared.samples)

    def _feeds(self, probe: Probe) -> dict[str, torch.Tensor]:
        weights = {name: self._prepared.weights[name] for name in self._signature.weights}
        return {**dict(zip(self._inputs, probe.inputs, strict=True)), **weights}

    def _judge_probes(self, session: Session) -> None:
        declared_wrong = False
        failing = "run-error"
        for probe in self._prepared.probes:
            try:
                with timed("run", self._timings):
                    got = session.run(self._feeds(probe))
            except Exception as error:  # each runtime raises its own classes
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


def _never_compared(outputs: Iterable[OutputDrift]) -> list[Finding]:
    """Outputs of which no element was ever compared: they are empty, or never finite and stable in the model."""
    compared: dict[str, bool] = {}
    for each in outputs:
        compared[each.name] = compared.get(each.name, False) or each.index is not None
    said = "was never compared: on every input it is empty, or none of its values is finite and stable in the model"
    return [finding("vacuous", f"output {name!r} {said}") for name, seen in compared.items() if not seen]
