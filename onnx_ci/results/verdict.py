"""The verdict: from all findings of a cell to its status, and from all results of a run to its exit code.

Nothing else decides a status: stages and baselines only add findings to a :class:`CellEvidence`. The functions are pure and run
once all findings are known. They apply what a recipe allows and expects, the severities of the project, and strictness.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from onnx_ci.errors import ExitCode
from onnx_ci.results.records import CellEvidence, CellResult, Finding, Severity, SkipCause, Status
from onnx_ci.results.rules import RULES
from onnx_ci.results.rules import finding as finding_against


@dataclass(frozen=True)
class Expectation:
    """A known failure: the rule that a cell is expected to break, and the reason."""

    rule: str
    reason: str
    seen: str = ""
    """The versions with which the failure was seen."""

    def __str__(self) -> str:
        return f"{self.reason} (seen with {self.seen})" if self.seen else self.reason


Severities = Mapping[str, Severity | None]
"""The severities that a project gives to rules, by their ids; ``None`` for rules that it ignores."""
_NONE: Severities = MappingProxyType({})


def decide(
    evidence: CellEvidence,
    *,
    allow: Collection[str] = (),
    expect: Sequence[Expectation] = (),
    unchecked: Collection[str] = (),
    strict: bool = False,
    severities: Severities = _NONE,
) -> CellResult:
    """The verdict on one cell, which must break exactly the rules of ``expect``, except those that are ``unchecked``."""
    expected = {expectation.rule for expectation in expect} - set(unchecked)
    findings = _settled(evidence.findings, allow=allow, expected=expected, strict=strict, severities=severities)
    broken = broken_rules(findings)
    reason = evidence.reason
    if evidence.skip_cause is not None:
        status = Status.SKIPPED
    elif any(RULES[rule].leaves_unjudged for rule in broken if rule in RULES):
        status = Status.ERROR
    elif not expected:
        status = Status.FAILED if broken else Status.PASSED
    else:
        reason = "; ".join(dict.fromkeys(str(expectation) for expectation in expect if expectation.rule in expected))
        if broken == expected:
            status = Status.XFAILED
        elif broken - expected:
            status = Status.FAILED
            findings = [dataclasses.replace(each, is_expected=each.rule in expected) for each in findings]
        else:
            status = Status.XPASSED
            missing = ", ".join(sorted(expected - broken))
            message = (
                f"the recipe expects {missing} at opset {evidence.cell.opset} ({reason}), but the cell does not fail that way"
            )
            findings.append(finding_against("unexpected-pass", message))
    fields = {field.name: getattr(evidence, field.name) for field in dataclasses.fields(CellEvidence)}
    return CellResult(**{**fields, "status": status, "findings": tuple(findings), "reason": reason})


def unexpected_rules(findings: Iterable[Finding], *, allow: Collection[str], expect: Iterable[Expectation]) -> set[str]:
    """The rules that findings break although the recipe does not expect it. The arguments are those of :func:`decide`."""
    expected = {expectation.rule for expectation in expect}
    return broken_rules(_settled(findings, allow=allow, expected=expected)) - expected


def _settled(
    findings: Iterable[Finding],
    *,
    allow: Collection[str],
    expected: Collection[str],
    strict: bool = False,
    severities: Severities = _NONE,
) -> list[Finding]:
    """The findings that are not ignored, with their severities for the verdict, each fault once.

    The recipe takes precedence over the project, and the project over ``strict``. A project can only raise the severity of a
    rule that is expected or cannot be allowed. A kind of change since the baseline has the severity that the project declares
    for it, and ``strict`` raises none.
    """

    def severity_of(finding: Finding) -> Severity | None:
        is_expected = finding.rule in expected
        can_be_allowed = finding.rule in RULES and RULES[finding.rule].can_be_allowed
        declared = severities.get(finding.rule)
        can_be_lowered = can_be_allowed and not is_expected
        kind = f"baseline-{finding.baseline_change}"  # the check of the baseline has applied its severity
        is_declared = finding.rule in severities and kind not in severities and (declared is Severity.ERROR or can_be_lowered)
        if is_declared and declared is None:
            return None
        if can_be_allowed and finding.rule in allow:
            return Severity.NOTE
        if is_declared:
            return declared
        if strict and finding.baseline_change is None:
            return Severity.ERROR
        return Severity.ERROR if is_expected and finding.severity is Severity.WARNING else finding.severity

    settled = ((finding, severity_of(finding)) for finding in findings)
    return deduplicated(
        dataclasses.replace(finding, severity=severity) for finding, severity in settled if severity is not None
    )


def with_severities(findings: Iterable[Finding], severities: Severities) -> list[Finding]:
    """The findings that the project does not ignore, with its severities, each fault once."""
    return _settled(findings, allow=(), expected=(), severities=severities)


def broken_rules(findings: Iterable[Finding]) -> set[str]:
    """The rules whose findings fail a cell."""
    return {finding.rule for finding in findings if finding.severity is Severity.ERROR}


_SAME_FAULT = {"baked-value": "numeric-drift", "baked-shape": "shape-mismatch"}
"""The rule about a fault on the example, by the rule about the same fault on other inputs."""


def deduplicated(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with each fault of an output once: on the first input that shows it, with the names of the other inputs.

    Findings without an output are about the same fault if they are against the same rule and have the same details.
    """
    usual_first = sorted(findings, key=lambda finding: finding.rule == "edge-mismatch")
    errors = {
        _subject(finding): finding for finding in reversed(usual_first) if finding.probe and finding.severity is Severity.ERROR
    }
    faults: dict[object, Finding] = {}
    other_inputs: dict[object, dict[str, None]] = {}
    for finding in usual_first:
        # If a usual input shows the fault, the degenerate input is one of its other inputs.
        fault = errors.get(_subject(finding), finding) if finding.rule == "edge-mismatch" else finding
        rule = fault.rule if fault.output is None else _SAME_FAULT.get(fault.rule, fault.rule)
        key: object = (rule, fault.severity, _subject(fault)) if fault.probe else id(fault)
        if key not in faults:
            faults[key] = finding
        elif finding.probe_weights == faults[key].probe_weights:  # with other weights, the same inputs only repeat the fault
            other_inputs.setdefault(key, {}).update(dict.fromkeys((str(finding.probe), *finding.also_on)))
    return [
        dataclasses.replace(finding, also_on=(*finding.also_on, *other_inputs.get(key, ()))) for key, finding in faults.items()
    ]


