from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import replace

import pytest
from toolbox.records import cell, drift, failed, passed, report, run_of, setting, skipped, warned

from onnx_ci import CellResult, ConfigurationError, NodeStep, Problem, RunReport, Status
from onnx_ci.config.reproduce import repeat_from, repeat_with_cli, repeat_with_pytest
from onnx_ci.config.settings import load_settings
from onnx_ci.report import html, markdown
from onnx_ci.report.findings import describe_cause, finding_lines
from onnx_ci.report.grid import format_result, grid
from onnx_ci.report.merge import merge
from onnx_ci.report.text import (
    conclusion_lines,
    describe_exclusions,
    describe_inputs_compared,
    describe_outcome,
    describe_result,
    detail_lines,
    format_cells,
    grid_lines,
    step_lines,
    summary_lines,
)
from onnx_ci.results.files import read_json, read_reports, write_json, write_text
from onnx_ci.results.records import (
    CpuVsGpu,
    Culprit,
    Exclusion,
    Frozen,
    FrozenKind,
    Revision,
    SettingSource,
    Severity,
    Similarity,
    SourceLine,
)
from onnx_ci.results.rules import RULES, finding


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, "·"),
        (passed(1.234), "1.2"),
        (passed(0.0), "0"),
        (passed(0.001), "<0.1"),
        (passed(12345.0), "1.2e+04"),
        (CellResult(cell=cell(), status=Status.PASSED), "pass"),
        (warned(), "1.5!"),
        (failed(), "FAIL"),
        (CellResult(cell=cell(), status=Status.ERROR), "ERROR"),
        (CellResult(cell=cell(), status=Status.SKIPPED), "skip"),
        (CellResult(cell=cell(), status=Status.XFAILED), "xfail"),
        (CellResult(cell=cell(), status=Status.XPASSED), "XPASS"),
    ],
)
def test_each_place_of_the_grid_says_what_became_of_its_cell(result, shown):
    assert format_result(result) == shown


def test_the_grid_has_recipes_down_and_opsets_across():
    results = [passed(opset=11), passed(), failed(recipe="other"), passed(device="cuda"), passed(exporter="dynamo")]
    table = grid(results)
    assert table.opsets == (9, 11)
    assert [(row.title, [format_result(result) for result in row.results]) for row in table.rows] == [
        ("net cpu torchscript", ["1.5", "1.5"]),
        ("other cpu", ["FAIL", "·"]),
        ("net cuda torchscript", ["1.5", "·"]),
        ("net cpu dynamo", ["1.5", "·"]),
    ]
    lines = grid_lines(results)
    assert lines[0].split() == ["opset", "9", "11"]
    assert len({len(line) for line in lines[:5]}) == 1
    assert "did not run" in lines[-1]
    assert grid_lines([]) == []


def test_the_summary_counts_and_names_what_kept_cells_from_running():
    skipped = CellResult(cell=cell(device="cuda"), status=Status.SKIPPED, reason="no cuda: no driver")
    whole = report(passed(), skipped, problems=(Problem(source="x.py", message="bad"),), not_run=("a",), seconds=2.0)
    lines = summary_lines(whole)
    assert "skipped 1 cell: no cuda: no driver" in lines
    expected = CellResult(cell=cell(), status=Status.XFAILED, reason="known")
    assert "xfailed 1 cell: known" in summary_lines(report(expected))
    last = ["x.py: bad", "did not run: 1 cell, first a", "2 of 3 cells: 1 passed, 1 skipped, 1 problem in 2.0 s"]
    assert lines[-3:] == conclusion_lines(whole) == last


def test_a_quick_run_says_so_in_its_last_line():
    full = report(passed(), seconds=2.0)
    assert conclusion_lines(full) == ["1 cell: 1 passed in 2.0 s"]
    quick = replace(full, settings={"effort": setting("quick")})
    assert conclusion_lines(quick) == ["1 cell: 1 passed in 2.0 s, on the examples alone (effort=quick)"]


def test_a_warning_is_told_once_and_counted():
    results = report(warned(), warned(opset=10), passed(opset=11), seconds=2.0)
    lines = summary_lines(results)
    assert (
        lines[2]
        == "(a number is the largest drift of a passed cell, in units of PyTorch's own rounding; ! passed with a warning)"
    )
    (told,) = [number for number, line in enumerate(lines) if line.startswith("warning: ")]
    assert lines[told] == "warning: net at opsets 9-10 on cpu: edge-mismatch: off by 2"
    assert lines[told + 1].startswith("    remedy: Declare which values the model gets, inputs=")
    assert lines[-1] == "3 cells: 3 passed (2 with a warning) in 2.0 s"
    assert (results.verdict, results.summary["warned"]) == ("passed", 2)
    assert describe_outcome(warned()) == "passed (drift 1.5; 1 warning)"
    shown = markdown.render(results, str)
    assert shown.count("- net at opsets 9-10 on cpu: `edge-mismatch`: off by 2") == 1
    assert "| net cpu | ⚠️ 1.5 | ⚠️ 1.5 | 1.5 |" in shown
    page = html.render(results, str)
    assert "passed with a warning" in page
    assert page.count("with a warning</span>") == 2


