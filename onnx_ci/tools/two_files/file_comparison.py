"""The result of comparing two ONNX files, with the same structure in memory and in JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx_ci.results.records import Finding, OutputDrift, Status, worst_of
from onnx_ci.results.verdict import Severities, broken_rules, with_severities


@dataclass(frozen=True, kw_only=True)
class FileComparison:
    """How two ONNX files differ, in their interfaces and in what they compute."""

    reference: str
    """The file whose outputs are taken as right and whose rounding is the unit of drift: the first one, unless it computes in
    a lower precision than the second."""
    tested: str
    """The other file."""
    findings: tuple[Finding, ...]
    outputs: tuple[OutputDrift, ...] = ()
    """How far the outputs of the tested file deviate, on each input that both accept."""
    left_out: tuple[str, ...] = ()
    """The names of inputs that both files reject, so that nothing was compared on them."""
    log: str = ""
    """The last output of a process that died."""

    @property
    def status(self) -> Status:
        """``PASSED`` if the files are the same: no finding is an error."""
        return Status.FAILED if broken_rules(self.findings) else Status.PASSED

    @property
    def worst(self) -> OutputDrift | None:
        """The output with the largest drift relative to its limit; ``None`` if no numbers were compared."""
        return worst_of(self.outputs)

    def with_severities(self, severities: Severities) -> FileComparison:
        """The same result, each fault once, with the severities that a project gives to rules."""
        return replace(self, findings=tuple(with_severities(self.findings, severities)))
