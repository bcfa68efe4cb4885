from __future__ import annotations

import json

import pytest
from test_records import cell, drift, report

from onnx_ci import CellResult, ConfigurationError, Problem, Status
from onnx_ci.config import load_settings
from onnx_ci.report import markdown
from onnx_ci.report.grid import grid, word
from onnx_ci.report.json_file import write_json
from onnx_ci.report.repeat import repeat_with_cli, repeat_with_pytest
from onnx_ci.report.text import explain, grid_lines, summary_lines
from onnx_ci.rules import finding


def passed(value=1.5, **changes):
    return CellResult(cell=cell(**changes), status=Status.PASSED, outputs=(drift(drift=value),))


def failed(**changes):
    return CellResult(cell=cell(**changes), status=Status.FAILED, findings=(finding("numeric-drift", "off by 3"),))


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, "·"),
        (passed(1.234), "1.2"),
        (passed(0.0), "0"),
        (passed(0.001), "<0.1"),
        (passed(12345.0), "1.2e+04"),
        (CellResult(cell=cell(), status=Status.PASSED), "pass"),
        (failed(), "FAIL"),
        (CellResult(cell=cell(), status=Status.ERROR), "ERROR"),
        (CellResult(cell=cell(), status=Status.SKIPPED), "skip"),
        (CellResult(cell=cell(), status=Status.XFAILED), "xfail"),
        (CellResult(cell=cell(), status=Status.XPASSED), "XPASS"),
    ],
)
def test_each_place_of_the_grid_says_what_became_of_its_cell(result, shown):
    assert word(result) == shown


def test_the_grid_has_recipes_down_and_opsets_across():
    results = [passed(opset=11), passed(), failed(recipe="other"), passed(device="cuda"), passed(exporter="dynamo")]
    table = grid(results)
    assert table.opsets == (9, 11)
    assert [(row.title, [word(result) for result in row.results]) for row in table.rows] == [
        ("net cpu", ["1.5", "1.5"]),
        ("other cpu", ["FAIL", "·"]),
        ("net cuda", ["1.5", "·"]),
        ("net cpu dynamo", ["1.5", "·"]),
    ]
    lines = grid_lines(results)
    assert lines[0].split() == ["opset", "9", "11"]
    assert len({len(line) for line in lines[:5]}) == 1
    assert "did not run" in lines[-1]
    assert grid_lines([]) == []


def test_the_summary_counts_and_names_what_kept_cells_from_running():
    skipped = CellResult(cell=cell(device="cuda"), status=Status.SKIPPED, reason="no cuda: no driver")
    text = "\n".join(
        summary_lines(report(passed(), skipped, problems=(Problem(source="x.py", message="bad"),), not_run=("a",), seconds=2.0))
    )
    assert "skipped 1 cell: no cuda: no driver" in text
    assert "x.py: bad" in text
    assert "did not run: 1 cell, first a" in text
    assert "2 cells: 1 passed, 1 skipped, 1 problem in 2.0 s" in text


def test_an_explanation_has_rule_numbers_remedy_and_the_way_to_repeat_it():
    result = CellResult(
        cell=cell(), status=Status.FAILED, outputs=(drift(drift=99.0),),
        findings=(finding("no-float64", "a note"), finding("numeric-drift", "off by 3")),
    )  # fmt: skip
    text = explain(result, "the command")
    assert text.index("numeric-drift: off by 3") < text.index("no-float64 (note): a note")
    assert "remedy: Look for" in text
    assert text.splitlines()[-1] == "repeat with: the command"
    assert "99" in text


def test_an_explanation_shows_the_comparisons_that_matter():
    outputs = [drift(), *(drift(probe=f"n={n}") for n in range(20)), drift(probe="bad", drift=77.0)]
    text = explain(CellResult(cell=cell(), status=Status.FAILED, outputs=tuple(outputs)), "the command")
    assert "bad" in text
    assert "n=3" not in text
    assert "… and 20 more, in the JSON report" in text


def test_a_command_repeats_the_cell_from_where_the_user_stands(project, monkeypatch):
    settings = load_settings(project.root, flags={"drift": "3", "weights": "net=a b.pt", "report": "r.json"}, environment={})
    (project.root / "sub").mkdir()
    monkeypatch.chdir(project.root / "sub")
    special = cell(device="cuda:1", exporter="dynamo")
    assert repeat_with_pytest(special, settings) == (
        "pytest --onnx-export --onnx-opsets=9 --onnx-devices=cuda:1 --onnx-exporters=dynamo "
        "'--onnx-weights=net=a b.pt' --onnx-drift=3 ../a/b.py::net::opset9-cuda:1-dynamo"
    )
    assert repeat_with_cli(cell(), settings) == (
        "onnx-ci run --opsets=9 '--weights=net=a b.pt' --drift=3 --select=net::opset9-cpu ../a/b.py"
    )


HOSTILE = "<script>|`*_[x](y)\n::error::no\n| a |\n```\n@everyone #1 \udcff\x1b[31m"


def test_markdown_shows_text_from_outside_as_text():
    result = CellResult(cell=cell(), status=Status.FAILED, findings=(finding("numeric-drift", HOSTILE, remedy=HOSTILE),))
    skipped = CellResult(cell=cell(opset=10), status=Status.SKIPPED, reason=HOSTILE)
    text = markdown.render(
        report(result, skipped, problems=(Problem(source=HOSTILE, message=HOSTILE),)), lambda cell: "run\n```\nx"
    )
    assert "<script>" not in text
    assert "@everyone" not in text
    assert not [line for line in text.splitlines() if line.startswith("::")]
    assert text.count("\n| ") == 3  # the grid's heading, rule and row: no line of the hostile text became a row
    assert text.encode()
    assert "````" in text


def test_markdown_escapes_each_character_once():
    assert markdown.escape("a_b *c*\n<d> & #1") == "a&#95;b &#42;c&#42; &lt;d&gt; &amp; &#35;1"


def test_markdown_has_the_verdict_the_failures_and_the_grid():
    text = markdown.render(report(passed(), failed(opset=10)), lambda cell: f"repeat {cell.label}")
    assert text.startswith("## ONNX export: ❌ failed\n")
    assert "### net cpu, opset 10: failed" in text
    assert "- `numeric-drift`: off by 3" in text
    assert "repeat opset10-cpu" in text
    assert "| net cpu | 1.5 | ❌ FAIL |" in text[text.index("repeat opset10-cpu") :]
    assert markdown.render(report(), str).startswith("## ONNX export: ⚠️ nothing ran\n")
    assert markdown.render(report(passed()), str).startswith("## ONNX export: ✅ passed\n")


def test_markdown_tells_a_failure_that_opsets_share_once():
    other = CellResult(cell=cell(opset=12), status=Status.FAILED, findings=(finding("checker", "x" * 5000),))
    results = [failed(), failed(opset=10), failed(opset=11), other, failed(recipe="net2")]
    text = markdown.render(report(*results), lambda cell: f"repeat {cell.recipe} {cell.label}")
    assert [line for line in text.splitlines() if line.startswith(("###", "repeat"))] == [
        "### net cpu, opsets 9-11: failed",
        "repeat net opset9-cpu",
        "### net cpu, opset 12: failed",
        "repeat net opset12-cpu",
        "### net2 cpu, opset 9: failed",
        "repeat net2 opset9-cpu",
    ]
    assert len(text) < 3000


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
    target.write_text("old")
    write_json(report(passed()), target)
    assert json.loads(target.read_text())["summary"]["verdict"] == "passed"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_json(report(), tmp_path)
    assert list(tmp_path.iterdir()) == [target]
