"""Special values as rows of a probe of another size: which models allow it, and what a file that fails is judged by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toolbox.cells import errors, recipe_of, rules, run_one, task

import onnx_ci
from onnx_ci.engine import cell
from onnx_ci.pipeline.compare.drift import compare_refined
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.results.records import Status

ROWS = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
X = torch.rand(2, 32, 64, generator=torch.Generator().manual_seed(0)) + 0.1
ALL = ["floats zero", "floats negated", "floats large", "floats small", "floats mixed", "floats extreme"]


def probes_of(function, *args, settings=None, **keywords):
    return prepare(task(recipe_of(function, *(args or (X,)), **{**ROWS, **keywords}), **(settings or {}))).probes


def names(made):
    return [probe.name for probe in made.all if not probe.is_long]


def row_wise(x):
    return torch.tanh(x * 3).sum(2) + x.mean(2)


def test_special_values_are_rows_of_the_probes_of_other_batches():
    made = probes_of(row_wise)
    first, second = "floats zero, floats negated and floats large", "floats small, floats mixed and floats extreme"
    assert names(made) == ["example", f"batch=3 with {first}", f"batch=5 with {second}", "batch=1"]
    assert names(made.one_kind_per_probe) == ["example", "random values", "batch=3", "batch=5", "batch=1", *ALL]
    assert made.one_kind_per_probe.one_kind_per_probe is made.one_kind_per_probe
    zero, negated, large = made.all[1].inputs[0]
    small, _, _, *ordinary = made.all[2].inputs[0]
    assert (torch.equal(negated, -X[0]), torch.equal(large, 10 * X[0]), not zero.any(), len(ordinary)) == (True, True, True, 2)
    assert torch.equal(small, 1e-4 * X[0])


def test_one_probe_holds_as_many_as_it_has_rows():
    made = probes_of(row_wise, X[:1])
    sizes = [tuple(probe.reference.own[0].shape) for probe in made.all]
    assert sizes == [(1, 32), (1, 32), (2, 32), (3, 32), (1, 32)]
    assert [sum(each in name for each in ALL) for name in names(made)] == [0, 0, 2, 3, 1]


def of_each(x, other):
    return x.sum(2) * other.sum(1, keepdim=True)


def test_all_inputs_have_the_rows_wherever_their_batch_is():
    axes = {"x": {1: "batch"}, "other": {0: "batch"}, "y": {0: "batch"}}
    other = torch.rand(2, 1024, generator=torch.Generator().manual_seed(1))
    keywords = {"input_names": ["x", "other"], "dynamic_axes": axes}
    made = probes_of(lambda x, other: of_each(x.transpose(0, 1), other), X.transpose(0, 1).contiguous(), other, **keywords)
    probe = next(each for each in made.all if "floats negated" in each.name)
    assert torch.equal(probe.inputs[0][:, 1], -X[0])
    assert torch.equal(probe.inputs[1][1], -other[0])


def test_an_input_without_special_values_may_have_nothing_but_the_batch():
    axes = {"x": {0: "batch"}, "kept": {0: "batch"}, "y": {0: "batch"}}
    keywords = {"input_names": ["x", "kept"], "inputs": {"kept": lambda sizes, generator: torch.ones(sizes["batch"])}}
    made = probes_of(lambda x, kept: x.sum(2) * kept[:, None], X, torch.ones(2), dynamic_axes=axes, **keywords)
    assert any(" with " in name for name in names(made))


def test_an_input_with_few_values_in_a_row_has_all_special_ones():
    """A gate that is negative beside mixed signs: one row of it would have a single value of its own."""
    x, gate = torch.rand(6, 32, 64, generator=torch.Generator().manual_seed(0)) + 0.1, torch.rand(6, 1) + 0.1
    axes = {"x": {0: "batch"}, "gate": {0: "batch"}, "y": {0: "batch"}}
    made = probes_of(lambda x, gate: x.sum(2) * gate, x, gate, input_names=["x", "gate"], dynamic_axes=axes)
    assert set(ALL) <= set(names(made))


def over_the_batch(x):
    return x / x.abs().amax((0, 1, 2)) * 2


def if_all_are_negative(x):
    return x * 2 if (x < 0).all() else x * 3


def chosen(condition):
    return 2.0 if condition else 3.0


def decides_by_sizes_and_by_values_at_one_place(x):
    return x * chosen(x.shape[0]) * chosen((x < 0).all())


def turned_around(x):
    return (x * 2).flip(0)


def if_all_are_large_by_operators(x):
    return torch.where((x.abs() > 0.999).all(), x * 2, x * 3)


def raises(x):
    if x.min() < 0:
        raise ValueError("only positive numbers")
    return x * 2


def of_the_whole_batch(x):
    return x * 2, x.sum((0, 1, 2))


@pytest.mark.parametrize(
    ("function", "keywords"),
    [
        (over_the_batch, {}),
        (if_all_are_negative, {}),
        (decides_by_sizes_and_by_values_at_one_place, {}),
        (turned_around, {}),
        (if_all_are_large_by_operators, {}),
        (raises, {}),
        (lambda x: x / x.abs().amax((1, 2), keepdim=True), {}),  # no numbers where all are zero
        (of_the_whole_batch, {"output_names": ["y", "z"]}),
        (row_wise, {"dynamic_axes": {}}),
        (row_wise, {"dynamic_axes": {"x": {1: "height"}, "y": {1: "height"}}}),
        (torch.nn.functional.dropout, {"nondeterministic": True}),
    ],
)
def test_special_values_are_probes_of_their_own(function, keywords):
    made = probes_of(function, **keywords)
    assert not [name for name in names(made) if " with " in name]
    assert made.one_kind_per_probe is made


def test_few_elements_show_too_little_in_one_row():
    made = probes_of(row_wise, X[:, :4, :4])
    assert {"floats zero", "floats negated"} <= set(names(made))


def test_an_input_without_a_batch_is_the_same_for_all_rows():
    made = probes_of(lambda x, scale: x * scale, X, torch.rand(64), input_names=["x", "scale"])
    assert "floats negated" in names(made)


def linear(x):
    return (x * 3.1).sum(2)


def test_a_row_of_large_values_does_not_hide_an_error_of_another_one():
    made = probes_of(linear)
    probe = next(each for each in made.all if "floats large" in each.name)

    def found(row, error):
        got = probe.reference.own[0].clone()
        got[row, 0] += error
        return compare_refined(["y"], [got], probe, task(recipe_of(linear, X, **ROWS)).drift_limit).findings

    large = float(probe.reference.noise_of_elements(0)[2].max())
    negated = float(probe.reference.noise_of_elements(0)[1].max())
    assert large > 4 * negated
    error = 30 * negated
    assert (len(found(1, error)), len(found(2, error))) == (1, 0)


# --- what a file that fails is judged by ----------------------------------------------------------------------------------


def unlike(change, **keywords):
    """A model whose file computes something else where ``change`` does."""

    def function(x):
        y = torch.tanh(x.clamp(-3, 3)).sum(2)
        return y + change(x).sum(2) if torch.onnx.is_in_onnx_export() else y

    return recipe_of(function, X, **ROWS, **keywords)


def warned(result):
    return [each.rule for each in result.warnings]


def where(condition):
    return lambda x: torch.where(condition(x), 1.0, 0.0)


@pytest.mark.parametrize(
    ("condition", "where_it_shows"),
    [
        (lambda x: x < -0.05, {"floats negated", "floats mixed", "floats extreme"}),
        (lambda x: x > 5, {"floats large", "floats extreme"}),
    ],
)
def test_a_fault_is_told_by_the_special_values_that_show_it(condition, where_it_shows):
    result = run_one(unlike(where(condition)))
    assert set(rules(result)) == {"baked-value"}
    (told,) = errors(result)
    assert {told.probe, *told.also_on} == where_it_shows
    assert {each.probe for each in result.outputs} >= set(ALL)


def test_a_fault_that_only_zeros_show_warns():
    result = run_one(unlike(where(lambda x: (x == 0).all(2, keepdim=True))))
    assert (result.status, warned(result)) == (Status.PASSED, ["edge-mismatch"])
    assert {each.probe for each in result.findings} == {"floats zero"}


def test_a_fault_that_only_extreme_numbers_show_warns():
    result = run_one(unlike(where(lambda x: x > 50)))
    assert (result.status, warned(result)) == (Status.PASSED, ["edge-mismatch"])


def test_a_right_file_runs_on_the_rows_alone():
    result = run_one(recipe_of(row_wise, X, **ROWS))
    assert result.status is Status.PASSED
    assert {each.probe for each in result.outputs} == {*names(probes_of(row_wise)), "batch=129"}


def test_an_approximation_that_extreme_numbers_show_is_allowed_beside_them():
    """ONNX Runtime's own ``tanh`` and ``exp`` are off by more than rounding there, which is no fault."""
    result = run_one(recipe_of(lambda x: (torch.sigmoid(x) * torch.exp(-x.abs())).mean(2), X, **ROWS))
    assert result.status is Status.PASSED
    assert not result.warnings


