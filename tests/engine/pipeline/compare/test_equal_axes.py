"""Axes of several inputs to which a recipe gives no names: dynamo takes those to be equal that are combined."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import run_one

import onnx_ci

ANY = torch.export.Dim.DYNAMIC
AUTO = torch.export.Dim.AUTO


class Product(torch.nn.Module):
    def forward(self, a, b):
        return (a * b).sum(-1)


class Guarded(torch.nn.Module):
    def forward(self, a, b):
        total, other = a.sum(1), b.sum(1)
        return total + other if a.shape[1] == b.shape[1] else total - other  # fault


def judged(model, batch, first, second):
    recipe = onnx_ci.recipe(
        lambda: (model, (torch.randn(batch, 4), torch.randn(batch, 4))),
        name="net", input_names=["a", "b"], output_names=["y"], dynamic_shapes={"a": first, "b": second},
    )  # fmt: skip
    return run_one(recipe, opsets="18")


def rules(result, severity):
    return [each.rule for each in result.findings if each.severity is severity]


@pytest.mark.parametrize(
    ("batch", "first", "second"),
    [
        pytest.param(3, ANY, ANY, id="dynamic"),
        pytest.param(3, AUTO, AUTO, id="automatic", marks=pytest.mark.slow),
        pytest.param(3, "rows", ANY, id="one named", marks=pytest.mark.slow),
        pytest.param(1, "rows", "rows", id="one name for both"),
    ],
)
def test_what_the_recipe_leaves_to_the_exporter_or_names_alike_is_no_finding(batch, first, second):
    result = judged(Product(), batch, {0: first}, {0: second})
    assert result.status is onnx_ci.Status.PASSED
    assert {"export-warning", "size-relation"}.isdisjoint(rules(result, onnx_ci.Severity.NOTE))


def test_an_example_of_one_does_not_tell_whether_axes_are_equal():
    result = judged(Product(), 1, {0: ANY}, {0: ANY})
    assert result.status is onnx_ci.Status.PASSED
    (note,) = [each for each in result.notes if each.rule == "size-relation"]
    assert (
        note.message
        == "the exporter has taken axis 0 of 'a' and axis 0 of 'b' to be equal, and the model also takes 'b_dim_0=3'"
    )


def test_axes_with_two_names_are_meant_to_differ():
    result = judged(Product(), 1, {0: "rows"}, {0: "others"})
    (error,) = [each for each in result.findings if each.rule == "shape-mismatch"]
    assert (result.status, error.severity) == (onnx_ci.Status.FAILED, onnx_ci.Severity.ERROR)
    assert "to be equal" in error.remedy


def test_an_equality_that_the_code_asks_for_is_named_with_its_line():
    result = judged(Guarded(), 2, {0: "rows", 1: ANY}, {0: "rows", 1: ANY})
    first = next(each for each in result.findings if each.severity is onnx_ci.Severity.ERROR)
    assert (result.status, first.rule) == (onnx_ci.Status.FAILED, "baked-value")
    assert first.lines[0].text.endswith("# fault")


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, a, b):
        return self.linear(a) + b


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_axis_that_may_be_fixed_is_fixed_where_the_model_takes_no_other_size(exporter):
    dim = {0: AUTO, 1: AUTO(max=64)}
    recipe = onnx_ci.recipe(
        lambda: (Linear(), (torch.randn(3, 4), torch.randn(3, 4))),
        name="net", exporter=exporter, dynamic_shapes={"a": dim, "b": dim},
    )  # fmt: skip
    result = run_one(recipe, opsets="18")
    assert result.status is onnx_ci.Status.PASSED
    assert {each.rule for each in result.notes} <= {"absolute-path"}


class Loop(torch.nn.Module):
    def forward(self, a, b):
        total = b
        for position in range(a.shape[1]):
            total = total + a[:, position : position + 1]
        return total


def test_an_axis_that_is_fixed_although_the_file_declares_any_size_is_found():
    result = judged(Loop(), 3, {0: AUTO, 1: AUTO}, {0: AUTO})
    assert (result.status, rules(result, onnx_ci.Severity.ERROR)[0]) == (onnx_ci.Status.FAILED, "baked-value")
