"""Two reports compared: what moved is what a reader should see, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from toolbox.records import failed, passed, report, run_of, skipped, warned, with_facts

from onnx_ci import Problem, Status
from onnx_ci.report.comparison import Movement, compare
from onnx_ci.results.rules import finding

PROBLEM = Problem(source="c.py", message="cannot be imported")


def movements(head, base):
    return {(each.movement, each.cell.recipe, each.cell.opset) for each in compare(head, base).moved}


@pytest.mark.parametrize(
    ("before", "after", "movement"),
    [
        (passed(), passed(), None),
        (failed(), failed(), None),
        (skipped(), skipped(), None),
        (passed(), failed(), Movement.BROKE),
        (skipped(), failed(), Movement.BROKE),
        (failed(), passed(), Movement.FIXED),
        (failed(), dataclasses.replace(failed(), findings=(finding("checker", "bad"),)), Movement.FAILS_DIFFERENTLY),
        (passed(), skipped(), Movement.CHANGED),
        (passed(), warned(), Movement.CHANGED),
        (passed(), dataclasses.replace(passed(), cached=True, timings={"run": 9.0}, log="other"), None),
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
    found = compare(report(after), report(before))
    assert [each.movement for each in found.moved] == ([] if movement is None else [movement])
    assert found.is_news == (movement is not None)


def test_another_message_of_the_same_failure_is_no_news():
    other = dataclasses.replace(failed(), findings=(finding("numeric-drift", "off by 3.01"),))
    assert not compare(report(other), report(failed())).is_news


def test_cells_come_and_go_only_where_both_runs_should_have_the_same():
    head, base = (passed(opset=9), passed(opset=10)), (passed(opset=9), passed(opset=11))
    assert movements(report(*head), report(*base)) == {(Movement.GONE, "net", 11), (Movement.NEW, "net", 10)}
    part, all_of_them = run_of(*head, settings={"opsets": "9-10"}), run_of(*base, settings={"opsets": "9-11"})
    assert movements(part, all_of_them) == set()


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
        ("allow", None, "checker"),
        ("strict", "true", "false"),
        ("skip-stages", None, "edges"),
    ],
)
def test_another_setting_of_what_is_checked_is_news(name, before, after):
    head, base = (run_of(passed(), settings={name: value}) for value in (after, before))
    found = compare(head, base)
    assert found.moved == ()
    assert [(each.name, each.before, each.after) for each in found.settings] == [(name, before, after)]
    assert found.is_news


@pytest.mark.parametrize("name", ["jobs", "cache", "junit", "baseline-folder"])
def test_a_setting_that_decides_nothing_about_cells_is_no_news(name):
    head, base = (run_of(passed(), settings={name: value}) for value in ("1", "2"))
    assert compare(head, base).settings == ()
    assert not compare(head, base).is_news


def test_without_a_base_no_setting_is_another():
    assert compare(run_of(passed()), None).settings == ()


@pytest.mark.parametrize("why", [{"problems": (PROBLEM,)}, {"not_run": ("a/b.py::net::opset10-cpu",)}])
def test_cells_are_not_gone_where_it_is_known_why_they_are_missing(why):
    found = compare(report(passed(), **why), report(passed(), passed(opset=10)))
    assert found.moved == ()
    assert found.is_news


def test_a_problem_that_was_there_is_no_news():
    assert not compare(report(passed(), problems=(PROBLEM,)), report(passed(), problems=(PROBLEM,))).is_news


def test_without_a_base_what_fails_is_news_and_nothing_else():
    assert not compare(report(passed()), None).is_news
    assert compare(report(failed()), None).is_news
    assert compare(report(passed(), problems=(PROBLEM,)), None).is_news
    assert compare(report(skipped()), None).is_news
    assert [each.movement for each in compare(report(failed()), None).moved] == [Movement.BROKE]


def test_the_most_important_comes_first_and_what_fails_as_before_is_counted():
    base = report(passed(opset=9), failed(opset=10), failed(opset=11), with_facts(passed(opset=12)))
    head = report(with_facts(passed(opset=12), size=9000), passed(opset=10), failed(opset=11), failed(opset=9))
    found = compare(head, base)
    assert [each.movement for each in found.moved] == [Movement.BROKE, Movement.CHANGED, Movement.FIXED]
    assert found.as_before == 1
    assert [each.status for each in found.results(Movement.BROKE, Movement.FIXED)] == [Status.FAILED, Status.PASSED]
