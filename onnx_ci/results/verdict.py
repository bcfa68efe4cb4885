"""The verdict: from all findings of a cell to its status, and from all results of a run to its exit code.

Nothing else decides a status. The functions are pure, and run after *all* findings are known, including the baseline's.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from onnx_ci.errors import ExitCode
from onnx_ci.results.records import CellEvidence, CellResult, Finding, Severity, SkipCause, Status
from onnx_ci.results.rules import RULES, finding


@dataclass(frozen=True)
class Expectation:
    """A known failure: the cell is expected to break ``rule``, for the given reason."""

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
    """The verdict on one cell.

    Args:
        evidence: everything that was found out, including the baseline's findings.
        allow: rules whose findings become notes.
        expect: the recipe's expectations. They are strict: the cell must break exactly their rules.
        unchecked: rules that this run does not check; expectations of them are ignored.
        strict: whether warnings and notes are errors, except those whose severity the project or the recipe declares.
        severities: the severities that the project gives to rules.
    """
    expected = {each.rule for each in expect} - set(unchecked)
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
        reason = "; ".join(dict.fromkeys(str(each) for each in expect if each.rule in expected))
        if broken == expected:
            status = Status.XFAILED
        elif broken - expected:
            status = Status.FAILED
        else:
            status = Status.XPASSED
            missing = ", ".join(sorted(expected - broken))
            message = (
                f"the recipe expects {missing} at opset {evidence.cell.opset} ({reason}), but the cell does not fail that way"
            )
            findings.append(finding("unexpected-pass", message))
    fields = {field.name: getattr(evidence, field.name) for field in dataclasses.fields(CellEvidence)}
    return CellResult(**{**fields, "status": status, "findings": tuple(findings), "reason": reason})


def unexpected_rules(
    findings: Iterable[Finding], *, allow: Collection[str] = (), expect: Iterable[Expectation] = ()
) -> set[str]:
    """The rules that findings break against what the recipe expects; the arguments are those of :func:`decide`."""
    expected = {each.rule for each in expect}
    return broken_rules(_settled(findings, allow=allow, expected=expected)) - expected


def _settled(
    findings: Iterable[Finding],
    *,
    allow: Collection[str],
    expected: Collection[str],
    strict: bool = False,
    severities: Severities = _NONE,
) -> list[Finding]:
    """The findings with the severities that they have for the verdict, each fault once; without those that are ignored."""
    settled = []
    for each in findings:
        severity = _severity(each, allow=allow, expected=expected, strict=strict, severities=severities)
        if severity is not None:
            settled.append(dataclasses.replace(each, severity=severity))
    return deduplicated(settled)


def _severity(
    found: Finding, *, allow: Collection[str], expected: Collection[str], strict: bool, severities: Severities
) -> Severity | None:
    """The severity of a finding for the verdict; ``None`` if it is ignored.

    What a recipe expects or allows takes precedence over what the project declares, and that over ``strict``. Rules that
    cannot be allowed stay as they are. Differences from the baseline have a setting of their own, which strictness respects.
    """
    is_expected = found.rule in expected
    can_be_allowed = found.rule in RULES and RULES[found.rule].can_be_allowed
    is_declared = found.rule in severities
    declared = severities.get(found.rule)
    if declared is not Severity.ERROR and (is_expected or not can_be_allowed):
        is_declared = False
    if is_declared and declared is None:
        return None
    if can_be_allowed and found.rule in allow:
        return Severity.NOTE
    if is_declared:
        return declared
    if strict and found.baseline_change is None:
        return Severity.ERROR
    return Severity.ERROR if is_expected and found.severity is Severity.WARNING else found.severity


def with_allowed(findings: Iterable[Finding], allow: Collection[str]) -> list[Finding]:
    """The findings, with those of allowed rules as notes. A rule that cannot be allowed stays an error."""
    allowed = {rule for rule in allow if rule in RULES and RULES[rule].can_be_allowed}
    return [dataclasses.replace(each, severity=Severity.NOTE) if each.rule in allowed else each for each in findings]


def broken_rules(findings: Iterable[Finding]) -> set[str]:
    """The rules whose findings fail a cell."""
    return {each.rule for each in findings if each.severity is Severity.ERROR}


_SAME_FAULT = {"baked-value": "numeric-drift", "baked-shape": "shape-mismatch"}
"""Rules about other inputs, and the rules about the same fault on the example."""


def deduplicated(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with each fault of an output once: on the first input that shows it, with the names of the others."""
    findings = sorted(findings, key=lambda each: each.rule == "edge-mismatch")
    first: dict[object, Finding] = {}
    others: dict[object, dict[str, None]] = {}
    wrong = {each.output: each for each in reversed(findings) if each.probe and each.severity is Severity.ERROR}
    for each in findings:
        # If a usual input shows the same fault, the degenerate one is named there.
        same = wrong.get(each.output, each) if each.rule == "edge-mismatch" else each
        rule = _SAME_FAULT.get(same.rule, same.rule)
        key: object = (rule, same.severity, same.output) if same.probe else id(same)
        if key not in first:
            first[key] = each
        elif each.probe_weights == first[key].probe_weights:  # with other weights the same inputs only repeat it
            others.setdefault(key, {}).update(dict.fromkeys((str(each.probe), *each.also_on)))
    return [
        dataclasses.replace(each, also_on=(*each.also_on, *others[key])) if key in others else each
        for key, each in first.items()
    ]


# --- a run --------------------------------------------------------------------------------------------------------------


class RunVerdict(enum.StrEnum):
    """The outcome of a run."""

    PASSED = "passed"
    FAILED = "failed"
    NOTHING_RAN = "nothing-ran"
    """No cell was judged. This is never a success."""


def run_verdict(results: Collection[CellResult], *, problems: int = 0, not_run: int = 0) -> RunVerdict:
    """The verdict on a run.

    Args:
        results: the results so far.
        problems: how many recipe files or names cannot be used.
        not_run: how many cells have no result because the run was stopped.
    """
    if problems or not_run or any(result.status.is_bad for result in results):
        return RunVerdict.FAILED
    judged = any(result.status is not Status.SKIPPED for result in results)
    return RunVerdict.PASSED if judged else RunVerdict.NOTHING_RAN


def missing_device(results: Iterable[CellResult], *, problems: int = 0, not_run: int = 0) -> str:
    """Which required device is missing, if nothing else went wrong; otherwise empty."""
    bad = [each for result in results if result.status.is_bad for each in result.findings]
    only = bad and not problems and not not_run and all(each.rule == "missing-device" for each in bad)
    return bad[0].message if only else ""


def exit_code(results: Collection[CellResult], *, problems: int = 0, not_run: int = 0) -> ExitCode:
    """The exit code of a run; the arguments are those of :func:`run_verdict`."""
    if any(each.rule == "internal-error" for result in results for each in result.findings):
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
