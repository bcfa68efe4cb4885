"""Branches whose other side is sought by the call, not by the line."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import ROWS, recipe_of, rules

import onnx_ci
from onnx_ci import Status

LARGE = torch.full((4,), 1000.0)


def halved_if_large(x):
    return x / 2 if x.abs().max() > 700 else x


def halved_where_large(x):
    return torch.where(x.abs().max() > 700, x / 2, x)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_a_constant_that_takes_the_other_side_in_the_same_helper_hides_no_branch(exporter):
    def judged(model):
        (result,) = onnx_ci.run([recipe_of(model, torch.randn(3, 4), **ROWS)], opsets="18", exporters=exporter).cells
        return result

    wrong = judged(lambda x: halved_if_large(x) + halved_if_large(LARGE))
    right = judged(lambda x: halved_where_large(x) + halved_where_large(LARGE))
    assert (right.status, rules(right)) == (Status.PASSED, [])
    assert wrong.status is Status.FAILED
    if exporter == "torchscript":  # dynamo cannot export the branch
        assert rules(wrong) == ["baked-value"]


def judged_twice(model, example, names):
    """What both exporters' cells break, and the notes about branches."""
    axes = {name: {0: "rows"} for name in (*names, "y")}
    net = recipe_of(model, *example, input_names=names, output_names=["y"], dynamic_axes=axes)
    results = onnx_ci.run([net], opsets="18", exporters="torchscript,dynamo").cells
    return [(set(rules(each)), [note.message for note in each.notes if note.rule == "untaken-branch"]) for each in results]


@pytest.mark.slow
@pytest.mark.parametrize("masked", [lambda x: x > 0, torch.isnan])
def test_the_size_of_booleans_is_decided_by_sizes(masked):
    """Not by the comparison that the booleans are computed from."""
    halved = judged_twice(lambda x: x / 2 if masked(x).shape[0] > 40 else x, [torch.randn(3, 3)], ["x"])
    assert halved == [({"baked-value"}, [])] * 2
    padded = judged_twice(
        lambda x, k: x + k if (more := x.shape[0] - masked(k).shape[0]) <= 0 else x + k.new_zeros(more),
        [torch.randn(3, 3), torch.randn(3, 3)],
        ["x", "k"],
    )
    assert padded == [(set(), [])] * 2  # both have as many rows: nothing takes the other side


@pytest.mark.parametrize("size", [lambda x: x[x > 700].shape[0], lambda x: (x[x > 700] > 800).shape[0]])
def test_the_size_of_what_booleans_select_is_decided_by_their_comparison(size):
    [(broken, _), _] = judged_twice(lambda x: x / 2 if size(x) else x, [torch.randn(3, 3)], ["x"])
    assert broken == {"baked-value"}
