"""Branches whose other side is sought by the call, not by the line."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import recipe_of, rules

import onnx_ci
from onnx_ci import Status

ROWS = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "rows"}, "y": {0: "rows"}}}
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
