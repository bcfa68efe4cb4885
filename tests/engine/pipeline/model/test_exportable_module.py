"""A ``torch.onnx.ExportableModule`` is a recipe as it stands: its example, its names and its dynamic axes are used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toolbox.cells import rules, run_one

import onnx_ci
from onnx_ci import Status

pytestmark = pytest.mark.skipif(not hasattr(torch.onnx, "ExportableModule"), reason="this torch has no ExportableModule")
ExportableModule = getattr(torch.onnx, "ExportableModule", torch.nn.Module)


class Net(ExportableModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, scale):
        return self.layer(x) * scale

    def example_arguments(self):
        return (torch.randn(5, 4),), {"scale": torch.randn(3)}

    def input_names(self):
        return ["image", "scale"]

    def output_names(self):
        return ["scores"]

    def dynamic_shapes(self):
        return {"x": {0: "batch"}, "scale": None}


class Unnamed(Net):
    """The names are those of forward's parameters."""

    def input_names(self):
        return None

    def output_names(self):
        return None


class Fixed(Unnamed):
    def dynamic_shapes(self):
        return None


class Frozen(Net):
    """The number of rows is that of the example."""

    def forward(self, x, scale):
        return (
            self.layer(x[:1]) * scale * sum(1 for _ in x)
            if torch.compiler.is_exporting()
            else self.layer(x[:1]) * scale * len(x)
        )


def result_of(function, **keywords):
    return run_one(onnx_ci.recipe(name="net", **keywords)(function), opsets=18, exporters="dynamo")


@pytest.mark.parametrize(
    ("kind", "names", "is_class"),
    [(Net, ["image", "scale"], True), (Unnamed, ["x", "scale"], False), (Fixed, ["x", "scale"], True)],
)
def test_it_is_exported_as_it_declares_itself(kind, names, is_class):
    result = result_of(kind if is_class else lambda: kind())
    assert result.status is Status.PASSED, result.findings
    assert result.cell.recipe == "net"
    assert [each.name for each in result.inputs] == names
    assert any(each.startswith("batch=") for each in probes(result)) is (kind is not Fixed)


def probes(result):
    return {output.probe for output in result.outputs}


def test_what_the_recipe_declares_comes_first():
    result = result_of(Net, input_names=["a", "b"], dynamic_axes={"a": {0: "rows"}})
    assert result.status is Status.PASSED, result.findings
    assert [each.name for each in result.inputs] == ["a", "b"]
    assert any(each.startswith("rows=") for each in probes(result))


def test_one_that_is_wrong_is_told():
    assert result_of(Frozen).status is Status.FAILED


def test_a_class_is_a_recipe_for_dynamo():
    recipe = onnx_ci.recipe(Net)
    assert (recipe.name, recipe.exporters, recipe.opsets[0]) == ("Net", ("dynamo",), 18)
    assert recipe.file == __file__
    assert "class Net(" in Path(__file__).read_text(encoding="utf-8").splitlines()[recipe.line - 2]
    with pytest.raises(onnx_ci.RecipeError, match="@recipe decorates a function"):
        onnx_ci.recipe(torch.nn.Identity)


def test_torchscript_does_not_pass_in_dynamo_s_name():
    recipe = onnx_ci.recipe(name="net")(lambda: Net())
    result = run_one(recipe, opsets=17, exporters="torchscript")
    assert rules(result) == ["export-error"]
    assert "declare exporter='dynamo'" in result.findings[0].remedy


@pytest.mark.parametrize("method", ["example_arguments", "input_names", "dynamic_shapes"])
def test_a_method_that_raises_is_a_mistake_of_the_recipe(method):
    def fails(self):
        raise ValueError("not yet")

    broken = type("Broken", (Net,), {method: fails})
    result = result_of(broken)
    assert rules(result) == ["recipe-error"]
    assert "not yet" in result.findings[0].message
