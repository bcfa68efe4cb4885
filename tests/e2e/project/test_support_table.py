"""``docs/support_table.py``: what works from which opset, and whether a page still says so."""

from __future__ import annotations

import sys

import pytest
from support_table import BEGIN, END, render, rows_of
from toolbox.projects import ROOT
from toolbox.records import cell, report

from onnx_ci import CellResult, Status
from onnx_ci.results.files import write_json
from onnx_ci.results.rules import finding


def result(opset, *findings, status=None, reason="", **changes):
    status = status or (Status.FAILED if findings else Status.PASSED)
    return CellResult(cell=cell(opset=opset, **changes), status=status, reason=reason, findings=findings)


DRIFT = finding("numeric-drift", "output 'y' is 1 and should be 2")
NO_OPERATOR = finding("unsupported-operator", "the exporter raised", operator="aten::foo")
ELSEWHERE = finding("opset-mismatch", "written at 18", opset=18)


def table_of(*results, **changes):
    """The rows of the rendered table, as lists of words, and the lines below it."""
    lines = render(report(*results, **changes)).splitlines()
    rows = [[word.strip() for word in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [rows[0], *rows[2:]], [line for line in lines if line.startswith("- ")]


def test_each_mark_says_what_became_of_a_cell():
    rows, notes = table_of(
        result(9, DRIFT),
        result(10, NO_OPERATOR),
        result(11, ELSEWHERE),
        result(12, finding("crash", "died"), status=Status.ERROR),
        result(13, status=Status.SKIPPED, reason="no device"),
        result(14),
        result(16, finding("export-warning", "only a note")),
    )
    assert rows == [
        ["recipe", "exporter", "safe from", "9", "10", "11", "12", "13", "14", "16"],
        ["`net`", "torchscript", "14", "❌", "➖", "→18", "❔", "·", "✅", "✅"],
    ]
    assert notes == [
        "- `net`, torchscript, opset 9: wrong, `numeric-drift`: output 'y' is 1 and should be 2",
        "- `net`, torchscript, opset 10: unsupported, `aten::foo`: the exporter raised",
        "- `net`, torchscript, opset 12: unknown, `crash`: died",
    ]


def test_what_is_expected_to_fail_fails_and_its_reason_is_told_once():
    known = {"status": Status.XFAILED, "reason": "rounds | up"}
    rows, notes = table_of(result(9, DRIFT, **known), result(10, DRIFT, **known), result(11))
    assert rows[1][2:] == ["11", "❌", "❌", "✅"]
    assert notes == ["- `net`, torchscript, opset 9-10: wrong, `numeric-drift`: rounds &#124; up"]


def test_a_gap_that_has_closed_counts_as_passed():
    closed = result(9, finding("unexpected-pass", "closed"), status=Status.XPASSED)
    assert table_of(closed)[0][1][2:] == ["9", "✅"]


@pytest.mark.parametrize(
    ("passed", "failed", "safe"),
    [((9, 10, 11), (), 9), ((10, 12), (11,), 12), ((9, 10), (11,), None), ((11,), (9, 10), 11)],
)
def test_a_recipe_is_safe_from_the_opset_from_which_on_all_passed(passed, failed, safe):
    (row,) = rows_of([*map(result, passed), *(result(opset, DRIFT) for opset in failed)])
    assert row.lowest_safe == safe


def test_exporters_and_devices_have_rows_of_their_own_beside_their_recipe():
    rows, _ = table_of(
        result(9), result(9, recipe="other"), result(9, ELSEWHERE, exporter="dynamo"), result(9, recipe="other", device="cuda")
    )
    assert rows == [
        ["recipe", "exporter", "device", "safe from", "9"],
        ["`net`", "torchscript", "cpu", "9", "✅"],
        ["`net`", "dynamo", "cpu", "–", "→18"],
        ["`other`", "torchscript", "cpu", "9", "✅"],
        ["`other`", "torchscript", "cuda", "9", "✅"],
    ]


def test_versions_are_those_of_the_run_without_the_build():
    one = report(result(9))
    run = type(one)(environment={"python": "3.11.1", "torch": "2.13.0+cpu", "onnx": "1.23.2"}, settings={}, cells=one.cells)
    assert render(run).splitlines()[0] == "Made with torch 2.13.0, onnx 1.23.2."


def test_text_of_a_report_is_no_markup():
    _, notes = table_of(result(9, finding("unsupported-operator", "<b>\n# *bold* |", operator="a`b|c")))
    assert notes == [
        "- `net`, torchscript, opset 9: unsupported, <code>a&#96;b&#124;c</code>: &lt;b&gt; &#35; &#42;bold&#42; &#124;"
    ]


def test_the_files_of_stages_are_not_in_the_table():
    assert table_of(result(9), result(9, DRIFT, stage="onnxslim"))[0][1] == ["`net`", "torchscript", "9", "✅"]


# --- the page


PAGE = f"# Support\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n"


def script(project, *arguments):
    return project.run(sys.executable, str(ROOT / "docs" / "support_table.py"), *arguments)


def test_the_table_goes_into_a_page_and_is_checked_there(project):
    write_json(report(result(9), result(10, DRIFT)), project.root / "r.json")
    page = project.write("page.md", PAGE)
    stale = script(project, "r.json", "--check=page.md")
    assert (stale.returncode, "-old" in stale.stdout.splitlines()) == (1, True)
    assert stale.stderr == "page.md is outdated; run the same command with --write=page.md\n"
    assert page.read_text() == PAGE
    assert script(project, "r.json", "--write=page.md").returncode == 0
    assert page.read_text() == PAGE.replace("old\n", script(project, "r.json").stdout)
    assert script(project, "r.json", "--check=page.md").returncode == 0


@pytest.mark.parametrize("page", ["no marks\n", f"{END}\n{BEGIN}\n", PAGE + PAGE])
def test_a_page_without_a_place_for_the_table_is_refused(project, page):
    write_json(report(result(9)), project.root / "r.json")
    project.write("page.md", page)
    done = script(project, "r.json", "--write=page.md")
    assert (done.returncode, "page.md must contain each of the two marks" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("cells", "not_run", "message"),
    [((), (), "contain no cells"), ((9,), ("a/b.py::net::opset10-cpu",), "stopped before 1 of its cells ran, first a/b.py")],
)
def test_a_table_of_less_than_a_whole_run_is_refused(project, cells, not_run, message):
    write_json(report(*map(result, cells), not_run=not_run), project.root / "r.json")
    done = script(project, "r.json")
    assert (done.returncode, done.stdout, message in done.stderr) == (1, "", True)