def noted(*findings, **changes):
    return replace(passed(**changes), findings=findings or (finding("no-float64", "estimated"),))


def test_cells_of_a_recipe_that_have_one_status_are_told_in_one_line():
    several = [passed(0.3), noted(opset=10), replace(passed(2.26, opset=17), cached=True), passed(opset=12, device="cuda")]
    assert format_cells(several) == "a/b.py::net  opsets 9-10,17 on cpu, opset 12 on cuda"
    assert describe_outcome(*several) == "passed (drift at most 2.3; 1 note; 1 cached)"
    assert describe_outcome(passed(0.0), passed(0.0)) == "passed (drift at most 0)"
    assert describe_outcome(passed(0.0), passed(0.03)) == "passed (drift below 0.1)"
    assert describe_outcome(warned(), warned(opset=10)) == "passed (drift at most 1.5; 1 warning)"
    assert describe_outcome(skipped(), skipped(opset=10)) == "skipped"
    assert describe_outcome(failed(), failed(opset=10)) == "failed (numeric-drift)"
    assert describe_outcome(noted()) == "passed (drift 1.5; 1 note)"


def test_a_note_is_told_once_for_all_recipes_with_its_remedy():
    frozen = finding("export-warning", "a value is frozen")
    results = [
        noted(), noted(opset=10), noted(recipe="lstm"), noted(finding("no-float64", "estimated"), frozen, opset=11),
        replace(failed(opset=12), findings=(frozen,)),
    ]  # fmt: skip
    told = [line for line in summary_lines(report(*results)) if line.startswith(("note: ", "    remedy: "))]
    assert told == [
        "note: net and lstm in 4 cells: no-float64: estimated",
        f"    remedy: {RULES['no-float64'].remedy}",
        "note: net at opsets 11-12 on cpu: export-warning: a value is frozen",
        f"    remedy: {RULES['export-warning'].remedy}",
    ]


def test_a_remedy_is_told_once_after_all_that_it_is_for():
    causes = [finding("checker", "a"), finding("baseline-drift", "b"), finding("checker", "c"), finding("no-float64", "d")]
    checked, recorded, nothing = (RULES[each.rule].remedy for each in (causes[0], causes[1], causes[3]))
    lines = [f"checker: {text}" for text in "ac"] + [f"    remedy: {checked}", "baseline-drift: b", f"    remedy: {recorded}"]
    assert finding_lines(causes) == [*lines, "no-float64 (note): d", f"    remedy: {nothing}"]
    broken = replace(failed(), findings=tuple(causes), outputs=())
    assert describe_result(broken, "REPEAT", has_notes=False).splitlines()[:-2] == lines
    assert summary_lines(report(broken))[-3:-1] == ["note: net at opset 9 on cpu: no-float64: d", f"    remedy: {nothing}"]
    assert markdown.render(report(broken), str).count("remedy: ") == 2
    assert html.render(report(broken), str).count("<b>Remedy</b>") == 3


def test_where_a_file_was_built_is_told_of_a_failed_cell_with_v_only():
    note = finding("absolute-path", "the file contains paths below /a")
    broken = replace(failed(), findings=(*failed().findings, note))
    assert not any("absolute-path" in line for line in summary_lines(report(broken)))
    assert "absolute-path" in describe_result(broken, "REPEAT", has_notes=True)


@pytest.mark.parametrize(
    "note",
    [
        finding("absolute-path", "the file contains paths below /home"),
        finding("loaded-weights", "the recipe loads weights"),
        finding("untaken-branch", "a branch", source=SourceLine(file="/v/lib/site-packages/lib/net.py", line=3, text="if x:")),
    ],
    ids=lambda note: note.rule,
)
def test_what_nobody_needs_to_act_on_is_among_the_details_of_cells_that_pass(note):
    result = noted(note)
    assert not any(note.rule in line for line in summary_lines(report(result)))
    assert describe_outcome(result) == "passed (drift 1.5)"
    assert any(note.rule in line for line in detail_lines(result))
    for status in (Severity.WARNING, Severity.ERROR):
        shown = replace(result, findings=(replace(note, severity=status),))
        shown = replace(shown, status=Status.FAILED) if status is Severity.ERROR else shown
        assert note.rule in describe_result(shown, "REPEAT") + "".join(summary_lines(report(shown)))


def test_notes_about_lines_of_the_project_come_last():
    at_line = finding("export-warning", "a branch", source=SourceLine(file="net.py", line=3, text="if x:"))
    notes = [line for line in summary_lines(report(noted(at_line, finding("no-float64", "estimated")))) if "note: " in line]
    assert [line.partition("cpu: ")[2].partition(":")[0] for line in notes] == ["no-float64", "export-warning"]


def test_a_note_about_the_baseline_is_told_as_a_change_only():
    changed = finding("baseline-drift", "+2 Cast", severity=Severity.NOTE, baseline_change="operators")
    lines = summary_lines(report(noted(changed)))
    assert [line for line in lines if "+2 Cast" in line] == ["since the baseline: net at opset 9 on cpu: +2 Cast (note)"]


