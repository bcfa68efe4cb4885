"""Calls with arguments that an exporter does not take: the remedy is a wrapper, and the wrapper passes."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import run_one

import onnx_ci


class Scaled(torch.nn.Module):
    """Takes a scale by name only."""

    def forward(self, x, *, scale):
        return x * scale


class Any(torch.nn.Module):
    """Takes anything by name."""

    def forward(self, x, **others):
        return x * others["scale"]


class Normalized(torch.nn.Module):
    """Takes a flag between two tensors."""

    def forward(self, x, normalize: bool = False, scale=None):
        return (x / (x.abs().sum(1, keepdim=True) + 1) if normalize else x) * scale


ROWS = {"x": {0: "rows"}, "scale": {0: "rows"}}
EXPORTERS = {"torchscript": "17", "dynamo": "18"}


def judged(exporter, model, args, kwargs=None):
    recipe = onnx_ci.recipe(
        lambda: (model, args, kwargs or {}), name="net", input_names=["x", "scale"], dynamic_axes=ROWS
    )  # fmt: skip
    return run_one(recipe, exporters=exporter, opsets=EXPORTERS[exporter])


def remedies(result):
    return {each.remedy for each in result.findings if each.severity is onnx_ci.Severity.ERROR}


def tensors():
    return torch.randn(3, 4), torch.randn(3, 4)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("kind", [Scaled, Any])
def test_arguments_by_name_are_passed_by_position(kind, exporter):
    x, scale = tensors()
    result = judged(exporter, kind(), (x,), {"scale": scale})
    is_taken = kind is Scaled and exporter == "dynamo"
    assert (result.status is onnx_ci.Status.PASSED) is is_taken
    if not is_taken:
        (remedy,) = remedies(result)
        assert "onnx_ci.adapt(model, inputs=['x', 'scale'])" in remedy
    wrapped = onnx_ci.adapt(kind(), inputs=["x", "scale"])
    assert judged(exporter, wrapped, (x, scale)).status is onnx_ci.Status.PASSED


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_flag_between_tensors_is_fixed(exporter):
    x, scale = tensors()
    result = judged(exporter, Normalized(), (x, True, scale))
    assert result.status is onnx_ci.Status.FAILED
    (remedy,) = remedies(result)
    assert "onnx_ci.adapt(model, inputs=['x', 'scale'], fixed={'normalize': True})" in remedy
    wrapped = onnx_ci.adapt(Normalized(), inputs=["x", "scale"], fixed={"normalize": True})
    assert judged(exporter, wrapped, (x, scale)).status is onnx_ci.Status.PASSED


class Resized(torch.nn.Module):
    """Takes numbers in a tuple."""

    def forward(self, x, size, scale):
        return torch.nn.functional.pad(x * scale, size)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("kind", [tuple, torch.Size])
def test_numbers_in_a_tuple_are_fixed(kind, exporter):
    x, scale = tensors()
    result = judged(exporter, Resized(), (x, kind((1, 2)), scale))
    assert result.status is onnx_ci.Status.FAILED
    assert any(f"inputs=['x', 'scale'], fixed={{'size': {kind((1, 2))!r}}})" in remedy for remedy in remedies(result))
    wrapped = onnx_ci.adapt(Resized(), inputs=["x", "scale"], fixed={"size": kind((1, 2))})
    assert judged(exporter, wrapped, (x, scale)).status is onnx_ci.Status.PASSED


class Sum(torch.nn.Module):
    def forward(self, x, scale):
        return x.tanh() + scale


def test_one_tensor_that_is_passed_twice_is_one_input_for_dynamo():
    x, _ = tensors()
    (remedy,) = remedies(judged("dynamo", Sum(), (x, x)))
    assert remedy == "The args pass one tensor as 'x' and 'scale', which torch.export takes as one input: pass x.clone()."
    assert judged("dynamo", Sum(), (x, x.clone())).status is onnx_ci.Status.PASSED
    assert judged("torchscript", Sum(), (x, x)).status is onnx_ci.Status.PASSED


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_axes_of_forwards_parameters_need_no_names(exporter):
    def axes_of(axes):
        recipe = onnx_ci.recipe(lambda: (Sum(), tensors()), name="net", dynamic_axes=axes)
        return run_one(recipe, exporters=exporter, opsets=EXPORTERS[exporter])

    assert axes_of({"x": {0: "n"}, "scale": {0: "n"}}).status is onnx_ci.Status.PASSED
    (error,) = [each for each in axes_of({"y": {0: "n"}}).findings if each.severity is onnx_ci.Severity.ERROR]
    assert (error.rule, "'y'" in error.message) == ("unknown-axis", True)


def test_axes_of_two_names_that_are_always_equal_get_one():
    recipe = onnx_ci.recipe(lambda: (Sum(), tensors()), name="net", dynamic_axes={"x": {0: "n"}, "scale": {0: "m"}})
    assert "give them one name" in next(iter(remedies(run_one(recipe, exporters="dynamo", opsets="18"))))
