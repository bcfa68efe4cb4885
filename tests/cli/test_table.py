"""``onnx-ci table``: what works from which opset, and whether a page still says so."""

from __future__ import annotations

import pytest
from toolbox.projects import RIGHT
from toolbox.records import cell, report

from onnx_ci import CellResult, Status
from onnx_ci.report.support_table import BEGIN, END, render, rows_of
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


# --- the command


WRONG = """
    @onnx_ci.recipe(opsets="9-11", expect={"9-10": onnx_ci.unsupported("needs opset 11")})
    def summed():
        class Summed(torch.nn.Module):
            def forward(self, x):
                return torch.cumsum(x, 0)
        return Summed(), (torch.randn(4),)
"""
PAGE = f"# Support\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n"


@pytest.fixture
def cli(project):
    def cli(*arguments):
        return project.command("onnx_ci", "table", *arguments)

    return cli


def test_a_table_of_a_real_run_goes_into_a_page_and_is_checked_there(project, cli):
    project.recipes(RIGHT, WRONG)
    assert project.command("onnx_ci", "run", "--opsets=9-11", "--report=r.json").returncode == 0
    printed = cli("r.json")
    assert printed.returncode == 0
    assert "| `right` | torchscript | 9 | ✅ | ✅ | ✅ |" in printed.stdout.splitlines()
    assert "| `summed` | torchscript | 11 | ➖ | ➖ | ✅ |" in printed.stdout.splitlines()
    assert "- `summed`, torchscript, opset 9-10: unsupported, `cumsum`: needs opset 11" in printed.stdout.splitlines()
    page = project.write("page.md", PAGE)
    stale = cli("r.json", "--check=page.md")
    assert stale.returncode == 1
    assert "-old" in stale.stdout.splitlines()
    assert stale.stderr == "onnx-ci: page.md is outdated; rewrite it with onnx-ci table … --write=page.md\n"
    assert page.read_text() == PAGE
    written = cli("r.json", "--write=page.md")
    assert (written.returncode, written.stdout) == (0, "")
    assert page.read_text() == PAGE.replace("old\n", printed.stdout)
    fresh = cli("r.json", "--check=page.md")
    assert (fresh.returncode, fresh.stdout, fresh.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("no marks\n", "page.md has no place for a table: it must contain each of the two marks"),
        (f"{END}\n{BEGIN}\n", "page.md has no place for a table"),
        (PAGE + PAGE, "page.md has no place for a table"),
        (None, "there is no file page.md; did you mean 'pages.md'?; create it with the lines <!-- onnx-ci table: begin -->"),
    ],
)
@pytest.mark.parametrize("flag", ["--write", "--check"])
def test_a_page_without_a_place_for_the_table_is_refused(project, cli, page, said, flag):
    write_json(report(result(9)), project.root / "r.json")
    project.write("pages.md", PAGE)
    if page is not None:
        project.write("page.md", page)
    done = cli("r.json", f"{flag}=page.md")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"onnx-ci: {said}")
    assert len(done.stderr.splitlines()) == 1


def test_a_run_that_was_stopped_makes_no_table(project, cli):
    write_json(report(result(9), not_run=("a/b.py::net::opset10-cpu",)), project.root / "r.json")
    done = cli("r.json")
    assert done.returncode == 2
    assert "stopped before 1 of its cells ran, first a/b.py::net::opset10-cpu" in done.stderr


def test_a_report_without_cells_makes_no_table(project, cli):
    write_json(report(), project.root / "r.json")
    done = cli("r.json")
    assert (done.returncode, done.stdout) == (5, "")
    assert "the reports contain no cells" in done.stderr


def test_no_report_is_a_usage_error(project, cli):
    assert cli().returncode == 2
    done = cli("r.json")
    assert done.returncode == 2
    assert done.stderr.startswith("onnx-ci: the report r.json cannot be read")


def test_the_files_of_stages_are_not_in_the_table():
    assert table_of(result(9), result(9, DRIFT, stage="onnxslim"))[0][1] == ["`net`", "torchscript", "9", "✅"]