def test_an_explanation_has_rule_numbers_remedy_and_the_way_to_repeat_it():
    result = CellResult(
        cell=cell(), status=Status.FAILED, outputs=(drift(drift=99.0),),
        findings=(finding("no-float64", "a note"), finding("numeric-drift", "off by 3")),
    )  # fmt: skip
    text = describe_result(result, "the command")
    assert text.index("numeric-drift: off by 3") < text.index("no-float64 (note): a note")
    assert "remedy: Look for" in text
    assert text.splitlines()[-1] == "repeat with: the command"
    assert "99" in text


def _at(*nodes, frozen=None):
    return Culprit(nodes=nodes, operators=("aten.gru",), module="", source=None, frozen=frozen)


@pytest.mark.parametrize(
    ("rule", "culprit", "is_named"),
    [
        ("numeric-drift", _at("GRU 'gru'"), True),
        ("numeric-drift", _at(), False),
        ("baked-value", _at("Add 'add'"), False),
        ("numeric-drift", _at("Add 'add'", frozen=Frozen(kind=FrozenKind.NUMBER, here=(4.0,), on_example=(3.0,))), False),
    ],
    ids=["operator", "no node", "right on the example", "frozen"],
)
def test_an_explanation_names_other_versions_where_a_node_is_wrong_on_its_own(rule, culprit, is_named):
    result = CellResult(cell=cell(), status=Status.FAILED, findings=(replace(finding(rule, "it"), culprits=(culprit,)),))
    text = describe_result(result, "the command", about="onnx-ci {} net::opset9-cpu".format)
    assert ("try other versions: onnx-ci versions net::opset9-cpu" in text.splitlines()) == is_named


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("if x.shape[1] > 24:  # long", "The condition is true on other inputs and false on the example."),
        ("elif mask.any():", "The condition is true on other inputs and false on the example."),
        ("if grid.shape != x.shape:", "The condition decides otherwise on other inputs than on the example."),
        ("if not mask.any():", "The condition decides otherwise on other inputs than on the example."),
        ("if first > 1 and second > 1:", "The condition decides otherwise on other inputs than on the example."),
        ("k = min(k, x.shape[1])", "The condition decides otherwise on other inputs than on the example."),
    ],
)
def test_a_condition_is_said_to_be_true_only_where_that_is_known(code, words):
    """Sizes that differ are told from others by a test for being equal, which is false where they differ."""
    frozen = Frozen(kind=FrozenKind.CONDITION, here=(1.0,), on_example=(0.0,))
    source = SourceLine(file="net.py", line=7, text=code)
    culprit = replace(_at(frozen=frozen), source=source)
    result = CellResult(
        cell=cell(), status=Status.FAILED, findings=(replace(finding("baked-value", "it"), culprits=(culprit,)),)
    )
    assert [each.strip() for each in describe_result(result, "the command").splitlines()[:4]] == [
        "net.py:7: baked-value", f">   {code}", words, "it",
    ]  # fmt: skip


def test_other_lines_that_are_at_fault_are_named_behind_the_first():
    frozen = Frozen(kind=FrozenKind.NUMBER, here=(3.0,), on_example=(2.0,))
    first = replace(_at(frozen=frozen), source=SourceLine(file="net.py", line=7, text="n = len(x)"), nodes=())
    second = replace(first, source=SourceLine(file="net.py", line=9, text="m = len(y)"))
    found = replace(finding("baked-value", "it"), culprits=(first, second), probe="rows=3")
    assert describe_cause(found) == "The line uses 3 on 'rows=3' and 2 on the example, and net.py:9."
    assert describe_cause(replace(found, probe=None)) == "The line uses 3 on other inputs and 2 on the example, and net.py:9."


@pytest.mark.parametrize(
    ("rules", "is_named"),
    [
        (["baked-value"], True),
        (["baseline-drift"], False),
        (["baseline-missing"], False),
        (["baseline-drift", "checker"], True),
    ],
)
def test_remedies_are_tried_for_a_file_that_is_wrong_and_not_for_one_that_differs_from_its_baseline(rules, is_named):
    result = CellResult(cell=cell(), status=Status.FAILED, findings=tuple(finding(rule, "it") for rule in rules))
    text = describe_result(result, "the command", about="onnx-ci {} net::opset9-cpu".format)
    assert ("try remedies: onnx-ci fix net::opset9-cpu" in text.splitlines()) == is_named


def test_an_explanation_shows_the_comparisons_that_matter():
    outputs = [drift(), *(drift(probe=f"n={n}") for n in range(20)), drift(probe="bad", drift=77.0)]
    text = describe_result(CellResult(cell=cell(), status=Status.FAILED, outputs=tuple(outputs)), "the command")
    assert "bad" in text
    assert "n=3" not in text
    assert "… and 20 more, in the JSON report" in text


