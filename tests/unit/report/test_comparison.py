"""Two reports compared: what moved is what a reader should see, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from toolbox.records import cell, facts, failed, passed, report, run_of, skipped, warned, with_facts

from onnx_ci import Problem, Status
from onnx_ci.config.values import BASELINE_LIMITS
from onnx_ci.report.comparison import Movement, changed_rows, compare_runs
from onnx_ci.results.rules import finding

PROBLEM = Problem(source="c.py", message="cannot be imported")


def movements(after, before):
    return {(each.movement, each.cell.recipe, each.cell.opset) for each in compare_runs(after, before).news}


@pytest.mark.parametrize(
    ("before", "after", "movement"),
    [
        (passed(), passed(), None),
        (failed(), failed(), None),
        (skipped(), skipped(), None),
        (passed(), failed(), Movement.BROKE),
        (skipped(), failed(), Movement.BROKE),
        (failed(), passed(), Movement.FIXED),
        (failed(), replace(failed(), findings=(finding("checker", "bad"),)), Movement.FAILS_DIFFERENTLY),
        (passed(), skipped(), Movement.CHANGED),
        (passed(), warned(), Movement.WARNS),
        (warned(), passed(1.5), Movement.CHANGED),
        (warned(), warned(), None),
        (passed(), replace(passed(), cached=True, timings={"run": 9.0}, log="other"), None),
        (replace(passed(), timings={"run": 1.0}), replace(passed(), timings={"run": 9.0}), None),
        (passed(), passed(9.0), Movement.CHANGED),
        (with_facts(passed()), with_facts(passed()), None),
        (with_facts(passed()), with_facts(passed(1.9)), None),
        (with_facts(passed()), with_facts(passed(9.0)), Movement.CHANGED),
        (with_facts(passed()), with_facts(passed(), size=1030), None),
        (with_facts(passed()), with_facts(passed(), size=1100), Movement.CHANGED),
        (with_facts(passed()), with_facts(passed(), operators={"Conv": 3, "Relu": 1}), Movement.CHANGED),
        (with_facts(passed()), with_facts(passed(), output="z"), Movement.CHANGED),
        (passed(), with_facts(passed()), None),
    ],
)
def test_a_cell_moves_where_its_verdict_or_its_file_does(before, after, movement):
    found = compare_runs(report(after), report(before))
    assert [each.movement for each in found.news] == ([] if movement is None else [movement])
    assert found.is_news == (movement is not None)


def test_another_message_of_the_same_failure_is_no_news():
    other = replace(failed(), findings=(finding("numeric-drift", "off by 3.01"),))
    assert not compare_runs(report(other), report(failed())).is_news


def test_cells_come_and_go_only_where_both_runs_should_have_the_same():
    head, base = (passed(opset=9), passed(opset=10)), (passed(opset=9), passed(opset=11))
    assert movements(report(*head), report(*base)) == {(Movement.GONE, "net", 11), (Movement.NEW, "net", 10)}
    part, all_of_them = run_of(*head, settings={"opsets": "9-10"}), run_of(*base, settings={"opsets": "9-11"})
    assert movements(part, all_of_them) == set()
    assert {each.movement for each in compare_runs(part, all_of_them).moved} == {Movement.GONE, Movement.NEW}


def test_a_new_cell_that_fails_broke_whatever_was_selected():
    part, all_of_them = run_of(failed(), settings={"select": "net"}), run_of(settings={})
    assert movements(part, all_of_them) == {(Movement.BROKE, "net", 9)}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("opsets", "9-17", "13"),
        ("select", None, "net*"),
        ("recipe-files", "onnx_recipes.py", "other.py"),
        ("rules", None, "numeric-drift=ignore"),
        ("max-drift", "16", "1000"),
        ("strict", "true", "false"),
        ("effort", "full", "quick"),
    ],
)
def test_another_setting_of_what_is_checked_is_news(name, before, after):
    head, base = (run_of(passed(), settings={name: value}) for value in (after, before))
    found = compare_runs(head, base)
    assert found.news == ()
    assert found.settings == (f"{name} {before or 'none'} → {after or 'none'}",)
    assert found.is_news


@pytest.mark.parametrize("name", ["jobs", "cache", "junit", "baseline-folder"])
def test_a_setting_that_decides_nothing_about_cells_is_no_news(name):
    head, base = (run_of(passed(), settings={name: value}) for value in ("1", "2"))
    assert compare_runs(head, base).settings == ()
    assert not compare_runs(head, base).is_news


def test_without_a_base_no_setting_is_another():
    assert compare_runs(run_of(passed()), None).settings == ()


@pytest.mark.parametrize("why", [{"problems": (PROBLEM,)}, {"not_run": ("a/b.py::net::opset10-cpu",)}])
def test_cells_are_not_gone_where_it_is_known_why_they_are_missing(why):
    found = compare_runs(report(passed(), **why), report(passed(), passed(opset=10)))
    assert found.news == ()
    assert found.is_news


def test_a_problem_that_was_there_is_no_news():
    assert not compare_runs(report(passed(), problems=(PROBLEM,)), report(passed(), problems=(PROBLEM,))).is_news


def test_without_a_base_what_fails_is_news_and_nothing_else():
    assert not compare_runs(report(passed()), None).is_news
    assert compare_runs(report(failed()), None).is_news
    assert compare_runs(report(passed(), problems=(PROBLEM,)), None).is_news
    assert compare_runs(report(skipped()), None).is_news
    assert [each.movement for each in compare_runs(report(failed()), None).news] == [Movement.BROKE]


def test_the_most_important_comes_first_and_what_fails_as_before_is_counted():
    base = report(passed(opset=9), failed(opset=10), failed(opset=11), with_facts(passed(opset=12)))
    head = report(with_facts(passed(opset=12), size=9000), passed(opset=10), failed(opset=11), failed(opset=9))
    found = compare_runs(head, base)
    assert [each.movement for each in found.news] == [Movement.BROKE, Movement.CHANGED, Movement.FIXED]
    assert found.as_before == 1
    assert [each.status for each in found.results(Movement.BROKE, Movement.FIXED)] == [Status.FAILED, Status.PASSED]


# --- measures -----------------------------------------------------------------------------------------------------------


def moves(before, after):
    """The measures that moved in one cell."""
    return [
        (move.words, move.before, move.after)
        for each in compare_runs(report(after), report(before)).moved
        for move in each.measures
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (passed(), failed(), [("worse verdict", "passed", "failed")]),
        (failed(), passed(), [("better verdict", "failed", "passed")]),
        (passed(), skipped(), [("worse verdict", "passed", "skipped")]),
        (passed(3.0), passed(13.0), [("larger drift", "3", "13")]),
        (passed(13.0), passed(3.0), [("smaller drift", "13", "3")]),
        (passed(3.0), passed(math.nan), [("larger drift", "3", "nan")]),
        (passed(math.nan), passed(math.nan), []),
        (passed(3.0), passed(11.0), []),
        (passed(0.001), passed(1.9), []),  # that much varies from machine to machine
    ],
)
def test_verdicts_and_drift(before, after, said):
    assert moves(before, after) == said


def test_sizes_and_times():
    def measured(file_bytes, seconds, **changes):
        return replace(passed(), facts=facts(file_bytes=file_bytes), timings={"export": seconds, "run": seconds}, **changes)

    assert moves(measured(1000, 2.0), measured(1040, 3.0)) == []
    assert moves(measured(1000, 0.01), measured(1000, 0.4)) == [], "a large factor of next to nothing"
    assert moves(measured(1000, 2.0), measured(1200, 4.0)) == [
        ("larger file size", "1000 bytes", "1.172 KiB"),
        ("longer time", "4.0 s", "8.0 s"),
    ]
    assert moves(measured(1000, 4.0), measured(1000, 2.0)) == [("shorter time", "8.0 s", "4.0 s")]
    assert moves(measured(1000, 4.0), measured(1000, 0.0, cached=True)) == [], "a cached verdict took no time"


def test_the_limits_of_the_project_decide():
    before, after = report(with_facts(passed())), report(with_facts(passed(9.0), size=1100))
    assert compare_runs(after, before, {**BASELINE_LIMITS, "size": 0.2, "drift": 8.0}).moved == ()


@pytest.mark.parametrize(
    ("before", "after", "in_words"),
    [
        (with_facts(passed()), with_facts(passed(), operators={"Conv": 3, "Relu": 1}), [("operators", "+1 Conv")]),
        (with_facts(passed()), with_facts(passed(9.0), size=1100), []),  # measures show both
        (passed(), warned(), []),
        (failed(), replace(failed(), findings=(finding("checker", "bad"),)), [("rules", "rules numeric-drift → checker")]),
        (failed(), passed(), []),  # the verdict says so
    ],
)
def test_what_no_measure_shows_is_told_in_words(before, after, in_words):
    assert [words for each in compare_runs(report(after), report(before)).moved for words in each.unmeasured] == in_words


def test_cells_of_one_recipe_are_one_row_with_the_one_that_moved_most():
    before = report(
        *(passed(2.0, opset=opset) for opset in (9, 10, 11)), passed(recipe="other"), with_facts(passed(recipe="file"))
    )
    after = report(
        *(passed(10.0), passed(15.0, opset=10), passed(2.0, opset=11)),
        failed(recipe="other"),
        with_facts(passed(recipe="file"), output="z"),
        passed(recipe="new"),
    )
    compared = compare_runs(after, before)
    assert [(row.title, row.opsets, row.cell.opset, row.mark, row.words, row.after) for row in changed_rows(compared)] == [
        ("other cpu", "9", 9, "worse", "worse verdict", "failed"),
        ("net cpu", "9-10", 10, "worse", "larger drift", "15"),
        ("file cpu", "9", 9, "", "output 'y' renamed to 'z'", ""),
    ]
    assert {each.cell: each.mark for each in compared.moved if each.mark} == {
        cell(): "worse",
        cell(opset=10): "worse",
        cell(recipe="other"): "worse",
    }


def test_totals_are_of_the_cells_that_both_runs_measured():
    before = report(replace(passed(1.0), timings={"run": 2.0}), passed(2.0, opset=10), passed(9.0, opset=11))
    after = report(replace(passed(2.0), timings={"run": 3.0}), passed(4.0, opset=10), failed(opset=11))
    assert [(each.title, each.cells, each.before, each.after, each.change) for each in compare_runs(after, before).totals] == [
        ("drift of passed cells, median", 2, "1.5", "3", "+100 %"),
        ("time, total", 1, "2.0 s", "3.0 s", "+50 %"),
    ]


def test_versions_that_differ_are_named():
    assert compare_runs(run_of(passed()), run_of(passed(), torch="2.12.0")).versions == "torch 2.12.0 → 2.13.0"
    assert compare_runs(run_of(passed()), None).versions == ""
