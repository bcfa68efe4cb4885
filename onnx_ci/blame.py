"""Whose fault it is that a file computes the wrong numbers: the exporter's, who wrote it, or that of a runtime, who ran it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnx_ci.records import Finding, Severity
from onnx_ci.rules import finding
from onnx_ci.running import RuntimeRun


def lay_blame(runs: Sequence[RuntimeRun], witnesses: Sequence[RuntimeRun] = ()) -> list[Finding]:
    """What is wrong with a file, by what several runtimes made of it.

    A fault that every runtime shows is the file's, and is told once. One that another runtime does not show is the fault of
    the runtime that does.

    Args:
        runs: those that were asked for. At least one is deployed.
        witnesses: others, which are only heard.
    """
    told: list[Finding] = []
    shared: set[tuple[str, object, object]] = set()
    for run in runs:
        others = [each for each in (*runs, *witnesses) if each is not run]
        for each in run.findings:
            right = [other.runtime for other in others if _is_right_there(other, each)]
            if each.severity is Severity.ERROR and right:
                told.append(_disagreement(run, each, right))
                continue
            fault = each.rule, each.details.get("output"), each.details.get("probe")
            if run is runs[0] or fault not in shared:
                told.append(each if run.is_deployed else dataclasses.replace(each, severity=Severity.NOTE))
            shared.add(fault)
    return told


def _is_right_there(run: RuntimeRun, wrong: Finding) -> bool:
    """Whether a runtime is right about the output and the input of another runtime's fault; about all, if it names none."""
    output, probe = wrong.details.get("output"), wrong.details.get("probe")

    def concerns(name: object, on: object) -> bool:
        return (output is None or name in (output, None)) and (probe is None or on in (probe, None))

    compared = any(concerns(each.name, each.probe) for each in run.outputs)
    return compared and not any(concerns(each.details.get("output"), each.details.get("probe")) for each in run.faults)


def _disagreement(run: RuntimeRun, wrong: Finding, right: Sequence[str]) -> Finding:
    said = f"{run.runtime} is wrong where {' and '.join(right)} {'is' if len(right) == 1 else 'are'} right: {wrong.message}"
    severity = Severity.ERROR if run.is_deployed else Severity.NOTE
    details = {**wrong.details, "runtime": run.runtime, "right": list(right), "breaks": wrong.rule}
    return finding("runtime-disagreement", said, severity=severity, **details)