def test_a_command_repeats_the_cell_from_where_the_user_stands(project, monkeypatch):
    settings = load_settings(
        project.root, flags={"max_drift": "3", "weights": "net=a b.pt", "report": "r.json"}, environment={}
    )
    (project.root / "sub").mkdir()
    monkeypatch.chdir(project.root / "sub")
    special = cell(device="cuda:1", exporter="dynamo")
    assert repeat_with_pytest(special, settings.shown(), settings.root) == (
        "pytest --onnx-export --onnx-opsets=9 --onnx-devices=cuda:1 --onnx-exporters=dynamo "
        "'--onnx-weights=net=a b.pt' --onnx-max-drift=3 --no-onnx-cache ../a/b.py::net::opset9-cuda:1-dynamo"
    )
    assert repeat_with_cli(cell(), settings.shown(), settings.root) == (
        "onnx-ci run --opsets=9 '--weights=net=a b.pt' --max-drift=3 --no-cache --select=net::opset9-cpu ../a/b.py"
    )


def test_a_command_names_the_device_that_a_file_sets_otherwise(project):
    project.write("pyproject.toml", '[tool.onnx-ci]\ndevices = ["cuda"]\n')
    settings = load_settings(project.root, environment={})
    assert repeat_with_cli(cell(), settings.shown(), settings.root).startswith(
        "onnx-ci run --opsets=9 --devices=cpu --no-cache "
    )


@pytest.mark.parametrize(
    ("flags", "given_by", "environment"),
    [
        ({"max_drift": "3", "weights": "net=a b.pt"}, SettingSource.COMMAND_LINE, {}),
        ({"max_drift": "3", "opsets": "9-11", "exporters": "dynamo", "report": "r.json"}, SettingSource.PYTEST, {}),
        ({"devices": "cpu,cuda", "select": "n*"}, SettingSource.COMMAND_LINE, {"ONNX_CI_MAX_DRIFT": "2.5"}),
        ({"max_drift": "3"}, SettingSource.PYTHON, {}),
        ({}, SettingSource.COMMAND_LINE, {}),
    ],
)
def test_a_report_read_back_gives_the_command_that_the_run_gave(project, flags, given_by, environment):
    settings = load_settings(project.root, flags=flags, given_by=given_by, environment=environment)
    results = passed(), failed(opset=10, exporter="dynamo"), failed(device="cuda:1")
    write_json(RunReport(environment={}, settings=settings.shown(), cells=results), project.root / "r.json")
    repeat = repeat_from(read_json(project.root / "r.json"), project.root)
    then = repeat_with_pytest if given_by is SettingSource.PYTEST else repeat_with_cli
    assert [repeat(each.cell) for each in results] == [then(each.cell, settings.shown(), settings.root) for each in results]


HOSTILE = "<script>|`*_[x](y)\n::error::no\n| a |\n```\n@everyone #1 \udcff\x1b[31m"


def test_markdown_shows_text_from_outside_as_text():
    result = CellResult(cell=cell(), status=Status.FAILED, findings=(finding("numeric-drift", HOSTILE, remedy=HOSTILE),))
    skipped = CellResult(cell=cell(opset=10), status=Status.SKIPPED, reason=HOSTILE)
    text = markdown.render(
        report(result, skipped, problems=(Problem(source=HOSTILE, message=HOSTILE),)), lambda cell: "run\n```\nx"
    )
    outside = re.sub(r"^(`{3,})$.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "numeric-drift" not in outside, "findings stand in a code block, in which GitHub finds no markup"
    assert "<script>" not in outside
    assert "@everyone" not in outside
    assert not [line for line in text.splitlines() if line.startswith("::")]
    assert text.count("\n| ") == 3  # the grid's heading, rule and row: no line of the hostile text became a row
    assert text.encode()
    assert "````" in text


def test_markdown_escapes_each_character_once():
    assert markdown.escape("a[0] *c*\n<b> & _x_ #1") == "a&#91;0&#93; &#42;c&#42; &lt;b&gt; &amp; &#95;x&#95; &#35;1"


def test_markdown_has_the_verdict_the_failures_and_the_grid():
    text = markdown.render(report(passed(), failed(opset=10)), lambda cell: f"repeat {cell.label}")
    assert text.startswith("## ONNX export: ❌ failed\n")
    assert "### net: failed at opset 10 on cpu" in text
    assert "numeric-drift: off by 3" in text
    assert "repeat opset10-cpu" in text
    assert "| net cpu | 1.5 | ❌ FAIL |" in text[text.index("repeat opset10-cpu") :]
    assert markdown.render(report(), str).startswith("## ONNX export: ⚠️ nothing ran\n")
    assert markdown.render(report(passed()), str).startswith("## ONNX export: ✅ passed\n")


def test_markdown_tells_a_failure_that_opsets_share_once():
    other = CellResult(cell=cell(opset=12), status=Status.FAILED, findings=(finding("checker", "x" * 5000),))
    results = [failed(), failed(opset=10), failed(opset=11), other, failed(recipe="net2")]
    text = markdown.render(report(*results), lambda cell: f"repeat {cell.recipe} {cell.label}")
    assert [line for line in text.splitlines() if line.startswith(("###", "repeat"))] == [
        "### net: failed at opsets 9-11 on cpu",
        "repeat with: repeat net opset9-cpu",
        "### net: failed at opset 12 on cpu",
        "repeat with: repeat net opset12-cpu",
        "### net2: failed at opset 9 on cpu",
        "repeat with: repeat net2 opset9-cpu",
    ]
    assert len(text) < 6000


def test_markdown_says_why_cells_were_not_judged():
    gap = CellResult(cell=cell(), status=Status.XFAILED, reason="index_put")
    skipped = [CellResult(cell=cell(opset=opset, device="cuda"), status=Status.SKIPPED, reason="no cuda") for opset in (9, 10)]
    text = markdown.render(report(gap, *skipped, not_run=("late", "later")), str)
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- did not run: 2 cells, first late",
        "- xfailed 1 cell: index&#95;put",
        "- skipped 2 cells: no cuda",
    ]


