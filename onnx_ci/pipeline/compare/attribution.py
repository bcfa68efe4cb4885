"""Whether the file or a runtime is at fault when outputs are wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_ci.pipeline.compare.runtime_run import RuntimeRun, is_of_runtime_alone
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.text import listed_shortly


def attribute_faults(runs: Sequence[RuntimeRun], references: Sequence[RuntimeRun]) -> list[Finding]:
    """The findings about a file from the runs of several runtimes.

    A fault that occurs in every runtime is the file's, and is reported once. A fault that does not occur in another runtime
    is the runtime's. ``references`` are runs of other runtimes, used only for the attribution.
    """
    findings: list[Finding] = []
    shared: set[tuple[str, str | None, str | None]] = set()
    for run in runs:
        other_runs = [each for each in (*runs, *references) if each is not run]
        for fault in run.findings:
            right = [other_run.runtime for other_run in other_runs if _is_right_there(other_run, fault)]
            if fault.severity is not Severity.NOTE and right:
                findings.append(_disagreement(run, fault, right))
                continue
            key = fault.rule, fault.output, fault.probe
            if run is runs[0] or key not in shared:
                findings.append(fault if run.is_deployed else dataclasses.replace(fault, severity=Severity.NOTE))
            shared.add(key)
    return findings


def without_overflow(run: RuntimeRun, exact: RuntimeRun) -> tuple[RuntimeRun, list[Finding]]:
    """The run that decides about a quantized file: the one with exact sums of int8 products, if overflow makes the file wrong.

    Which sums overflow depends on the processor. The verdict on a file must not, so an overflow is only a warning.

    Returns one of the two runs, of which ``exact`` is that with exact sums, and the warning, if there is one.
    """
    wrong = [each for each in run.faults if _is_right_there(exact, each)]
    if not wrong:
        return run, []
    return exact, [int8_overflow(max(wrong, key=lambda each: each.drift or 0.0))]


def int8_overflow(wrong: Finding) -> Finding:
    """The warning that a file is right, except where sums of int8 products overflow."""
    cause = "sums of int8 products overflow in onnxruntime on this processor, which has no VNNI"
    message = f"{cause}; without that the file is right: {wrong.message}"
    return _of_runtime(wrong, message, Severity.WARNING, wrong.details, remedy=REMEDIES["without-overflow"])


def _of_runtime(
    wrong: Finding, message: str, severity: Severity, details: Mapping[str, Any], remedy: str | None = None
) -> Finding:
    """The fault of a runtime in the place of one that looks like the file's."""
    return finding(
        "runtime-disagreement",
        message,
        severity=severity,
        remedy=remedy,
        output=wrong.output,
        probe=wrong.probe,
        drift=wrong.drift,
        details={**details, "breaks": wrong.rule},
    )


def hidden_faults(run: RuntimeRun) -> list[Finding]:
    """The wrong values of a file that ONNX Runtime's optimizer repairs, from a run without it.

    The optimizer replaces a LayerNorm of several nodes by one, whatever its exponent is (ONNX Runtime 1.31). By the standard,
    the file is wrong all the same, and other runtimes compute what it says.
    """
    errors = [each for each in run.findings if each.severity is Severity.ERROR and each.output is not None]
    hidden = "the optimizer of ONNX Runtime hides it"
    return [dataclasses.replace(error, message=f"{error.message}; {hidden}") for error in errors]


def _is_right_there(run: RuntimeRun, wrong: Finding) -> bool:
    """Whether a runtime is right on the output and input of another runtime's fault; on all, if the fault names none."""

    def concerns(output: str | None, probe: str | None) -> bool:
        return (wrong.output is None or output in (wrong.output, None)) and (
            wrong.probe is None or probe in (wrong.probe, None)
        )

    compared = any(concerns(each.name, each.probe) for each in run.outputs)
    return compared and not any(concerns(each.output, each.probe) for each in run.faults)


def is_of_other_runtime(finding: Finding) -> bool:
    """Whether a fault is that of another runtime than the installed ONNX Runtime, in which it cannot be searched for."""
    is_other = finding.details.get("runtime", OnnxRuntime().name) != OnnxRuntime().name
    return is_other and (is_of_runtime_alone(finding) or "right" in finding.details)


def _disagreement(run: RuntimeRun, wrong: Finding, right: Sequence[str]) -> Finding:
    severity = wrong.severity if run.is_deployed else Severity.NOTE
    details = {**wrong.details, "runtime": run.runtime, "right": [*right]}
    others = f"{listed_shortly(right)} {'is' if len(right) == 1 else 'are'}"
    if is_of_runtime_alone(wrong):
        message = f"{wrong.message} ({f'{listed_shortly(right)} can' if wrong.rule == 'load-error' else f'{others} right'})"
        return dataclasses.replace(wrong, message=message, severity=severity, details=details)
    return _of_runtime(wrong, f"{run.runtime} is wrong where {others} right: {wrong.message}", severity, details)