def test_given_inputs_are_judged_with_special_values_alone_too(tmp_path):
    np.savez(tmp_path / "real.npz", x=X.numpy() + 7)
    result = run_one(unlike(where(lambda x: (x > 7) & (x < 8)), inputs=str(tmp_path / "real.npz")))
    (told,) = errors(result)
    assert {"real.npz", "floats large"} <= {str(each).rpartition("/")[2] for each in (told.probe, *told.also_on)}


def test_the_inputs_on_which_a_file_fails_are_saved_one_by_one(tmp_path):
    run_one(unlike(where(lambda x: x > 5)), save_inputs=str(tmp_path))
    saved = {path.stem for path in tmp_path.rglob("*.npz")}
    assert saved == {"floats_large", "floats_extreme"}


def unchanged(model):
    return model


def test_passes_are_judged_by_special_values_alone():
    """The rounding of a pass is simulated on each of them."""
    recipe = recipe_of(row_wise, X, then=[unchanged], **ROWS)
    result = next(each for each in onnx_ci.run([recipe], opsets="13").cells if each.cell.graph_pass)
    assert {each.probe for each in result.outputs} >= set(ALL)


def test_a_pass_is_calibrated_by_ordinary_values(monkeypatch):
    own, made = cell.calibration_feeds, []
    monkeypatch.setattr(cell, "calibration_feeds", lambda *args: made.extend(own(*args)) or own(*args))
    recipe = onnx_ci.recipe(name="net", then=["int8-static"], **ROWS)(lambda: (torch.nn.Linear(64, 8), (X,)))
    onnx_ci.run([recipe], opsets="13", isolation="none")
    largest = [float(np.abs(feeds["x"]).max()) for feeds in made]
    assert largest
    assert max(largest) < 5