def test_the_report_file_is_whole_or_not_there(tmp_path, monkeypatch):
    target = tmp_path / "r.json"
    write_json(report(), target)
    write_json(report(passed()), target)
    assert json.loads(target.read_text())["summary"]["verdict"] == "passed"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_json(report(), tmp_path)
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_shown_of_a_result_can_neither_move_the_cursor_nor_begin_a_line():
    bad = "x\r\x1b[2J\n::error::no\ud800"
    result = CellResult(cell=cell(), status=Status.FAILED, findings=(finding("crash", bad, remedy=bad),), reason=bad, log=bad)
    whole = report(result, problems=(Problem(source=bad, message=bad),), exclusions=(Exclusion(recipe=bad, reason=bad),))
    lines = [*describe_result(result, "the command").splitlines(), *detail_lines(result), *summary_lines(whole)]
    assert all(line.isprintable() for line in lines)
    assert not [line for line in lines if line.lstrip().startswith("::")]
    assert any("::error::no" in line for line in lines)


def test_the_detail_lines_of_a_result_are_its_notes_times_and_log():
    result = CellResult(
        cell=cell(), status=Status.PASSED, findings=(finding("no-float64", "a note"),), log="said\nmuch", timings={"export": 1.25, "run": 0.5}
    )  # fmt: skip
    assert detail_lines(result) == [
        "    no-float64 (note): a note", "    1.75 s: export 1.25, run 0.50", "    | said", "    | much"
    ]  # fmt: skip
    assert detail_lines(failed()) == []  # what it was found guilty of is told already


def test_the_inputs_that_prove_nothing_are_told_with_the_reason_beside_those_that_do():
    outputs = (
        drift(),
        drift(name="z", unproven="too noisy"),
        drift(probe="n=1", unproven="nothing finite"),
        drift(probe="floats large", unproven="too noisy"),
        drift(probe="random values"),
    )
    assert describe_inputs_compared(dataclasses.replace(passed(), outputs=outputs)) == (
        "2 inputs; nothing is proved on 'n=1' (nothing finite) and 'floats large' (too noisy)"
    )
    assert describe_inputs_compared(dataclasses.replace(passed(), outputs=outputs[:2])) == "1 input"
    assert describe_inputs_compared(dataclasses.replace(passed(), outputs=())) == ""
    large = dataclasses.replace(passed(), outputs=outputs[:1], left_out=("floats zero", "floats large"))
    assert describe_inputs_compared(large) == "1 input; the example is large, so not on 'floats zero' and 'floats large'"


def test_what_is_said_of_several_lines_is_said_once():
    notes = [
        dataclasses.replace(
            finding("export-warning", "a value is frozen.", remedy="Rewrite it."),
            source=SourceLine(file="net.py", line=line, text="if x:"),
        )
        for line in (3, 5, 9)
    ]
    other = finding("export-warning", "a count is frozen.", remedy="Rewrite it.")
    result = dataclasses.replace(passed(), findings=(*notes, other))
    assert [line for line in summary_lines(report(result)) if "note:" in line or "remedy" in line] == [
        "note: net at opset 9 on cpu: export-warning: a count is frozen.",
        "note: net at opset 9 on cpu: export-warning: net.py:3, `if x:`: a value is frozen; also at net.py:5 and net.py:9",
        "    remedy: Rewrite it.",
    ]


# --- reading


