"""A model that computes something else in an export, and asks nothing that torch answers otherwise there."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import Function, errors, rules
from torch import nn

import onnx_ci
from onnx_ci import Status

NAMES = {"input_names": ["x"], "output_names": ["y"]}
AXES = {"x": {0: "batch", 1: "time"}, "y": {0: "batch"}}


def discounted(x):
    steps = x.shape[1]
    if isinstance(steps, int):  # decides
        x = x * 0.9 ** torch.arange(steps)
    return x.sum(1)


def scaled(x):
    y = x + 1
    return y * 2


def scaled_elsewhere(x):
    if type(x) is torch.Tensor and type(x.shape[0]) is int:  # decides
        x = scaled(x)
    return x.sum(1)


class SetByItsExport(nn.Module):
    """An export function sets its flag, as those of detection models do."""

    exporting = False

    def forward(self, x):
        if not self.exporting:  # decides
            x = x.exp()
        return x.sum(1)


FACTORS = {6: 3.0}


def in_one_line(x):
    steps = x.shape[1]
    factor = 3.0 if isinstance(steps, int) else 1.0  # decides
    scale = factor / 2
    return (x * scale).sum(1)


def from_a_table(x):
    is_traced = torch.jit.is_tracing()  # differs, and nothing comes of it
    x = x.clone() if is_traced else x
    factor = FACTORS.get(x.shape[1], 1.0)  # decides
    return (x * factor).sum(1)


def returned(x):
    return 3.0 if isinstance(x.shape[1], int) else 1.0  # decides


def from_a_function(x):
    return (x * returned(x)).sum(1)


def export(model, args, kwargs, opset, path):
    model.exporting = True
    torch.onnx.export(model, args, path, opset_version=opset, dynamo=False, **NAMES, dynamic_axes=AXES)


def net(model, exporter):
    built = model if isinstance(model, nn.Module) else Function(model)
    declared = {"export": export} if exporter == "custom" else {}
    recipe = onnx_ci.recipe(name="net", **NAMES, dynamic_axes=AXES, **declared)(lambda: (built, (torch.rand(2, 6),)))
    (result,) = onnx_ci.run([recipe], opsets="18", exporters=exporter).cells
    return result


@pytest.mark.parametrize(
    ("model", "exporter"),
    [
        (discounted, "torchscript"),
        (discounted, "dynamo"),
        (scaled_elsewhere, "torchscript"),
        (scaled_elsewhere, "dynamo"),
        (SetByItsExport(), "custom"),
    ],
)
def test_the_line_that_decides_otherwise_in_an_export_is_named(model, exporter):
    result = net(model, exporter)
    found = next(each for each in errors(result) if each.probe == "example")
    assert [each.source.text.partition("# ")[2] for each in found.culprits] == ["decides"]
    assert found.remedy.startswith("In an export, the code goes another way here and does not run line ")


@pytest.mark.parametrize(
    ("model", "exporter", "name"),
    [
        (in_one_line, "torchscript", "factor"),
        (in_one_line, "dynamo", "factor"),
        (from_a_table, "torchscript", "factor"),
        (from_a_function, "torchscript", "what it returns"),
        (from_a_function, "dynamo", "what it returns"),
    ],
)
def test_the_line_with_another_number_in_an_export_is_named(model, exporter, name):
    found = next(each for each in errors(net(model, exporter)) if each.probe == "example")
    assert [each.source.text.partition("# ")[2] for each in found.culprits] == ["decides"]
    assert found.remedy.startswith(f"In an export, {name} is 1 here, not 3: ")


def checked(x):
    axes = 2 if type(x.shape[0]) is int else 1
    if type(x.shape[0]) is int:
        assert x.dim() == axes
    return x.sum(1)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_code_that_an_export_skips_may_compute_nothing(exporter):
    result = net(checked, exporter)
    assert (rules(result), result.status) == ([], Status.PASSED)
