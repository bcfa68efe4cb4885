"""The verdict on a cell and on a run, which are decided nowhere else."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from toolbox.records import cell, drift, report

from onnx_ci import Problem, Severity, Status
from onnx_ci.errors import ExitCode
from onnx_ci.report.findings import finding_lines
from onnx_ci.results.records import CellEvidence, CellResult, SkipCause
from onnx_ci.results.rules import RULES, finding
from onnx_ci.results.verdict import (
    Expectation,
    RunVerdict,
    broken_rules,
    decide,
    exit_code,
    missing_device,
    run_verdict,
    with_severities,
)

DRIFT = finding("numeric-drift", "off by 3", output="y", probe="example")
SHAPE = finding("shape-mismatch", "(2,) and (3,)", output="y", probe="example")
NOTE = finding("no-float64", "estimated")
WHY = Expectation("numeric-drift", "rounds twice")
KINDS_OF_RULES = {
    (rule.severity, rule.can_be_allowed, rule.can_be_expected, rule.leaves_unjudged): rule for rule in RULES.values()
}.values()
UNJUDGED = [rule.id for rule in KINDS_OF_RULES if rule.leaves_unjudged]
EXPECTABLE = [rule.id for rule in KINDS_OF_RULES if rule.can_be_expected]
ALLOWABLE = [rule.id for rule in KINDS_OF_RULES if rule.can_be_allowed]
NOT_ALLOWABLE = [rule.id for rule in KINDS_OF_RULES if not rule.can_be_allowed]


def evidence(*findings, **changes):
    return CellEvidence(cell=cell(), findings=findings, **changes)


def broken(rule, message="it is broken", **fields):
    """A finding that fails its cell, also where the rule itself is a note."""
    return finding(rule, message, severity=Severity.ERROR, **fields)


def expected(*rules):
    return [Expectation(rule, f"why {rule}") for rule in rules]


def rules_of(result):
    return [each.rule for each in result.findings]


# --- warnings

EDGE = finding("edge-mismatch", "off by 2", output="y", probe="masks empty")


def test_a_warning_leaves_a_cell_passed_and_marked_unless_the_run_is_strict():
    result = decide(evidence(EDGE, NOTE))
    assert (result.status, result.warnings) == (Status.PASSED, (EDGE,))
    strict = decide(evidence(EDGE), strict=True)
    assert (strict.status, strict.warnings, strict.findings[0].severity) == (Status.FAILED, (), "error")
    assert decide(evidence(DRIFT, dataclasses.replace(EDGE, output="z"))).warnings == ()


def test_an_allowed_warning_is_a_note_in_a_strict_run_too():
    result = decide(evidence(EDGE), allow=["edge-mismatch"], strict=True)
    assert (result.status, result.warnings, result.findings[0].severity) == (Status.PASSED, (), Severity.NOTE)


def test_a_note_leaves_a_cell_passed_unless_the_run_is_strict():
    assert (decide(evidence(NOTE)).status, decide(evidence(NOTE)).notes) == (Status.PASSED, (NOTE,))
    strict = decide(evidence(NOTE), strict=True)
    assert (strict.status, strict.notes, strict.findings[0].severity) == (Status.FAILED, (), "error")
    assert decide(evidence(NOTE), strict=True, allow=["no-float64"]).status is Status.PASSED
    assert decide(evidence(NOTE), strict=True, expect=expected("no-float64")).status is Status.XFAILED


def test_a_note_by_the_policy_of_the_baseline_stays_one_in_a_strict_run():
    changed = finding("baseline-drift", "torch 2.12.0 → 2.13.0", severity=Severity.NOTE, baseline_change="versions")
    assert decide(evidence(changed), strict=True).status is Status.PASSED


@pytest.mark.parametrize("strict", [True, False])
def test_an_expected_warning_is_a_known_failure(strict):
    assert decide(evidence(EDGE), expect=expected("edge-mismatch"), strict=strict).status is Status.XFAILED
    assert decide(evidence(), expect=expected("edge-mismatch"), strict=strict).status is Status.XPASSED


def test_a_fault_that_usual_inputs_show_is_no_warning_on_degenerate_ones():
    other = finding("baked-value", "off by 3", output="y", probe="n=3")
    result = decide(evidence(EDGE, other))
    assert [(each.rule, each.also_on) for each in result.findings] == [("baked-value", ("masks empty",))]
    elsewhere = dataclasses.replace(other, output="z")
    assert {each.rule for each in decide(evidence(EDGE, elsewhere)).findings} == {"baked-value", "edge-mismatch"}


# --- a cell without expectations


@pytest.mark.parametrize(
    ("findings", "status"),
    [((), Status.PASSED), ((NOTE,), Status.PASSED), ((DRIFT,), Status.FAILED), ((NOTE, DRIFT), Status.FAILED)],
)
def test_a_cell_fails_by_errors_and_not_by_notes(findings, status):
    result = decide(evidence(*findings))
    assert (result.status, result.findings, result.reason) == (status, findings, "")


def test_the_result_keeps_all_of_the_evidence():
    known = evidence(
        DRIFT, outputs=(drift(),), line=7, log="a log", timings={"run": 1.0}, artifact="net.onnx", observability=0.5, cached=True
    )  # fmt: skip
    result = decide(known)
    assert isinstance(result, CellResult)
    kept = {field.name: getattr(result, field.name) for field in dataclasses.fields(CellEvidence)}
    assert kept == {field.name: getattr(known, field.name) for field in dataclasses.fields(CellEvidence)}


@pytest.mark.parametrize("cause", SkipCause)
def test_a_cell_that_did_not_run_is_skipped_whatever_the_recipe_expects(cause):
    known = evidence(NOTE, skip_cause=cause, reason="no cuda: no driver")
    for expect in ([], [WHY]):
        result = decide(known, expect=expect)
        assert (result.status, result.skip_cause, result.reason) == (Status.SKIPPED, cause, "no cuda: no driver")
        assert rules_of(result) == ["no-float64"]


@pytest.mark.parametrize("rule", UNJUDGED)
def test_a_rule_that_leaves_a_cell_unjudged_is_an_error_that_can_be_neither_allowed_nor_expected(rule):
    known = evidence(DRIFT, broken(rule))
    every = [Expectation(each, "why") for each in ("numeric-drift", rule)]
    for options in (
        {},
        {"allow": [rule, "numeric-drift"]},
        {"expect": every},
        {"expect": every[1:]},
        {"allow": [rule], "expect": [WHY]},
        {"unchecked": [rule]},
    ):
        result = decide(known, **options)
        assert (result.status, rules_of(result)) == (Status.ERROR, ["numeric-drift", rule])
        assert result.findings[1].severity is Severity.ERROR
    assert decide(evidence(dataclasses.replace(known.findings[1], severity=Severity.NOTE))).status is Status.PASSED


# --- allowed rules


@pytest.mark.parametrize("rule", ALLOWABLE)
def test_an_allowed_rule_is_a_note(rule):
    result = decide(evidence(broken(rule)), allow=[rule])
    assert (result.status, rules_of(result), result.findings[0].severity) == (Status.PASSED, [rule], Severity.NOTE)
    assert decide(evidence(broken(rule), SHAPE), allow=[rule]).status is (
        Status.PASSED if rule == "shape-mismatch" else Status.FAILED
    )
    assert decide(evidence(broken(rule)), allow=[]).status is Status.FAILED


@pytest.mark.parametrize("rule", NOT_ALLOWABLE)
def test_a_rule_that_cannot_be_allowed_stays_an_error(rule):
    known = broken(rule)
    assert with_severities([known], {rule: Severity.NOTE}) == [known]
    assert decide(evidence(known), allow=[rule]).status.is_bad


def test_an_allowed_rule_is_not_broken():
    assert broken_rules([DRIFT, SHAPE, NOTE]) == {"numeric-drift", "shape-mismatch"}
    assert broken_rules(with_severities([DRIFT, SHAPE, NOTE], {"shape-mismatch": Severity.NOTE})) == {"numeric-drift"}
    assert with_severities([DRIFT], {"a rule of tomorrow": None}) == [DRIFT]


def test_an_allowed_rule_cannot_fulfil_an_expectation():
    result = decide(evidence(DRIFT), allow=["numeric-drift"], expect=[WHY])
    assert (result.status, rules_of(result)) == (Status.XPASSED, ["numeric-drift", "unexpected-pass"])


# --- severities that a project gives to rules


@pytest.mark.parametrize("rule", ALLOWABLE)
@pytest.mark.parametrize("strict", [True, False])
def test_a_rule_that_a_project_makes_a_note_or_ignores_fails_no_cell(rule, strict):
    noted = decide(evidence(broken(rule)), severities={rule: Severity.NOTE}, strict=strict)
    assert (noted.status, [each.rule for each in noted.notes]) == (Status.PASSED, [rule])
    ignored = decide(evidence(broken(rule)), severities={rule: None}, strict=strict)
    assert (ignored.status, ignored.findings) == (Status.PASSED, ())


@pytest.mark.parametrize("severity", [None, Severity.NOTE])
@pytest.mark.parametrize("rule", NOT_ALLOWABLE)
def test_a_rule_that_cannot_be_allowed_fails_whatever_a_project_makes_of_it(rule, severity):
    known = broken(rule)
    result = decide(evidence(known), severities={rule: severity})
    assert (result.status.is_bad, result.findings) == (True, (known,))


@pytest.mark.parametrize("found", [NOTE, EDGE])
def test_a_rule_that_a_project_makes_an_error_fails_its_cells(found):
    result = decide(evidence(found), severities={found.rule: Severity.ERROR})
    assert (result.status, result.findings[0].severity) == (Status.FAILED, Severity.ERROR)
    assert decide(evidence(found), severities={"checker": Severity.ERROR}).status is Status.PASSED


def test_what_a_recipe_allows_is_a_note_whatever_a_project_makes_of_it_unless_it_is_ignored():
    allowed = decide(evidence(DRIFT), allow=["numeric-drift"], severities={"numeric-drift": Severity.ERROR})
    assert (allowed.status, allowed.findings[0].severity) == (Status.PASSED, Severity.NOTE)
    assert decide(evidence(DRIFT), allow=["numeric-drift"], severities={"numeric-drift": None}).findings == ()


@pytest.mark.parametrize("severity", [None, Severity.NOTE, Severity.ERROR])
def test_what_a_recipe_expects_is_a_known_failure_whatever_a_project_makes_of_it(severity):
    assert decide(evidence(DRIFT), expect=[WHY], severities={"numeric-drift": severity}).status is Status.XFAILED
    assert decide(evidence(), expect=[WHY], severities={"numeric-drift": severity}).status is Status.XPASSED


def test_a_note_that_a_project_makes_an_error_can_be_expected():
    made = {"no-float64": Severity.ERROR}
    assert decide(evidence(NOTE), expect=expected("no-float64"), severities=made).status is Status.XFAILED
    assert decide(evidence(NOTE), expect=expected("no-float64")).status is Status.XPASSED


def test_an_ignored_fault_does_not_hide_another_one():
    example, other = on("example", "numeric-drift"), on("n=3")
    result = decide(evidence(example, other), severities={"numeric-drift": None})
    assert (result.status, result.findings) == (Status.FAILED, (other,))


# --- expectations


@pytest.mark.parametrize("rule", EXPECTABLE)
def test_every_rule_that_can_be_expected_is_xfailed_where_it_is_broken_and_xpassed_where_it_is_not(rule):
    failing = decide(evidence(broken(rule)), expect=expected(rule))
    assert (failing.status, rules_of(failing), failing.reason) == (Status.XFAILED, [rule], f"why {rule}")
    passing = decide(evidence(NOTE), expect=expected(rule))
    assert (passing.status, rules_of(passing)) == (Status.XPASSED, ["no-float64", "unexpected-pass"])


@pytest.mark.parametrize(
    ("found", "expect", "status", "missing"),
    [
        ((), ("numeric-drift",), Status.XPASSED, "numeric-drift"),
        (("numeric-drift",), ("numeric-drift",), Status.XFAILED, None),
        (("shape-mismatch",), ("numeric-drift",), Status.FAILED, None),
        (("numeric-drift", "shape-mismatch"), ("numeric-drift",), Status.FAILED, None),
        (("numeric-drift",), ("numeric-drift", "shape-mismatch"), Status.XPASSED, "shape-mismatch"),
        ((), ("shape-mismatch", "numeric-drift"), Status.XPASSED, "numeric-drift, shape-mismatch"),
        (("numeric-drift", "shape-mismatch"), ("numeric-drift", "shape-mismatch"), Status.XFAILED, None),
        (("checker",), ("numeric-drift", "shape-mismatch"), Status.FAILED, None),
        (("numeric-drift", "checker"), ("numeric-drift", "shape-mismatch"), Status.FAILED, None),
    ],
)
def test_expectations_are_strict_all_of_them_and_nothing_else_must_be_broken(found, expect, status, missing):
    result = decide(evidence(*map(broken, found)), expect=expected(*expect))
    reason = "; ".join(f"why {rule}" for rule in expect)
    assert (result.status, result.reason) == (status, reason)
    assert rules_of(result) == [*found, *(["unexpected-pass"] if missing else [])]
    if missing:
        assert result.findings[-1].severity is Severity.ERROR
        assert result.findings[-1].message == (
            f"the recipe expects {missing} at opset 9 ({reason}), but the cell does not fail that way"
        )


def test_notes_do_not_disturb_an_expectation():
    assert decide(evidence(NOTE, DRIFT), expect=[WHY]).status is Status.XFAILED


def test_several_findings_against_one_rule_are_one_expected_failure():
    other = dataclasses.replace(DRIFT, output="z")
    assert decide(evidence(DRIFT, other), expect=[WHY]).status is Status.XFAILED


def test_a_reason_that_several_expectations_share_is_given_once_and_with_the_versions_it_was_seen_with():
    same = [Expectation(rule, "a loop", "torch 2.13.0") for rule in ("numeric-drift", "shape-mismatch")]
    result = decide(evidence(DRIFT, SHAPE), expect=[*same, Expectation("numeric-drift", "rounds twice")])
    assert (result.status, result.reason) == (Status.XFAILED, "a loop (seen with torch 2.13.0); rounds twice")


def test_an_expected_unjudged_cell_does_not_say_that_it_was_expected():
    assert decide(evidence(broken("recipe-error")), expect=[WHY]).reason == ""


# --- rules that the run does not check, such as the baseline's


@pytest.mark.parametrize("rule", ["baseline-drift", "baseline-missing"])
def test_an_expected_baseline_rule_holds_only_where_the_baseline_is_checked(rule):
    differs, expect = broken(rule), expected(rule)
    assert decide(evidence(differs), expect=expect).status is Status.XFAILED
    assert decide(evidence(), expect=expect).status is Status.XPASSED
    result = decide(evidence(), expect=expect, unchecked=[rule])
    assert (result.status, result.reason, result.findings) == (Status.PASSED, "", ())


def test_what_else_is_expected_holds_beside_a_rule_that_is_not_checked():
    expect, unchecked = expected("baseline-drift", "numeric-drift"), ["baseline-drift"]
    failing = decide(evidence(DRIFT), expect=expect, unchecked=unchecked)
    assert (failing.status, failing.reason) == (Status.XFAILED, "why numeric-drift")
    passing = decide(evidence(), expect=expect, unchecked=unchecked)
    assert (passing.status, passing.reason) == (Status.XPASSED, "why numeric-drift")
    assert "baseline-drift" not in passing.findings[-1].message
    assert decide(evidence(SHAPE), expect=expect, unchecked=unchecked).status is Status.FAILED


# --- each fault once


def on(probe, rule="baked-value", output="y", **fields):
    return broken(rule, f"off on {probe}", output=output, probe=probe, **fields)


def test_a_fault_of_an_output_is_reported_at_the_first_input_with_the_names_of_the_others():
    findings = [on("n=2"), on("n=3"), on("n=3"), on("n=5")]
    result = decide(evidence(*findings))
    assert result.findings == (dataclasses.replace(findings[0], also_on=("n=3", "n=5")),)
    assert result.findings[0].message == "off on n=2"


@pytest.mark.parametrize(("first", "later"), [("numeric-drift", "baked-value"), ("shape-mismatch", "baked-shape")])
def test_a_fault_of_the_example_is_the_same_fault_on_other_inputs(first, later):
    result = decide(evidence(on("example", first), on("n=3", later), on("n=5", later)))
    assert [(each.rule, each.also_on) for each in result.findings] == [(first, ("n=3", "n=5"))]
    reverse = decide(evidence(on("n=3", later), on("example", first)))
    assert [(each.rule, each.also_on) for each in reverse.findings] == [(later, ("example",))]


@pytest.mark.parametrize(
    "other",
    [
        on("n=3", output="z"),
        on("n=3", "shape-mismatch"),
        on("n=3", "nonfinite-mismatch"),
        on("n=3", details={"runtime": "openvino"}),
        dataclasses.replace(on("n=3"), severity=Severity.NOTE),
        dataclasses.replace(on("n=3"), probe=None),
    ],
)
def test_different_faults_stay_apart(other):
    findings = on("n=2"), other
    assert decide(evidence(*findings)).findings == findings


def test_probe_weights_only_repeat_a_fault_that_the_models_own_weights_show():
    known, again = on("n=2"), dataclasses.replace(on("n=3"), probe_weights=True)
    assert decide(evidence(known, again)).findings == (known,)
    assert decide(evidence(again)).findings == (again,)


def test_findings_without_an_input_are_never_joined():
    twice = (broken("checker", "bad", output="y"), broken("checker", "bad", output="y"), broken("checker", "worse"))
    assert decide(evidence(*twice)).findings == twice


def test_joined_findings_keep_the_inputs_that_they_named_before_and_the_order_of_the_faults():
    findings = [on("n=2", also_on=()), on("n=2", output="z"), on("n=3"), on("n=3", output="z")]
    findings[2] = dataclasses.replace(findings[2], also_on=("n=4",))
    result = decide(evidence(*findings))
    assert [(each.output, each.also_on) for each in result.findings] == [("y", ("n=3", "n=4")), ("z", ("n=3",))]


def test_of_findings_without_an_output_each_fault_stays():
    """A runtime that fails is another fault than a size that the file declares wrongly, whatever else is wrong there."""
    sizes = [on("example", "shape-mismatch", None, details={"output": name, "axis": 0}) for name in ("y", "z")]
    failures = [on(probe, "baked-shape", None, details={"runtime": "onnxruntime"}) for probe in ("batch=3", "batch=5")]
    elsewhere = on("batch=3", "baked-shape", None, details={"runtime": "openvino"})
    edge = on("masks empty", "edge-mismatch", None, details={"runtime": "onnxruntime"})
    result = decide(evidence(*sizes, *failures, elsewhere, edge))
    joined = dataclasses.replace(failures[0], also_on=("batch=5", "masks empty"))
    assert result.findings == (*sizes, joined, elsewhere)


def test_deciding_again_changes_nothing():
    first = decide(evidence(on("n=2"), on("n=3"), NOTE))
    again = decide(evidence(*first.findings))
    assert (again.status, again.findings) == (first.status, first.findings)


def test_an_allowed_fault_is_joined_too():
    result = decide(evidence(on("n=2"), on("n=3")), allow=["baked-value"])
    assert [(each.severity, each.also_on) for each in result.findings] == [(Severity.NOTE, ("n=3",))]
    assert result.status is Status.PASSED


# --- a run

ABSENT = CellResult(
    cell=cell(opset=10), status=Status.SKIPPED, skip_cause=SkipCause.MISSING_DEVICE, reason="no cuda: no driver"
)
SKIPS_ITSELF = CellResult(cell=cell(opset=11), status=Status.SKIPPED, skip_cause=SkipCause.RECIPE, reason="not on Tuesdays")
LACKING = CellResult(cell=cell(opset=12), status=Status.ERROR, findings=(finding("missing-device", "no cuda: no driver"),))
INTERNAL = CellResult(cell=cell(opset=13), status=Status.ERROR, findings=(finding("internal-error", "onnx-ci failed"),))
WRONG = CellResult(cell=cell(opset=14), status=Status.FAILED, findings=(DRIFT,))
UNUSABLE = CellResult(cell=cell(opset=15), status=Status.ERROR, findings=(finding("recipe-error", "raises"),))
CLOSED = CellResult(cell=cell(opset=16), status=Status.XPASSED, findings=(finding("unexpected-pass", "it passes"),))
GAP = CellResult(cell=cell(opset=17), status=Status.XFAILED, findings=(DRIFT,))
RIGHT = CellResult(cell=cell(), status=Status.PASSED, findings=(NOTE,))
KINDS = (ABSENT, SKIPS_ITSELF, LACKING, INTERNAL, WRONG, UNUSABLE, CLOSED, GAP, RIGHT)


@pytest.mark.parametrize(
    ("results", "counts", "verdict", "code"),
    [
        ((), {}, RunVerdict.NOTHING_RAN, ExitCode.NOTHING_RAN),
        ((RIGHT,), {}, RunVerdict.PASSED, ExitCode.PASSED),
        ((GAP,), {}, RunVerdict.PASSED, ExitCode.PASSED),
        ((RIGHT, ABSENT, SKIPS_ITSELF), {}, RunVerdict.PASSED, ExitCode.PASSED),
        ((SKIPS_ITSELF,), {}, RunVerdict.NOTHING_RAN, ExitCode.NOTHING_RAN),
        ((ABSENT,), {}, RunVerdict.NOTHING_RAN, ExitCode.ENVIRONMENT),
        ((ABSENT, SKIPS_ITSELF), {}, RunVerdict.NOTHING_RAN, ExitCode.ENVIRONMENT),
        ((WRONG,), {}, RunVerdict.FAILED, ExitCode.FAILED),
        ((UNUSABLE,), {}, RunVerdict.FAILED, ExitCode.FAILED),
        ((CLOSED,), {}, RunVerdict.FAILED, ExitCode.FAILED),
        ((LACKING,), {}, RunVerdict.FAILED, ExitCode.ENVIRONMENT),
        ((LACKING, RIGHT, ABSENT, GAP), {}, RunVerdict.FAILED, ExitCode.ENVIRONMENT),
        ((LACKING, WRONG), {}, RunVerdict.FAILED, ExitCode.FAILED),
        ((INTERNAL, WRONG, LACKING), {}, RunVerdict.FAILED, ExitCode.INTERNAL),
        ((), {"problems": 1}, RunVerdict.FAILED, ExitCode.USAGE),
        ((RIGHT,), {"problems": 1}, RunVerdict.FAILED, ExitCode.USAGE),
        ((ABSENT,), {"problems": 1}, RunVerdict.FAILED, ExitCode.USAGE),
        ((WRONG,), {"problems": 1}, RunVerdict.FAILED, ExitCode.FAILED),
        ((LACKING,), {"problems": 1}, RunVerdict.FAILED, ExitCode.FAILED),
        ((RIGHT,), {"not_run": 1}, RunVerdict.FAILED, ExitCode.FAILED),
        ((), {"not_run": 1, "problems": 1}, RunVerdict.FAILED, ExitCode.FAILED),
        ((LACKING,), {"not_run": 1}, RunVerdict.FAILED, ExitCode.FAILED),
        ((INTERNAL,), {"not_run": 1, "problems": 1}, RunVerdict.FAILED, ExitCode.INTERNAL),
    ],
)
def test_a_run_has_one_verdict_and_one_exit_code(results, counts, verdict, code):
    assert (run_verdict(results, **counts), exit_code(results, **counts)) == (verdict, code)


COMBINATIONS = [
    (results, problems, not_run)
    for size in range(len(KINDS) + 1)
    for results in itertools.combinations(KINDS, size)
    for problems in (0, 2)
    for not_run in (0, 2)
]


def test_in_every_combination_verdict_and_exit_code_agree():
    for results, problems, not_run in COMBINATIONS:
        counts = {"problems": problems, "not_run": not_run}
        verdict, code = run_verdict(results, **counts), exit_code(results, **counts)
        is_bad = any(each.status.is_bad for each in results) or problems > 0 or not_run > 0
        is_judged = any(each.status is not Status.SKIPPED for each in results)
        case = [each.cell.opset for each in results], counts
        assert (verdict is RunVerdict.FAILED) == is_bad, case
        assert (verdict is RunVerdict.PASSED) == (is_judged and not is_bad), case
        assert (verdict is RunVerdict.PASSED) == (code is ExitCode.PASSED), case
        assert (code is ExitCode.INTERNAL) == (INTERNAL in results), case
        if verdict is RunVerdict.NOTHING_RAN:
            assert code is (ExitCode.ENVIRONMENT if ABSENT in results else ExitCode.NOTHING_RAN), case
        if verdict is RunVerdict.FAILED and INTERNAL not in results:
            bad = {each.cell.opset for each in results if each.status.is_bad}
            if bad == {LACKING.cell.opset} and not problems and not not_run:
                assert code is ExitCode.ENVIRONMENT, case
            elif bad or not_run:
                assert code is ExitCode.FAILED, case
            else:
                assert code is ExitCode.USAGE, case


def test_the_missing_device_is_named_only_where_nothing_else_went_wrong():
    for results, problems, not_run in COMBINATIONS:
        bad = [each for each in results if each.status.is_bad]
        is_only = bad == [LACKING] and not problems and not not_run
        assert missing_device(results, problems=problems, not_run=not_run) == ("no cuda: no driver" if is_only else "")


@pytest.mark.parametrize("wrong", [{}, {"problems": (Problem(source="x.py", message="broken"),)}, {"not_run": ("x",)}])
def test_a_report_has_the_verdict_of_its_cells_and_of_what_kept_others_from_running(wrong):
    counts = {name: len(values) for name, values in wrong.items()}
    for results in ((), (RIGHT,), (ABSENT,), (LACKING,), (RIGHT, WRONG), (INTERNAL,)):
        whole = report(*results, **wrong)
        assert (whole.verdict, whole.exit_code, whole.missing_device) == (
            run_verdict(results, **counts), exit_code(results, **counts), missing_device(results, **counts),
        )  # fmt: skip
        assert whole.summary["verdict"] == str(whole.verdict)


def test_what_the_recipe_expects_is_told_apart_and_last_in_a_cell_that_fails_because_of_more():
    failing = decide(evidence(DRIFT, broken("checker"), NOTE), expect=[WHY])
    told = [(each.rule, each.is_expected) for each in failing.findings]
    assert (failing.status, told) == (Status.FAILED, [("numeric-drift", True), ("checker", False), ("no-float64", False)])
    lines = finding_lines(failing.findings)
    assert [line for line in lines if not line.startswith(" ")] == [
        "checker: it is broken",
        "numeric-drift (expected): off by 3",
        "no-float64 (note): estimated",
    ]
    assert not any(each.is_expected for each in decide(evidence(DRIFT), expect=[WHY]).findings)