def _subject(finding: Finding) -> object:
    """What a finding is about: its output, and the runtime that is wrong alone; or else its details."""
    return (finding.output, finding.details.get("runtime")) if finding.output else repr(sorted(finding.details.items()))


# --- a run --------------------------------------------------------------------------------------------------------------


class RunVerdict(enum.StrEnum):
    """The outcome of a run."""

    PASSED = "passed"
    FAILED = "failed"
    NOTHING_RAN = "nothing-ran"
    """No cell was judged. This is never a success."""


def run_verdict(results: Collection[CellResult], *, problems: int = 0, not_run: int = 0) -> RunVerdict:
    """The verdict on a run, given the number of problems, and of cells without a result because it was stopped."""
    if problems or not_run or any(result.status.is_bad for result in results):
        return RunVerdict.FAILED
    judged = any(result.status is not Status.SKIPPED for result in results)
    return RunVerdict.PASSED if judged else RunVerdict.NOTHING_RAN


def missing_device(results: Iterable[CellResult], *, problems: int = 0, not_run: int = 0) -> str:
    """The required device that is missing, if nothing else is wrong; otherwise empty."""
    findings = [finding for result in results if result.status.is_bad for finding in result.findings]
    is_all = not problems and not not_run and all(finding.rule == "missing-device" for finding in findings)
    return findings[0].message if findings and is_all else ""


def exit_code(results: Collection[CellResult], *, problems: int = 0, not_run: int = 0) -> ExitCode:
    """The exit code of a run; the arguments are those of :func:`run_verdict`."""
    if any(finding.rule == "internal-error" for result in results for finding in result.findings):
        return ExitCode.INTERNAL
    if missing_device(results, problems=problems, not_run=not_run):
        return ExitCode.ENVIRONMENT
    if not_run or any(result.status.is_bad for result in results):
        return ExitCode.FAILED
    if problems:
        return ExitCode.USAGE
    if run_verdict(results) is RunVerdict.PASSED:
        return ExitCode.PASSED
    is_without_device = any(result.skip_cause is SkipCause.MISSING_DEVICE for result in results)
    return ExitCode.ENVIRONMENT if is_without_device else ExitCode.NOTHING_RAN


def exit_code_of_plan(cells: Collection[object], *, problems: Collection[object] = ()) -> ExitCode:
    """The exit code of a command that only says what would run."""
    return ExitCode.USAGE if problems else ExitCode.PASSED if cells else ExitCode.NOTHING_RAN
