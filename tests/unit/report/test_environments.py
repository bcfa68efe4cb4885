"""Reports of the same cells with other versions: their cells stand side by side, and what differs is named."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from toolbox.records import cell, failed, passed, report, run_of, setting, skipped

from onnx_ci import ConfigurationError, Problem, RunReport
from onnx_ci.config.reproduce import repeat_from
from onnx_ci.report import html, junit, markdown
from onnx_ci.report.comparison import Movement, compare_runs
from onnx_ci.report.environments import describe_failing_environments, names_of
from onnx_ci.report.merge import merge
from onnx_ci.report.pull_request import headline
from onnx_ci.report.text import summary_lines


def run_with(versions, *results, **changes):
    """A report of a run with these versions."""
    return dataclasses.replace(report(*results, **changes), environment=versions, settings={"max-drift": setting("16")})


def merged(*reports, **options):
    return merge([(f"{number}.json", each) for number, each in enumerate(reports)], **options)


OLD, NEW = {"torch": "2.13.0", "numpy": "2.4.0"}, {"torch": "2.15.0", "numpy": "2.4.0"}


def test_cells_that_two_versions_judge_differently_stand_side_by_side():
    whole = merged(
        run_with(OLD, passed(), passed(opset=10), passed(recipe="other"), seconds=1.0),
        run_with(NEW, failed(), passed(opset=10), passed(recipe="other"), seconds=2.0),
    )
    assert [(each.cell.id.removeprefix("a/b.py::"), each.status.value) for each in whole.cells] == [
        ("net::opset9-cpu@torch==2.13.0", "passed"),
        ("net::opset9-cpu@torch==2.15.0", "failed"),
        ("net::opset10-cpu@torch==2.13.0", "passed"),
        ("net::opset10-cpu@torch==2.15.0", "passed"),
        ("other::opset9-cpu@torch==2.13.0", "passed"),
        ("other::opset9-cpu@torch==2.15.0", "passed"),
    ]
    assert (whole.verdict, whole.seconds) == ("failed", 3.0)
    lines = summary_lines(whole)
    assert lines[:5] == [
        "opset                      9   10",
        "net cpu torch 2.13.0     1.5  1.5",
        "net cpu torch 2.15.0    FAIL  1.5",
        "other cpu torch 2.13.0   1.5    ·",
        "other cpu torch 2.15.0   1.5    ·",
    ]
    assert "net at opset 9 on cpu passes with torch 2.13.0 and not with torch 2.15.0: only torch differs" in lines
    assert RunReport.from_json(json.loads(json.dumps(whole.as_json()))) == whole


def test_versions_that_agree_are_one_environment():
    whole = merged(run_with(OLD, passed(), passed(opset=10)), run_with(NEW, passed(), seconds=2.0))
    assert [each.cell.environment for each in whole.cells] == [None, None]


def test_runs_with_the_same_versions_that_contradict_each_other_are_refused_beside_others():
    with pytest.raises(ConfigurationError, match=r"0\.json and 1\.json contradict each other about a/b\.py::net::opset9-cpu"):
        merged(run_with(OLD, passed()), run_with(OLD, failed(), seconds=2.0), run_with(NEW, failed(), seconds=3.0))


def test_a_merged_report_of_several_versions_cannot_be_taken_apart_again():
    agreeing = merged(run_with(OLD, passed()), run_with(NEW, passed(opset=10)))
    with pytest.raises(ConfigurationError, match="contradict each other"):
        merged(agreeing, run_with({"torch": "2.16.0"}, failed()))


def test_a_merge_of_versions_can_be_merged_with_what_is_left():
    part = merged(run_with(OLD, passed()), run_with(NEW, failed()))
    whole = merged(part, run_with({"torch": "2.12.0"}, passed(recipe="other")))
    assert [each.cell.label for each in whole.cells] == ["opset9-cpu@torch==2.13.0", "opset9-cpu@torch==2.15.0", "opset9-cpu"]


@pytest.mark.parametrize(
    ("environments", "names"),
    [
        ([OLD, NEW], ["torch==2.13.0", "torch==2.15.0"]),
        (
            [{"torch": "2", "onnxruntime": "1"}, {"torch": "2", "onnxruntime": "2"}, {"torch": "3", "onnxruntime": "2"}],
            ["torch==2,onnxruntime==1", "torch==2,onnxruntime==2", "torch==3,onnxruntime==2"],
        ),
        ([{"torch": "2", "onnxruntime": "1"}, {"torch": "2"}], ["onnxruntime==1", "onnxruntime==none"]),
        ([{"platform": "Linux 6 (x)", "zoo": "1"}, {"platform": "Mac", "zoo": "2"}], ["zoo==1", "zoo==2"]),
        ([{"platform": "Linux 6 (x)"}, {"platform": "Mac"}], ["platform==Linux_6__x_", "platform==Mac"]),
    ],
)
def test_an_environment_is_called_after_what_sets_it_apart(environments, names):
    assert names_of(environments) == names
    for name in names:
        named = cell(environment=name)
        assert type(named).from_id(named.id) == named


NINE, TEN = cell(opset=9), cell(opset=10)


def test_a_shard_that_one_environment_lacks_is_missing():
    first, second = {"in_other_jobs": (TEN.id,)}, {"in_other_jobs": (NINE.id,)}
    reports = [
        run_with(OLD, passed(), **first), run_with(OLD, passed(opset=10), **second), run_with(NEW, failed(), **first),
    ]  # fmt: skip
    for order in itertools.permutations(reports):
        whole = merged(*order)
        assert (whole.not_run, whole.in_other_jobs) == ((f"{TEN.id}@torch==2.15.0",), ())
        assert merge([("part", merged(*order, is_part=True))]) == whole
    last = run_with(NEW, passed(opset=10), **second)
    assert not merged(*reports, last).not_run


def test_a_shard_that_one_environment_lacks_is_missing_although_what_ran_agrees():
    first, second = {"in_other_jobs": (TEN.id,)}, {"in_other_jobs": (NINE.id,)}
    old = [run_with(OLD, passed(), **first), run_with(OLD, passed(opset=10), **second)]
    new = run_with(NEW, passed(), **first)
    whole = merged(*old, new)
    assert (whole.not_run, whole.verdict) == ((f"{TEN.id}@torch==2.15.0",), "failed")
    last = run_with(NEW, passed(opset=10), **second)
    whole = merged(*old, new, last)
    assert (whole.not_run, [each.cell.environment for each in whole.cells]) == ((), [None, None])


def test_what_a_plan_names_is_expected_with_all_versions():
    plan = report(in_other_jobs=(NINE.id, TEN.id))
    whole = merged(plan, run_with(OLD, passed(), passed(opset=10)), run_with(NEW, failed()))
    assert whole.not_run == (f"{TEN.id}@torch==2.15.0",)


def test_what_only_a_machine_with_a_gpu_can_judge_is_not_expected_of_others():
    on_gpu = cell(device="cuda").id
    plan = report(in_other_jobs=(NINE.id, on_gpu))
    whole = merged(
        plan,
        run_with(OLD, passed(), skipped(device="cuda")),
        run_with(NEW, failed(), in_other_jobs=(on_gpu,)),
        run_with({"torch": "2.13.0", "onnxruntime-gpu": "1"}, passed(device="cuda")),
    )
    assert not whole.not_run
    assert [(each.cell.label.partition("@")[0], each.status.value) for each in whole.cells] == [
        ("opset9-cpu", "passed"), ("opset9-cpu", "failed"), ("opset9-cuda", "passed"),
    ]  # fmt: skip


def test_an_environment_in_which_nothing_ran_keeps_its_problem():
    broken = Problem(source="a/b.py", message="no module named zoo")
    whole = merged(
        run_with(OLD, passed()), run_with(NEW, failed()), run_with({"torch": "2.16.0", "numpy": "2.4.0"}, problems=(broken,))
    )
    assert [each.message for each in whole.problems] == ["with torch 2.16.0: no module named zoo"]


def test_a_cell_is_repeated_with_its_own_versions(tmp_path):
    whole = merged(run_with(OLD, passed()), run_with(NEW, failed()))
    command = repeat_from(whole, tmp_path)(whole.cells[1].cell)
    assert "--select=net::opset9-cpu " in command
    assert command.endswith("  # with torch 2.15.0")


@pytest.mark.parametrize(
    ("passing", "said"),
    [
        ({**NEW, "numpy": "2.3.0"}, "numpy 2.3.0 and not with numpy 2.4.0: only numpy differs"),
        (
            {"torch": "2.13.0", "numpy": "2.3.0"},
            (
                "torch 2.13.0 and not with torch 2.15.0: the runs differ in torch 2.13.0 and 2.15.0 and numpy 2.3.0 and 2.4.0, and "
                "onnx-ci upgrade tells which package it is"
            ),
        ),
    ],
)
def test_what_two_environments_differ_in_may_be_why_a_cell_fails(passing, said):
    whole = merged(run_with(passing, passed()), run_with(NEW, failed()))
    assert describe_failing_environments(whole) == [f"net at opset 9 on cpu passes with {said}"]


def test_of_several_environments_that_pass_the_nearest_is_told():
    whole = merged(
        run_with({"torch": "2.13.0", "numpy": "2.3.0"}, passed(), passed(opset=10)),
        run_with({"torch": "2.15.0", "numpy": "2.3.0"}, passed(), failed(opset=10)),
        run_with(NEW, failed(), failed(opset=10)),
    )
    said = (
        "net at opset 9 on cpu passes with torch 2.15.0, numpy 2.3.0 and not with torch 2.15.0, numpy 2.4.0: only numpy differs"
    )
    assert describe_failing_environments(whole)[0] == said


def test_no_version_is_blamed_for_what_fails_with_all():
    assert not describe_failing_environments(
        merged(run_with(OLD, failed(), passed(opset=10)), run_with(NEW, failed(), failed(opset=10, recipe="x")))
    )
    assert not describe_failing_environments(merged(run_with(OLD, failed(), passed(opset=10)), run_with(NEW, failed())))


def test_the_other_forms_of_a_report_name_the_versions(tmp_path):
    whole = merged(run_with(OLD, passed()), run_with(NEW, failed()))
    repeat = repeat_from(whole, tmp_path)
    for text in (markdown.render(whole, repeat), html.render(whole, repeat)):
        assert "net cpu torch 2.15.0" in text
        assert "passes with torch 2.13.0 and not with torch 2.15.0" in text
    assert 'name="opset9-cpu@torch==2.15.0"' in junit.render(whole, repeat)
    assert headline(compare_runs(whole, None)) == "1 of 2 cells failed: net at opset 9 on cpu with torch 2.15.0"


def test_a_version_that_moves_on_is_compared_with_the_one_before_it():
    def both(new, result):
        return merged(run_with(OLD, passed()), run_with({"torch": new, "numpy": "2.4.0"}, result))

    before, after = both("2.15.0", passed(2.5)), both("2.15.1", failed())
    comparison = compare_runs(after, before)
    assert [(each.cell.label, each.movement) for each in comparison.news] == [("opset9-cpu@torch==2.15.1", Movement.BROKE)]
    assert compare_runs(before, before).moved == ()


def test_a_second_environment_is_compared_with_the_run_that_was_alone():
    comparison = compare_runs(merged(run_with(OLD, passed()), run_with(NEW, failed())), run_of(passed()))
    assert {each.cell.label: each.movement for each in comparison.moved} == {
        "opset9-cpu@torch==2.15.0": Movement.BROKE,
    }
