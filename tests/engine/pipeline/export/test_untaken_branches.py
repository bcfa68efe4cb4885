"""What an export's report says of branches whose other side no input takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toolbox.cells import ROWS, recipe_of, rules, run_one

import onnx_ci
from onnx_ci.pipeline.export.exporter_warnings import judge_branches, without_those_at
from onnx_ci.pipeline.export.handling import Handling, handling_of
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.inputs.conditions import Condition
from onnx_ci.processes.capture import Notice

X = torch.tensor([[1.0, 2.0, -0.5, 0.3], [0.1, 0.2, 0.3, 0.4], [2.0, 1.0, 0.5, 0.25]])
EXPORTERS = {"torchscript": {"exporters": "torchscript", "opsets": "17"}, "dynamo": {"exporters": "dynamo", "opsets": "18"}}
BOOLEAN = "Converting a tensor to a Python boolean might cause the trace to be incorrect."
INTEGER = "Converting a tensor to a Python integer might cause the trace to be incorrect."


def result_of(function, exporter="torchscript", **keywords):
    return run_one(recipe_of(function, X, **{**ROWS, **keywords}), **EXPORTERS[exporter])


def more_rows(x):
    if x.shape[0] > 100:
        return x / 10
    return x * 2


def more_rows_equal(x):
    if x.shape[0] > 100:
        return x + x
    return x * 2


def far_away(x):
    if x.shape[0] > 10**9:
        return x / 10
    return x * 2


class FarAway(torch.nn.Module):
    """Of one argument: dynamo's export warns of the variadic ones of other models here."""

    def forward(self, x):
        return far_away(x)


def far_away_but_kept(x):
    return x[: min(x.shape[0], 10**9)] * 2


def raises(x):
    if x.shape[0] > 10**9:
        raise ValueError("too many rows")
    return x * 2


def large(x):
    if x.abs().max() > 1e6:
        return x / 10
    return x * 2


def never_in_a_trace(x):
    if not torch.jit.is_tracing() and not torch.compiler.is_exporting() and x.shape[0] > 10**9:
        return x + x
    return x * 2


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_file_is_wrong_on_the_input_that_takes_the_other_side(exporter):
    result = result_of(more_rows, exporter)
    assert rules(result) == ["baked-value"]
    (found,) = (each for each in result.findings if each.rule == "baked-value")
    assert found.probe == f"branch at {Path(__file__).name}:{more_rows.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("function", [more_rows_equal, raises])
def test_a_file_is_right_if_the_other_side_is_the_same_or_illegal(function, exporter):
    result = result_of(function, exporter)
    assert (result.status, rules(result)) == ("passed", [])
    assert not [each for each in result.findings if each.rule == "untaken-branch"]


def test_a_branch_on_values_is_frozen_by_tracing_and_refused_by_dynamo():
    assert rules(result_of(large)) == ["baked-value"]
    assert rules(result_of(large, "dynamo")) == ["export-error"]


def doubled_if_positive(x):
    if x.min() >= 0:
        return x * 2
    return x * 3


def without_division_by_zero(x):
    norm = x.norm()
    if norm < 1e-12:
        return x
    return x / norm


def test_a_side_that_zeros_take_is_tried_with_usual_inputs():
    found = run_one(recipe_of(doubled_if_positive, X - X.mean(), **ROWS), opsets="17").findings
    (error,) = (each for each in found if each.severity is onnx_ci.Severity.ERROR)
    assert (error.rule, error.probe.partition(":")[0]) == ("baked-value", f"branch at {Path(__file__).name}")


def test_a_side_that_only_zeros_take_is_no_more_than_a_warning():
    result = run_one(recipe_of(without_division_by_zero, X, **ROWS), opsets="17")
    assert (rules(result), result.status) == ([], "passed")
    assert [each.rule for each in result.findings if each.severity is onnx_ci.Severity.WARNING] == ["edge-mismatch"]


def never_empty(x):
    return x if not x.shape[0] > 10**9 else x * 2


def test_a_side_is_named_without_its_not():
    (found,) = (each for each in result_of(never_empty, "torchscript").findings if each.rule == "untaken-branch")
    assert found.message.startswith("the file has only the side of `x.shape[0] > 10**9` for which it is false")


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_side_that_no_input_takes_is_an_error_once(exporter):
    result = run_one(onnx_ci.recipe(lambda: (FarAway(), (X,)), name="net", **ROWS), **EXPORTERS[exporter])
    (found,) = (each for each in result.findings if each.rule in ("untaken-branch", "export-warning"))
    assert (found.rule, found.severity) == ("untaken-branch", onnx_ci.Severity.ERROR)
    assert found.message.startswith("the file has only the side of `x.shape[0] > 10**9` for which it is false")
    assert (Path(found.source.file).name, found.source.line) == (Path(__file__).name, far_away.__code__.co_firstlineno + 1)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_allowing_it_makes_it_a_note(exporter):
    result = result_of(far_away, exporter, allow="untaken-branch")
    (found,) = (each for each in result.findings if each.rule == "untaken-branch")
    assert (result.status, found.severity) == ("passed", onnx_ci.Severity.NOTE)
    assert result_of(more_rows, exporter, allow="untaken-branch").status == "passed"


def test_dynamo_keeps_the_smaller_of_two_sizes_and_tracing_does_not():
    assert rules(result_of(far_away_but_kept)) == ["untaken-branch"]
    assert rules(result_of(far_away_but_kept, "dynamo")) == []


def test_a_branch_that_is_not_traced_is_not_in_the_file():
    assert rules(result_of(never_in_a_trace)) == []


def branch(path=__file__, **keywords):
    condition = Condition(
        path=Path(path),
        line=3,
        lines=range(3, 5),
        function=range(1, 9),
        text="a > b",
        is_test=True,
        is_call=False,
        is_check=False,
    )
    return UntakenBranch(condition=condition, **{"outcome": True, "by_sizes": True, **keywords})


@pytest.mark.parametrize(
    ("notice", "is_frozen"),
    [
        (Notice(message=BOOLEAN, filename=__file__, line=4), True),
        (Notice(message=BOOLEAN, filename=__file__, line=7), False),  # another branch
        (Notice(message=INTEGER, filename=__file__, line=7), True),  # the branch may use the number
        (Notice(message=INTEGER, filename=__file__, line=9), False),  # another function
        (Notice(message=BOOLEAN, filename="elsewhere.py", line=4), False),
    ],
)
def test_tracing_says_which_branches_it_freezes(notice, is_frozen):
    assert handling_of("torchscript").frozen_branches([branch()], [notice]) == [branch()] * is_frozen


def test_dynamo_freezes_sizes_only():
    assert handling_of("dynamo").frozen_branches([branch(), branch(by_sizes=False)], []) == [branch()]


def test_another_exporter_may_freeze_every_branch():
    assert Handling().frozen_branches([branch(), branch(by_sizes=False)], []) == [branch(), branch(by_sizes=False)]


def test_warnings_about_a_reported_branch_are_not_repeated():
    other = Notice(message=INTEGER, filename=__file__, line=7)
    assert without_those_at([branch()], [Notice(message=BOOLEAN, filename=__file__, line=4), other]) == [other]


def test_a_branch_of_an_installed_package_is_a_note():
    own, installed = judge_branches([branch(), branch(path=pytest.__file__)])
    assert (own.severity, installed.severity) == (onnx_ci.Severity.ERROR, onnx_ci.Severity.NOTE)


def test_a_branch_in_several_submodules_is_reported_once():
    assert len(judge_branches([branch(), branch()])) == 1
