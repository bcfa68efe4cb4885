"""What moved from one run to the next."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from toolbox.records import cell, facts, failed, passed, report, run_of, skipped

from onnx_ci import Revision
from onnx_ci.config.values import BASELINE_LIMITS
from onnx_ci.report.since import since


def moves(before, now):
    """What moved in one cell, in words."""
    compared = since(report(now), report(before), "main.json", BASELINE_LIMITS)
    found = compared.moves.get(now.cell.id, ())
    return [(each.measure.value, each.before, each.now, each.direction) for each in found]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (passed(), failed(), [("verdict", "passed", "failed", "worse")]),
        (failed(), passed(), [("verdict", "failed", "passed", "better")]),
        (passed(), skipped(), [("verdict", "passed", "skipped", "worse")]),
        (passed(3.0), passed(13.0), [("drift", "3", "13", "larger")]),
        (passed(13.0), passed(3.0), [("drift", "13", "3", "smaller")]),
        (passed(3.0), passed(math.nan), [("drift", "3", "nan", "larger")]),
        (passed(math.nan), passed(math.nan), []),
        (passed(3.0), passed(11.0), []),
        (passed(0.001), passed(1.9), []),  # that much varies from machine to machine
    ],
)
def test_verdicts_and_drift(before, now, said):
    assert moves(before, now) == said


def test_sizes_and_times():
    def measured(file_bytes, seconds, **changes):
        return replace(passed(), facts=facts(file_bytes=file_bytes), timings={"export": seconds, "run": seconds}, **changes)

    assert moves(measured(1000, 2.0), measured(1040, 3.0)) == []
    assert moves(measured(1000, 0.01), measured(1000, 0.4)) == [], "a large factor of next to nothing"
    assert moves(measured(1000, 2.0), measured(1200, 4.0)) == [
        ("file size", "1000 bytes", "1.172 KiB", "larger"),
        ("time", "4.0 s", "8.0 s", "longer"),
    ]
    assert moves(measured(1000, 4.0), measured(1000, 2.0)) == [("time", "8.0 s", "4.0 s", "shorter")]
    assert moves(measured(1000, 4.0), measured(1000, 0.0, cached=True)) == [], "a cached verdict took no time"


def test_cells_of_one_recipe_are_one_row_with_the_one_that_moved_most():
    before = report(*(passed(2.0, opset=opset) for opset in (9, 10, 11)), passed(recipe="other"), passed(recipe="old"))
    now = report(passed(10.0), passed(15.0, opset=10), passed(2.0, opset=11), failed(recipe="other"), passed(recipe="new"))
    compared = since(now, before, "main.json", BASELINE_LIMITS)
    assert [(each.title, each.opsets, each.cell.opset, each.move.now) for each in compared.rows] == [
        ("other cpu", "9", 9, "failed"),
        ("net cpu", "9-10", 10, "15"),
    ]
    assert (compared.added, compared.removed) == (1, [cell(recipe="old").id])
    marks = [compared.mark(result.cell) for result in now.cells]
    assert marks == ["worse", "worse", "", "worse", ""]


def test_totals_are_of_the_cells_that_both_runs_measured():
    before = report(replace(passed(1.0), timings={"run": 2.0}), passed(2.0, opset=10), passed(9.0, opset=11))
    now = report(replace(passed(2.0), timings={"run": 3.0}), passed(4.0, opset=10), failed(opset=11))
    totals = since(now, before, "main.json", BASELINE_LIMITS).totals
    assert [(each.title, each.cells, each.before, each.now, each.change) for each in totals] == [
        ("drift of passed cells, median", 2, "1.5", "3", "+100 %"),
        ("time, total", 1, "2.0 s", "3.0 s", "+50 %"),
    ]


def test_the_earlier_run_is_named_with_its_commit_and_its_versions():
    revision = Revision(commit="a1b2c3d4" * 5, branch="main", is_modified=False)
    compared = since(run_of(passed()), run_of(passed(), torch="2.12.0", revision=revision), "main.json", BASELINE_LIMITS)
    assert compared.name == "main.json (a1b2c3d on main)"
    assert compared.versions == "torch 2.12.0 → 2.13.0"