def test_folders_stand_for_the_reports_below_them(tmp_path):
    for name in ("b/r.json", "a.json", ".hidden/r.json", "b/.r.json", "b/note.txt"):
        write_json(report(passed()), tmp_path / name)
    assert [name for name, _ in read_reports([tmp_path / "b", tmp_path])] == [
        str(tmp_path / name) for name in ("b/r.json", "a.json", "b/r.json")
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "r.json cannot be read: No such file or directory; did you mean 'q.json'?"),
        (b"", "r.json is truncated or not JSON"),
        (b'{"schema_version": 1', "r.json is truncated or not JSON"),
        (b"[" * 100_000, "r.json is truncated or not JSON"),
        (b'{"a": NaN}', "r.json is truncated or not JSON"),
        (b'{"a": "\\ud800"}', "r.json is truncated or not JSON"),
        (b"\xff\xfe", "r.json is not a text file, so it is not a report of onnx-ci"),
        (b"[]", "r.json is not a report that this onnx-ci can read: it has no 'schema_version'"),
        (b'{"schema_version": 7}', "it has schema_version 7, but this onnx-ci reads 1"),
    ],
)
def test_a_file_that_is_no_report_is_named_with_the_remedy(tmp_path, content, said):
    (tmp_path / "q.json").touch()
    if content is not None:
        (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_json(tmp_path / "r.json")
    assert said in str(caught.value)
    assert str(caught.value).endswith("; write one with onnx-ci run --report=PATH")


def test_an_empty_folder_is_no_empty_report(tmp_path):
    with pytest.raises(ConfigurationError, match=r"contains no report: there is no \*\.json in it; write one with"):
        read_reports([tmp_path])


# --- merging


FOUR = CpuVsGpu(name="y", errors={"PyTorch on cpu": 1e-7, "ONNX Runtime on cuda": 0.5}, apart=("ONNX Runtime on cuda",))
AGREE = CpuVsGpu(name="y", errors={"PyTorch on cpu": 1e-7, "ONNX Runtime on cuda": 2e-7}, apart=())


def test_who_stands_alone_of_four_sides_is_told_where_anybody_looks():
    said = "y: ONNX Runtime on cuda deviates from the others; errors against float64: PyTorch on cpu 1e-07, ONNX Runtime on cuda 0.5"
    wrong = dataclasses.replace(failed(device="cuda"), cpu_vs_gpu=(FOUR,))
    assert said in describe_result(wrong, "repeat")
    assert said in html.render(run_of(wrong), lambda cell: "repeat")
    right = dataclasses.replace(passed(device="cuda"), cpu_vs_gpu=(AGREE,))
    assert "y: all sides agree; errors against float64:" in "\n".join(detail_lines(right))
    assert "agree" not in describe_result(dataclasses.replace(failed(device="cuda"), cpu_vs_gpu=(AGREE,)), "repeat")


def merged(**reports):
    return merge([(f"{name}.json", each) for name, each in reports.items()])


def statuses(whole):
    return [(result.cell.label, result.status.value) for result in whole.cells]


def test_a_merged_report_has_every_cell_in_the_order_of_one_run():
    one = run_of(passed(opset=10), passed(recipe="other", opset=10), passed(opset=10, device="cuda"))
    other = run_of(failed(opset=9), passed(recipe="other", opset=9), seconds=2.5)
    whole = merged(one=one, other=other)
    assert [result.cell.id.removeprefix("a/b.py::") for result in whole.cells] == [
        "net::opset9-cpu", "net::opset10-cpu", "net::opset10-cuda", "other::opset9-cpu", "other::opset10-cpu",
    ]  # fmt: skip
    assert (whole.verdict, whole.seconds) == ("failed", 3.5)
    assert [(part.name, len(part.cells), part.seconds) for part in whole.merged_from] == [
        ("one.json", 3, 1.0),
        ("other.json", 2, 2.5),
    ]
    assert "5 cells: 4 passed, 1 failed in 3.5 s together" in summary_lines(whole)
    assert RunReport.from_json(json.loads(json.dumps(whole.as_json()))) == whole


def test_a_merged_report_has_the_commit_that_all_its_runs_have():
    old, new = (Revision(commit=digit * 40, branch="main", is_modified=digit == "b") for digit in "ab")
    same = merged(one=run_of(passed(), revision=old), other=run_of(passed(opset=10), revision=old))
    assert same.revision == old
    assert not any("commit" in line for line in summary_lines(same))
    mixed = merged(
        one=run_of(passed(), revision=old), other=run_of(passed(opset=10), revision=new), third=run_of(passed(opset=11))
    )
    assert mixed.revision is None
    assert "merged runs differ: commit aaaaaaa on main, bbbbbbb on main, with uncommitted changes and unknown" in summary_lines(
        mixed
    )
    assert RunReport.from_json(json.loads(json.dumps(mixed.as_json()))) == mixed
    assert (same.verdict, mixed.verdict) == ("passed", "failed")
    (problem,) = mixed.problems
    assert "one.json of aaaaaaa and other.json of bbbbbbb; merge the reports of one" in problem.message
    assert merged(mixed=mixed, again=mixed).problems == mixed.problems


def test_who_judged_a_cell_outweighs_who_skipped_it_or_did_not_come_to_it():
    on_cpu = run_of(passed(), skipped(device="cuda"), not_run=("a/b.py::net::opset10-cpu",))
    on_cuda = run_of(failed(device="cuda"), skipped(), seconds=2.0)
    rest = run_of(passed(opset=10), seconds=3.0)
    for reports in ({"a": on_cpu, "b": on_cuda, "c": rest}, {"c": rest, "b": on_cuda, "a": on_cpu}):
        whole = merged(**reports)
        assert sorted(statuses(whole)) == [("opset10-cpu", "passed"), ("opset9-cpu", "passed"), ("opset9-cuda", "failed")]
        assert whole.not_run == ()
        assert {part.name: part.cells for part in whole.merged_from} == {
            "a.json": ("a/b.py::net::opset9-cpu",),
            "b.json": ("a/b.py::net::opset9-cuda",),
            "c.json": ("a/b.py::net::opset10-cpu",),
        }


def test_a_cell_that_was_to_run_and_nobody_judged_is_missing():
    cut = run_of(passed(), not_run=("a/b.py::net::opset9-cuda",))
    whole = merged(cut=cut, other=run_of(skipped(device="cuda"), seconds=2.0))
    assert (statuses(whole), whole.not_run, whole.verdict) == (
        [("opset9-cpu", "passed")], ("a/b.py::net::opset9-cuda",), "failed",
    )  # fmt: skip


NINE, TEN, ELEVEN = (cell(opset=opset).id for opset in (9, 10, 11))


@pytest.mark.parametrize(
    ("reports", "missing"),
    [
        ([run_of(passed(), in_other_jobs=(TEN,))], (TEN,)),
        ([run_of(passed(), in_other_jobs=(TEN,)), run_of(passed(opset=10), in_other_jobs=(NINE,))], ()),
        # As with different durations: one cell is in neither shard.
        ([run_of(passed(), in_other_jobs=(TEN, ELEVEN)), run_of(passed(opset=10), in_other_jobs=(NINE, ELEVEN))], (ELEVEN,)),
        # A plan, and the jobs for its opsets.
        ([run_of(in_other_jobs=(NINE, TEN)), run_of(passed()), run_of(passed(opset=10), seconds=2.0)], ()),
        ([run_of(in_other_jobs=(NINE, TEN)), run_of(passed())], (TEN,)),
        ([run_of(in_other_jobs=(NINE, TEN)), run_of(passed(), not_run=(TEN,))], (TEN,)),
        ([run_of(in_other_jobs=(NINE,))], (NINE,)),
    ],
)
def test_a_cell_that_is_left_to_another_job_is_missing_unless_that_has_it(reports, missing):
    for order in (reports, reports[::-1]):
        whole = merge([(str(number), each) for number, each in enumerate(order)])
        assert (whole.not_run, whole.in_other_jobs) == (missing, ())
        assert whole.verdict == ("failed" if missing else "passed")
        part = merge([(str(number), each) for number, each in enumerate(order)], is_part=True)
        assert merge([("whole", part)]) == whole


def test_a_plan_is_none_of_the_runs_that_are_merged():
    plan = run_of(in_other_jobs=(NINE, TEN), torch="2.12.0", settings={"max-drift": "8"})
    whole = merged(plan=plan, a=run_of(passed()), b=run_of(passed(opset=10), seconds=2.0))
    assert whole == merged(a=run_of(passed()), b=run_of(passed(opset=10), seconds=2.0))


def test_results_that_say_the_same_are_one():
    slow = dataclasses.replace(passed(), timings={"run": 9.0}, cached=True, log="other", artifact="/else/where")
    whole = merged(a=run_of(passed()), b=run_of(slow, passed(opset=10), seconds=2.0))
    assert statuses(whole) == [("opset9-cpu", "passed"), ("opset10-cpu", "passed")]
    assert merged(a=run_of(passed()), b=run_of(passed())) == run_of(passed())


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (failed(), "passed (drift 1.5) and failed (numeric-drift); they differ in status, findings and outputs."),
        (passed(1.25), "passed (drift 1.5) and passed (drift 1.2); they differ in outputs."),
        (
            CellResult(cell=cell(), status=Status.XFAILED, outputs=(drift(),)),
            "passed (drift 1.5) and xfailed; they differ in status.",
        ),
    ],
)
def test_reports_that_contradict_each_other_are_refused(other, said):
    with pytest.raises(ConfigurationError) as caught:
        merged(a=run_of(skipped()), b=run_of(passed(), seconds=2.0), c=run_of(other, seconds=3.0))
    assert str(caught.value).startswith(f"b.json and c.json contradict each other about a/b.py::net::opset9-cpu: {said} ")
    assert "leave out one of the files" in str(caught.value)


