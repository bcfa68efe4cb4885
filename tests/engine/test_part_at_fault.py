"""Where no node shows a fault, the functions of torch that fail by themselves are named, and only these."""

from __future__ import annotations

import onnx
import torch
from toolbox.cells import recipe_of, run_one

import onnx_ci
from onnx_ci.report.findings import describe_finding

NAMES = {"input_names": ["x"], "output_names": ["y"]}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        hidden = torch.relu(self.before(x))
        truths = (hidden > 0.5).cumsum(1)  # a file in which CumSum gets booleans is not valid
        return self.after(hidden + truths)


@onnx_ci.recipe(**NAMES)
def network():
    return Network(), (torch.randn(3, 4),)


def only_error(result, rule):
    (found,) = (each for each in result.findings if each.rule == rule)
    return found


def test_the_function_that_makes_a_file_invalid_is_named_with_its_line():
    result = run_one(network, isolation="none", cache="off")
    found = only_error(result, "checker")
    (culprit,) = found.culprits
    assert (culprit.operators, culprit.nodes, culprit.module) == (("torch.Tensor.cumsum",), (), "")
    assert culprit.source.text.startswith("truths = (hidden > 0.5).cumsum(1)")
    assert "`truths = (hidden > 0.5).cumsum(1)" in describe_finding(found)
    # What follows from it is told with it.
    assert only_error(result, "load-error").culprits == found.culprits


def test_where_every_file_is_rejected_no_function_is_blamed(monkeypatch):
    recipe = recipe_of(torch.relu, torch.randn(2, 3), **NAMES)
    monkeypatch.setattr(onnx.checker, "check_model", int)  # raises for any file
    found = only_error(run_one(recipe, isolation="none", cache="off"), "checker")
    assert (found.culprits, found.source) == ((), None)


def test_the_search_can_be_skipped():
    result = run_one(network, isolation="none", cache="off", locate=False)
    assert only_error(result, "checker").culprits == ()
