"""What one fault breaks is told once: within a cell, and over opsets, exporters and devices."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from toolbox.records import cell, failed, passed

from onnx_ci import CellResult, Culprit, Severity, SourceLine, Status
from onnx_ci.report.causes import causes_of, common_causes, shared_failures
from onnx_ci.report.findings import excerpt, finding_lines, wrapped
from onnx_ci.report.text import describe_outcome
from onnx_ci.results.rules import finding

LINE, OTHER = (SourceLine(file="net.py", line=number, text="x = x * n") for number in (7, 9))


def at(rule, message, source=None, nodes=(), **keywords):
    culprits = (Culprit(nodes=nodes, operators=(), module="", source=source),) if nodes else ()
    found = finding(rule, message, source=None if nodes else source, **keywords)
    return found if not culprits else dataclasses.replace(found, culprits=culprits)


def test_findings_of_one_line_are_one_cause_and_its_consequences():
    note = at("export-warning", "a value is frozen", LINE)
    shape, value = at("baked-shape", "it fails", LINE, ("Mul '/Mul'",)), at("baked-value", "off by 3", LINE, ("Mul '/Mul'",))
    apart = at("numeric-drift", "off by 4", OTHER, ("Add '/Add'",))
    assert [(each.finding, each.consequences) for each in causes_of([note, value, apart, shape])] == [
        (value, (shape, note)),
        (apart, ()),
    ]
    assert finding_lines([note, value, shape]) == [
        "net.py:7: baked-value",
        "    >   x = x * n",
        "    At fault: Mul '/Mul'.",
        "    off by 3",
        *wrapped(f"remedy: {value.remedy}", "    "),
        "    same cause: baked-shape: it fails",
        "    same cause: export-warning (note): a value is frozen",
    ]


def test_a_branch_of_which_nothing_is_known_comes_after_what_is_measured():
    untaken, drift = at("untaken-branch", "one side only", OTHER), at("numeric-drift", "off by 3", LINE)
    assert [each.finding for each in causes_of([untaken, drift])] == [drift, untaken]


def test_findings_without_a_place_are_causes_of_their_own():
    findings = [finding("checker", "a"), finding("checker", "a"), finding("unknown-axis", "b")]
    assert [each.finding for each in causes_of(findings)] == findings
    without_line = [at("baked-value", "off by 3", None, ("Mul '/Mul'",)), at("baked-shape", "fails", None, ("Mul '/Mul'",))]
    assert [each.consequences for each in causes_of(without_line)] == [(without_line[1],)]


@pytest.mark.parametrize(("severity", "is_cause"), [(Severity.ERROR, True), (Severity.NOTE, False)])
def test_what_a_comparison_with_a_random_model_finds_is_no_cause(severity, is_cause):
    random = finding("nondeterministic", "it differs", severity=severity)
    drift, noisy, other = at("numeric-drift", "off by 3", LINE), finding("vacuous", "too noisy"), finding("checker", "rejected")
    causes = [(each.finding, each.consequences) for each in causes_of([random, noisy, drift, other])]
    assert causes == (
        [(random, (noisy, drift)), (other, ())] if is_cause else [(each, ()) for each in (noisy, drift, other, random)]
    )


@pytest.mark.parametrize("other_sizes", [False, True])
def test_a_wrong_axis_is_a_cause_of_its_own_unless_a_random_model_returns_other_sizes(other_sizes):
    random = dataclasses.replace(at("nondeterministic", "it differs", LINE), details={"other_sizes": other_sizes})
    mismatch = dataclasses.replace(at("shape-mismatch", "has size 1", LINE), details={"output": "y", "axis": 1})
    constant = finding("vacuous", "size 1 on every input", output="y", details={"axis": 1})
    static = finding("static-axis", "axis 0 is fixed", output="y", details={"axis": 0})
    causes = {each.finding.rule: len(each.consequences) for each in causes_of([random, mismatch, constant, static])}
    wrong_axes = {"shape-mismatch": 1, "static-axis": 0}
    assert causes == ({"nondeterministic": 2, "static-axis": 0} if other_sizes else {"nondeterministic": 0, **wrong_axes})


def test_what_torch_export_fixes_has_the_cause_of_the_axis_that_was_not_tested():
    untested = finding("vacuous", "the model rejects all", details={"dynamic_axis": "batch"})
    refused = finding("export-error", "static size of 2", details={"dynamic_axis": "batch"})
    other = finding("export-error", "static size of 3", details={"dynamic_axis": "time"})
    assert [len(each.consequences) for each in causes_of([untested, refused, other])] == [1, 0]


def test_what_has_the_cause_of_a_consequence_is_another_consequence():
    order = at("name-mismatch", "input_names lists b, a", LINE)
    exchanged = at("name-mismatch", "axis 0 is as long as 'n'", LINE, output="y", details={"axis": 0})
    sizes = [finding("shape-mismatch", f"axis {axis} has size 3", details={"output": "y", "axis": axis}) for axis in (0, 1)]
    causes = causes_of([order, exchanged, *sizes])
    assert [(each.finding, each.consequences) for each in causes] == [(order, (exchanged, sizes[0])), (sizes[1], ())]


def broken(*findings, **changes):
    return CellResult(cell=cell(**changes), status=Status.FAILED, findings=findings)


def test_cells_of_a_recipe_that_fail_at_one_line_are_one_failure_whatever_their_numbers_and_names():
    first = broken(at("baked-value", "off by 3", LINE, ("Mul '/Mul'",)), opset=12)
    second = broken(at("baked-value", "off by 3.01", LINE, ("Mul 'node_mul'",)), opset=18, exporter="dynamo")
    third = broken(at("baked-value", "off by 3", LINE, ("Mul '/Mul'",)), opset=12, device="cuda")
    elsewhere = broken(at("baked-value", "off by 3", OTHER, ("Mul '/Mul'",)), opset=13)
    other = broken(at("baked-value", "off by 3", LINE, ("Mul '/Mul'",)), opset=12, recipe="other")
    (one, two, three) = shared_failures([first, passed(), elsewhere, second, third, other])
    assert [one.results, two.results, three.results] == [(first, second, third), (elsewhere,), (other,)]
    assert one.title == "net: failed at opsets 12,18 on cpu, at opset 12 on cuda"


def test_errors_of_one_line_that_calls_an_exporter_are_of_one_cause_if_they_read_alike():
    def failing(recipe, message):
        return broken(at("export-error", message, LINE), recipe=recipe)

    results = [failing("a", "no size 3"), failing("b", "no such format"), failing("c", "no size 5")]
    groups = [[each.first.cell.recipe for each in group] for group in common_causes(shared_failures(results))]
    assert groups == [["a", "c"], ["b"]]


def test_two_faults_of_one_line_in_two_operators_are_two_failures():
    def at_operator(name, **changes):
        return broken(finding("unsupported-operator", "m", source=LINE, operator=name), **changes)

    assert len(shared_failures([at_operator("aten::einsum", opset=9), at_operator("aten::triu", opset=10)])) == 2
    assert len(shared_failures([at_operator("aten::triu", opset=9), at_operator("aten::triu", opset=10)])) == 1


def test_findings_at_one_of_two_places_are_apart_and_a_note_there_is_a_consequence():
    both = dataclasses.replace(
        at("baked-value", "m", LINE, ("Mul 'a'",)),
        culprits=(*at("checker", "m", LINE, ("Mul 'a'",)).culprits, *at("checker", "m", OTHER, ("Mul 'b'",)).culprits),
    )
    one, note = at("baked-shape", "m", OTHER, ("Mul 'b'",)), at("export-warning", "m", OTHER)
    assert [each.consequences for each in causes_of([both, one, note])] == [(note,), ()]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("the file is 9 bytes", "the file is 1.5e+03 bytes", True),
        ("the file is 9 bytes", "the file is missing", False),
    ],
)
def test_messages_are_the_same_up_to_their_numbers(one, other, is_same):
    failures = shared_failures([broken(finding("checker", one), opset=9), broken(finding("checker", other), opset=10)])
    assert (len(failures) == 1) is is_same


def test_a_cell_with_another_fault_besides_is_not_the_same():
    both = broken(at("baked-value", "m", LINE), finding("checker", "wrong"), opset=9)
    assert len(shared_failures([both, broken(at("baked-value", "m", LINE), opset=10)])) == 2
    noted = broken(at("baked-value", "m", LINE), finding("checker", "wrong", severity=Severity.NOTE), opset=9)
    assert len(shared_failures([noted, broken(at("baked-value", "m", LINE), opset=10)])) == 1


def test_the_outcome_names_the_first_cause():
    assert describe_outcome(failed()) == "failed (numeric-drift)"
    assert (
        describe_outcome(broken(at("baked-value", "m", LINE), finding("checker", "c")))
        == "failed (baked-value at net.py:7 and 1 more)"
    )


CODE = """\
import torch