def test_recipes_that_are_left_out_for_one_reason_share_a_line():
    many = [Exclusion(recipe=f"net{n}", reason="opset 9: old") for n in range(9)]
    assert describe_exclusions([*many, Exclusion(recipe="other", reason="cuda: slow")]) == [
        "net0, net1, net2 and 6 more at opset 9: old", "other at cuda: slow",
    ]  # fmt: skip
    assert describe_exclusions(many[:2]) == ["net0 and net1 at opset 9: old"]


def test_problems_and_exclusions_of_all_runs_are_told_once():
    problem, exclusion = Problem(source="x.py", message="bad"), Exclusion(recipe="net", reason="opset 9: no")
    one, other = (run_of(passed(opset=n), seconds=n, problems=(problem,), exclusions=(exclusion,)) for n in (9, 10))
    whole = merged(one=one, other=other)
    assert (whole.problems, whole.exclusions) == ((problem,), (exclusion,))
    assert "left out net at opset 9: no" in summary_lines(whole)
    assert "- left out net at opset 9: no" in markdown.render(whole, str)


def test_what_differs_between_merged_runs_is_kept_and_shown():
    one = run_of(passed(), torch="2.12.0", settings={"max-drift": "8", "opsets": "9", "jobs": None})
    other = run_of(failed(opset=10), settings={"max-drift": "16", "opsets": "10", "jobs": None})
    third = run_of(passed(opset=11), seconds=3.0, settings={"max-drift": "4", "opsets": "11", "jobs": None})
    whole = merged(one=one, other=other, third=third)
    assert whole.environment == {"torch": "2.12.0 and 2.13.0"}
    assert whole.settings["max-drift"] == setting("8, 16 and 4", "--max-drift")
    assert whole.settings["jobs"].value is None
    shown = summary_lines(whole)
    assert [line for line in shown if line.startswith("merged")] == [
        "merged from 3 runs", "merged runs differ: torch 2.12.0 and 2.13.0", "merged runs differ: max-drift 8, 16 and 4",
    ]  # fmt: skip
    assert "- merged runs differ: torch 2.12.0 and 2.13.0" in markdown.render(whole, str)


