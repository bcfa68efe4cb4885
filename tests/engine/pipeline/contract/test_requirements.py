"""What a file must be besides right: which operators it uses, its IR version, its shapes, and where its weights are."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from toolbox.cells import recipe_of, rules, run_one

import onnx_ci
from onnx_ci import Status

both = pytest.mark.parametrize(("exporter", "opset"), [("torchscript", 17), ("dynamo", 18)])
NAMES = {"input_names": ["x"], "output_names": ["y"]}


def cells_of(recipe, exporter, opset):
    options = {"opsets": opset, "exporters": exporter, "isolation": "none", "effort": "quick", "locate": False}
    return onnx_ci.run([recipe], **options).cells


def cells(function, exporter, opset, **keywords):
    return cells_of(recipe_of(function, torch.randn(3, 4), **NAMES, **keywords), exporter, opset)


def broken(*args, **keywords):
    return [rules(cell) for cell in cells(*args, **keywords)]


def activation(x):
    return torch.relu(x) + torch.sigmoid(x)


# --- operators --------------------------------------------------------------------------------------------------------

ALL = ["Add", "Relu", "Sigmoid"]


@both
def test_an_operator_that_is_not_allowed_is_told(exporter, opset):
    assert broken(activation, exporter, opset, operators=ALL) == [[]]
    (cell,) = cells(activation, exporter, opset, operators=["Add", "Relu"])
    assert rules(cell) == ["unlisted-operator"]
    assert "Sigmoid (1 node)" in " ".join(each.message for each in cell.findings)


def without_sigmoid(model: onnx.ModelProto) -> onnx.ModelProto:
    """Sigmoid as 1 / (1 + exp(-x))."""
    graph = model.graph
    node = next(each for each in graph.node if each.op_type == "Sigmoid")
    position = list(graph.node).index(node)
    graph.initializer.append(onnx.numpy_helper.from_array(torch.ones(1).numpy(), "one"))
    make = onnx.helper.make_node
    nodes = [
        make("Neg", [node.input[0]], ["negated"]),
        make("Exp", ["negated"], ["power"]),
        make("Add", ["power", "one"], ["sum"]),
        make("Reciprocal", ["sum"], [node.output[0]]),
    ]
    graph.node.remove(node)
    for each in reversed(nodes):
        graph.node.insert(position, each)
    return model


def test_only_the_file_that_ships_counts():
    allowed = ["Add", "Relu", "Neg", "Exp", "Reciprocal"]
    assert broken(activation, "torchscript", 17, operators=allowed, then=[without_sigmoid]) == [[], []]
    assert broken(activation, "torchscript", 17, operators=ALL, then=[without_sigmoid]) == [[], ["unlisted-operator"]]


def test_the_pass_that_introduces_an_operator_is_named():
    def same(model: onnx.ModelProto) -> onnx.ModelProto:
        return model

    for allowed, passes, introduced in (
        (["Add", "Relu"], [same], "export"),
        (ALL, [without_sigmoid, same], "without_sigmoid"),
        (ALL, [same, without_sigmoid], "without_sigmoid"),
    ):
        *_, shipped = cells(activation, "torchscript", 17, operators=allowed, then=passes)
        (wrong,) = [each for each in shipped.findings if each.rule == "unlisted-operator"]
        assert wrong.introduced_by == introduced


# --- IR version -------------------------------------------------------------------------------------------------------


def older(model: onnx.ModelProto) -> onnx.ModelProto:
    model.ir_version = 7
    return model


@both
def test_a_newer_ir_version_is_told(exporter, opset):
    assert broken(activation, exporter, opset, max_ir_version=10) == [[]]
    assert broken(activation, exporter, opset, max_ir_version=7) == [["ir-version"]]


def test_torchscript_writes_an_older_ir_version_at_a_lower_opset():
    assert broken(activation, "torchscript", 13, max_ir_version=7) == [[]]


def test_a_pass_can_lower_the_ir_version():
    assert broken(activation, "torchscript", 17, max_ir_version=7, then=[older]) == [[], []]


# --- static shapes ----------------------------------------------------------------------------------------------------


def conv_net():
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    )
    return layers, (torch.randn(2, 3, 8, 8),)


class Attention(torch.nn.Module):
    """TorchScript computes the sizes of the heads from the shape of the input."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def attention():
    return Attention(), (torch.randn(2, 5, 16),)


@pytest.mark.parametrize(("exporter", "opset", "function"), [("dynamo", 18, conv_net), ("torchscript", 17, attention)])
def test_fixed_shapes_pass(exporter, opset, function):
    recipe = onnx_ci.recipe(name="net", static=True, **NAMES)(function)
    result = run_one(recipe, opsets=opset, exporters=exporter)
    assert result.status is Status.PASSED, result.findings


@both
def test_a_size_that_depends_on_values_is_told(exporter, opset):
    def positive_sum(x):
        return x[x > 0].sum()

    assert "symbolic-shape" in broken(positive_sum, exporter, opset, static=True)[0]
    assert broken(positive_sum, exporter, opset) == [[]]


@both
def test_a_recipe_may_vary_where_the_settings_require_fixed_shapes(project, exporter, opset):
    project.write("pyproject.toml", "[tool.onnx-ci.recipe-defaults]\nstatic = true\n")
    axes = {"dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
    recipe = onnx_ci.recipe(name="net", **NAMES, **axes)(lambda: (torch.nn.ReLU(), (torch.randn(3, 4),)))
    assert rules(run_one(recipe, opsets=opset, exporters=exporter)) == ["symbolic-shape"]
    varying = onnx_ci.recipe(name="net", static=False, **NAMES, **axes)(recipe.function)
    assert run_one(varying, opsets=opset, exporters=exporter).status is Status.PASSED


# --- where the weights are --------------------------------------------------------------------------------------------


def linear():
    return torch.nn.Linear(300, 300), (torch.randn(2, 300),)


def small():
    return torch.nn.Linear(8, 8), (torch.randn(2, 8),)


def beside(source: Path, path: Path) -> None:
    onnx.save_model(onnx.load(source), path, save_as_external_data=True, location=f"{path.name}.data")


def placed(exporter, opset, function=linear, **keywords):
    recipe = onnx_ci.recipe(name="net", **NAMES, **keywords)(function)
    return [set(rules(cell)) for cell in cells_of(recipe, exporter, opset)]


@both
def test_the_weights_are_where_the_recipe_declares_them(exporter, opset):
    assert placed(exporter, opset, external_data=False) == [set()]
    assert placed(exporter, opset) == [set()]
    assert placed(exporter, opset, external_data=True) == [set() if exporter == "dynamo" else {"data-placement"}]
    assert placed(exporter, opset, function=small, external_data=True) == [set()]


def test_a_pass_can_move_the_weights():
    assert placed("torchscript", 17, external_data=True, then=[beside]) == [set(), set()]
    assert placed("torchscript", 17, external_data=False, then=[beside]) == [set(), {"data-placement"}]
