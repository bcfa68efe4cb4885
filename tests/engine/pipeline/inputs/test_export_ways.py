"""A model that computes something else in an export, but not on inputs like the example, is tried on larger ones."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import run_one

import onnx_ci

SORTED = {
    "input_names": ["x"],
    "output_names": ["y"],
    "dynamic_axes": {"x": {0: "boxes"}, "y": {0: "kept"}},
}


class Best(torch.nn.Module):
    """Keeps the best boxes, fewer of them in a file."""

    def __init__(self, in_file):
        super().__init__()
        self.in_file = in_file

    def forward(self, x):
        kept = 60
        if torch.onnx.is_in_onnx_export():  # the question
            kept = self.in_file
        return x.sort(0, descending=True).values[:kept]


class Remembers(torch.nn.Module):
    """Keeps fewer boxes from its first export on: a copy that has been told of one would hide that from later inputs."""

    def __init__(self):
        super().__init__()
        self.kept = 60

    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            self.kept = 20
        return x.sort(0, descending=True).values[: self.kept]


def judged(model, exporter):
    recipe = onnx_ci.recipe(lambda: (model, (torch.rand(8),)), name="net", **SORTED, opsets="18")
    return run_one(recipe, exporters=exporter, opsets="18", cache="off")


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_what_differs_in_an_export_at_larger_sizes_alone_is_found(exporter):
    found = [each for each in judged(Best(20), exporter).findings if each.severity is onnx_ci.Severity.ERROR]
    assert found
    for each in found:
        assert each.probe.startswith("asked in an export, ")
        assert each.lines[0].text.endswith("# the question")
        assert "torch.onnx.is_in_onnx_export() is true" in each.remedy


def test_what_a_model_keeps_of_an_export_is_not_met_by_later_inputs():
    found = [each for each in judged(Remembers(), "torchscript").findings if each.severity is onnx_ci.Severity.ERROR]
    assert found
    assert {each.probe.partition(",")[0] for each in found} == {"asked in an export"}


def test_a_model_that_computes_the_same_in_an_export_passes():
    result = judged(Best(60), "torchscript")
    assert result.status is onnx_ci.Status.PASSED
    assert not [each for each in result.outputs if each.probe.startswith("asked")]