def test_every_cell_of_a_merged_report_is_repeated_under_the_settings_of_its_own_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = merged(
        one=run_of(failed(), settings={"max-drift": "8"}), other=run_of(failed(opset=10), settings={"max-drift": "4"})
    )
    repeat = repeat_from(whole, tmp_path)
    assert [repeat(result.cell) for result in whole.cells] == [
        f"onnx-ci run --opsets={opset} --max-drift={limit} --no-cache --select=net::opset{opset}-cpu a/b.py" for opset, limit in ((9, 8), (10, 4))
    ]  # fmt: skip


def test_merging_in_steps_or_twice_gives_what_merging_at_once_gives():
    runs = {f"r{n}": run_of(passed(opset=n), skipped(device="cuda"), seconds=n) for n in (9, 10, 11)}
    whole = merged(**runs)
    first = merged(r9=runs["r9"], r10=runs["r10"])
    assert merged(first=first, r11=runs["r11"]) == whole
    assert merged(**runs, whole=whole) == whole
    assert merged(whole=whole, **runs) == whole


def test_a_pipe_is_written_to_and_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text("text\n", pipe)
        assert os.read(reader, 100) == b"text\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_the_grid_has_a_row_for_each_pass_and_says_what_a_number_counts():
    alike = Similarity(cosine=1.0, sqnr=40.0, agreement=None, ties=0)
    graph_pass = dataclasses.replace(passed(graph_pass="float16"), outputs=(drift(similarity=alike),))
    lines = grid_lines([passed(), graph_pass])
    assert [line.split("  ")[0].strip() for line in lines[1:3]] == ["net cpu", "net cpu +float16"]
    assert "PyTorch's own rounding, or of that of a lossy pass" in lines[-1]
    assert "lossy" not in grid_lines([passed()])[-1]


def test_each_note_is_shown_those_at_one_line_too():
    line = SourceLine(file="net.py", line=3, text="y = x")
    notes = [dataclasses.replace(finding(rule, "said"), source=line) for rule in ("export-warning", "global-state")]
    result = dataclasses.replace(passed(), findings=tuple(notes))
    shown = "\n".join(summary_lines(report(result)))
    assert "export-warning: " in shown
    assert "global-state: " in shown
    assert describe_outcome(result) == "passed (drift 1.5; 2 notes)"


def test_names_of_cells_move_no_cursor():
    results = [dataclasses.replace(failed(), cell=cell(source="a\x1b[2Jb.py", opset=opset)) for opset in (9, 10)]
    assert "\x1b" not in format_cells(results) + describe_outcome(results[0])


def test_a_cell_that_passes_shows_no_row_above_its_limit():
    edge = finding("edge-mismatch", "off by 2", output="y", probe="masks empty")
    outputs = (drift(), drift(drift=70.0, probe="masks empty"))
    passes = replace(passed(), findings=(edge,), outputs=outputs)
    assert "masks empty" not in "".join(line for line in describe_result(passes, "REPEAT").splitlines() if "edge" not in line)
    assert "… and 1 more" in describe_result(passes, "REPEAT")
    assert "masks empty" in describe_result(replace(passes, status=Status.FAILED, findings=()), "REPEAT")


def test_the_nodes_around_a_fault_are_a_table_that_marks_what_is_at_fault():
    line = SourceLine(file="net.py", line=7, text="<y> = x & z")

    def step(node, error=None, *, is_culprit=False, can_run=True):
        known = error is not None
        return NodeStep(
            node=node, is_culprit=is_culprit, can_run=can_run, source=line if known else None,
            index=(1, 2) if known else None, file_value=1.5 + error if known else None,
            model_value=1.5 if known else None, error=error, noise=1e-7 if known else None,
        )  # fmt: skip

    steps = [
        step("Relu 'a'", 0.0),
        step("Mul 'b'", 0.5, is_culprit=True),
        step("Add 'c<'", 0.25),
        step("Split 'd'", can_run=False),
    ]
    assert [re.split(r"  +", line.strip()) for line in step_lines(steps)] == [
        ["node", "line", "error ÷ rounding", "at", "file", "model"],
        ["Relu 'a'", "net.py:7", "0", "[1, 2]", "1.5", "1.5"],
        [">", "Mul 'b'", "net.py:7", "5e+06", "[1, 2]", "2", "1.5"],
        ["Add 'c<'", "net.py:7", "2.5e+06", "[1, 2]", "1.75", "1.5"],
        ["Split 'd'", "does not run"],
    ]