def outer(x):
    def forward(x):

        y = x + 1
        return y * 2
    return forward(x)
"""


def test_an_excerpt_begins_with_the_function_and_marks_the_line(tmp_path):
    Path(tmp_path, "net.py").write_text(CODE, encoding="utf-8")
    at_line = {
        number: SourceLine(file="net.py", line=number, text=line.strip()) for number, line in enumerate(CODE.splitlines(), 1)
    }
    assert excerpt(at_line[8], tmp_path) == ["    def forward(x):", "", "        y = x + 1", ">       return y * 2"]
    assert excerpt(at_line[6], tmp_path)[1:] == [">", "        y = x + 1", "        return y * 2"]
    assert excerpt(at_line[1], tmp_path) == [">   import torch"]
    assert len(excerpt(at_line[9], tmp_path)) == 6


def test_code_that_has_changed_since_or_is_not_here_is_not_shown(tmp_path):
    Path(tmp_path, "net.py").write_text(CODE, encoding="utf-8")
    assert excerpt(SourceLine(file="net.py", line=8, text="return y * 3"), tmp_path) == []
    assert excerpt(SourceLine(file="net.py", line=80, text=""), tmp_path) == []
    assert excerpt(SourceLine(file="nowhere.py", line=1, text="import torch"), tmp_path) == []


def test_no_code_is_shown_from_outside_of_the_directory(tmp_path):
    Path(tmp_path, "net.py").write_text(CODE, encoding="utf-8")
    Path(tmp_path, "project").mkdir()
    assert excerpt(SourceLine(file="../net.py", line=1, text="import torch"), tmp_path / "project") == []


def test_no_line_of_a_finding_is_longer_than_a_terminal_shows():
    found = at("baked-value", "word " * 60, LINE, ("Mul '/Mul'",), remedy="Rewrite it. " * 30)
    lines = finding_lines([found])
    assert max(map(len, lines)) <= 116
    assert " ".join("".join(lines).split()).count("word") == 60


def test_recipes_that_cannot_be_used_for_the_same_reason_have_one_cause():
    def unusable(recipe, message):
        return broken(finding("recipe-error", message), recipe=recipe)

    results = [unusable("a", "needs 1 package"), unusable("b", "needs 1 package"), unusable("c", "needs 2 packages")]
    causes = common_causes(shared_failures(results))
    assert [[each.first.cell.recipe for each in cause] for cause in causes] == [["a", "b"], ["c"]]


def test_drifts_of_two_recipes_are_two_causes_though_they_read_alike():
    results = [broken(finding("numeric-drift", "off by 3"), recipe=recipe) for recipe in "ab"]
    assert len(common_causes(shared_failures(results))) == 2
