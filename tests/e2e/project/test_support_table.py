"""``docs/support_table.py`` and ``docs/tables.py``: what works from which opset, and whether the data still says so."""

from __future__ import annotations

import json
import sys

import pytest
from support_table import support_data
from tables import by_opset, format_data, headline, lowest_safe, render_corpus, render_support, table
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
    lines = render_support(support_data(report(*results, **changes))).splitlines()
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
    (row,) = support_data(report(*map(result, passed), *(result(opset, DRIFT) for opset in failed)))["rows"]
    assert lowest_safe(by_opset(row)) == safe


def test_exporters_have_rows_of_their_own_beside_their_recipe():
    rows, _ = table_of(result(9), result(9, recipe="other"), result(9, ELSEWHERE, exporter="dynamo"))
    assert rows == [
        ["recipe", "exporter", "safe from", "9"],
        ["`net`", "torchscript", "9", "✅"],
        ["`net`", "dynamo", "–", "→18"],
        ["`other`", "torchscript", "9", "✅"],
    ]


def test_versions_are_those_of_the_run_without_the_build():
    one = report(result(9))
    run = type(one)(environment={"python": "3.11.1", "torch": "2.13.0+cpu", "onnx": "1.23.2"}, settings={}, cells=one.cells)
    assert render_support(support_data(run)).splitlines()[0] == "Made with torch 2.13.0, onnx 1.23.2."


def test_text_of_a_report_is_no_markup():
    _, notes = table_of(result(9, finding("unsupported-operator", "<b>\n# *bold* |", operator="a`b|c")))
    assert notes == [
        "- `net`, torchscript, opset 9: unsupported, <code>a&#96;b&#124;c</code>: &lt;b&gt; &#35; &#42;bold&#42; &#124;"
    ]


@pytest.mark.parametrize("other", [{"graph_pass": "onnxslim"}, {"device": "cuda"}])
def test_the_files_of_passes_and_other_devices_are_not_in_the_table(other):
    assert table_of(result(9), result(9, DRIFT, **other))[0][1] == ["`net`", "torchscript", "9", "✅"]


# --- the files


def script(project, *arguments):
    return project.run(sys.executable, str(ROOT / "docs" / "support_table.py"), *arguments)


def test_the_data_is_written_and_checked(project):
    write_json(report(result(9), result(10, DRIFT)), project.root / "r.json")
    file = project.write("data.json", "old\n")
    stale = script(project, "r.json", "--check=data.json")
    assert (stale.returncode, "-old" in stale.stdout.splitlines()) == (1, True)
    assert stale.stderr == "data.json is outdated; run the same command with --write=data.json\n"
    assert file.read_text() == "old\n"
    assert script(project, "r.json", "--write=data.json").returncode == 0
    assert file.read_text() == script(project, "r.json").stdout
    assert script(project, "r.json", "--check=data.json").returncode == 0


@pytest.mark.parametrize("name", ["support", "operators", "corpus"])
def test_the_data_in_docs_is_as_it_would_be_written_and_its_page_shows_it(name):
    text = (ROOT / "docs" / "data" / f"{name}.json").read_text(encoding="utf-8")
    assert text == format_data(json.loads(text))
    assert f"\n<!-- table: {name} -->\n" in (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert table(name).startswith("Made with onnx-ci ")


def test_architectures_are_shown_by_file_and_failures_with_their_evidence():
    net = {"source": "architectures/a.py", "recipe": "net", "exporter": "torchscript", "opset": 17}
    cells = [
        {**net, "outcome": "passed"},
        {
            **net,
            "exporter": "dynamo",
            "opset": 18,
            "outcome": "known",
            "rules": ["crash"],
            "why": "a_b",
            "evidence": "`x` | <y>",
        },
        {**net, "recipe": "other", "outcome": "warned", "warnings": ["edge-mismatch"]},
    ]
    assert headline(cells) == (
        "**2 architectures, 3 cells**; 2 passed, 1 of them with a warning (⚠️); 1 fail as they are known to (❌); "
        "none fails otherwise; 0 internal errors."
    )
    assert render_corpus({"versions": {"torch": "2.13.0"}, "cells": cells}).splitlines() == [
        "Made with torch 2.13.0.",
        "",
        headline(cells),
        "",
        "### [a.py](../corpus/architectures/a.py)",
        "",
        "| architecture | TorchScript, opset 17 | dynamo, opset 18 |",
        "| --- | :-: | :-: |",
        "| `net` | ✅ | ❌ |",
        "| `other` | ⚠️ | · |",
        "",
        "### Known failures",
        "",
        "| architecture | exporter | breaks | why | evidence |",
        "| --- | --- | --- | --- | --- |",
        "| `net` | dynamo | `crash` | a&#95;b | `x` \\| &lt;y> |",
        "",
        "### Warnings",
        "",
        "- [`edge-mismatch`](rules/edge-mismatch.md): `other` (torchscript)",
    ]


@pytest.mark.parametrize(
    ("cells", "not_run", "message"),
    [((), (), "contain no cells"), ((9,), ("a/b.py::net::opset10-cpu",), "stopped before 1 of its cells ran, first a/b.py")],
)
def test_a_table_of_less_than_a_whole_run_is_refused(project, cells, not_run, message):
    write_json(report(*map(result, cells), not_run=not_run), project.root / "r.json")
    done = script(project, "r.json")
    assert (done.returncode, done.stdout, message in done.stderr) == (1, "", True)
