"""Where no node shows a fault, the functions of torch that fail by themselves are named, and only these."""

from __future__ import annotations

import numpy
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


class Positions(torch.nn.Module):
    def forward(self, x):
        positions = torch.from_numpy(numpy.arange(x.shape[1]) / 8)
        return torch.relu(x) + positions.float()  # under torch.export, float() leaves integers of numpy as they are


def test_where_all_calls_are_right_alone_the_line_of_the_node_that_a_message_names_counts():
    axes = {"x": {0: "batch", 1: "length"}}
    recipe = onnx_ci.recipe(name="net", **NAMES, dynamic_axes=axes)(lambda: (Positions(), (torch.randn(3, 4),)))
    result = run_one(recipe, opsets="20", exporters="dynamo", cache="off")
    (culprit,) = only_error(result, "checker").culprits
    assert culprit.nodes[0].startswith("Add ")
    assert culprit.source.text.startswith("return torch.relu(x) + positions.float()")
    assert only_error(result, "load-error").culprits == (culprit,)


def test_where_every_file_is_rejected_no_function_is_blamed(monkeypatch):
    recipe = recipe_of(torch.relu, torch.randn(2, 3), **NAMES)
    monkeypatch.setattr(onnx.checker, "check_model", int)  # raises for any file
    found = only_error(run_one(recipe, isolation="none", cache="off"), "checker")
    assert (found.culprits, found.source) == ((), None)


def test_the_search_can_be_skipped():
    result = run_one(network, isolation="none", cache="off", locate=False)
    assert only_error(result, "checker").culprits == ()
