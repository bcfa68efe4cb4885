"""``onnx-ci report``: what it prints, and the page of a run, compared with an earlier one."""

from __future__ import annotations

from toolbox.records import failed, passed, report

from onnx_ci.results.files import write_json

PASSED, FAILED, USAGE = 0, 1, 2


def test_a_page_says_what_moved_since_an_earlier_report(project):
    write_json(report(passed(12.0)), project.root / "now.json")
    write_json(report(passed(0.5)), project.root / "main" / "before.json")
    done = project.in_process("report", "now.json", "--html=page.html", "--since=main", "-q")
    assert (done.returncode, done.stderr) == (PASSED, "")
    page = (project.root / "page.html").read_text(encoding="utf-8")
    assert "Compared with main:" in page
    assert "drift 12 of 32; before: drift 0.5 of 32" in page


def test_an_earlier_report_is_for_the_page_and_must_exist(project):
    write_json(report(passed()), project.root / "now.json")
    done = project.in_process("report", "now.json", "--since=now.json")
    assert (done.returncode, "--since needs --html=PATH" in done.stderr) == (USAGE, True)
    done = project.in_process("report", "now.json", "--html=page.html", "--since=gone.json")
    assert "the report gone.json cannot be read" in done.stderr
    assert done.returncode == USAGE
    assert not (project.root / "page.html").exists()


def test_cells_with_one_cause_are_one_line_as_in_a_run(project):
    cells = [failed(opset=opset) for opset in (11, 12, 13)]
    write_json(report(*cells, failed(recipe="lstm"), passed(opset=14)), project.root / "now.json")
    done = project.in_process("report", "now.json")
    assert done.returncode == FAILED
    assert done.stdout.startswith("a/b.py::net  opsets 11-13 on cpu  failed (numeric-drift)\na/b.py::lstm::opset9-cpu failed")
    assert "a/b.py::net::opset1" not in done.stdout.partition("\n\n")[0]
    each = project.in_process("report", "now.json", "-v").stdout
    assert all(f"\n{result.cell.id} failed" in f"\n{each}" for result in cells)
