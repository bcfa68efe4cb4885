"""The order of equal values is undefined, and everything else about indices is compared."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import recipe_of, rules, run_one
from torch.ao import quantization

import onnx_ci
from onnx_ci.pipeline.reference.perturbation import OtherTies

DECLARED = {"input_names": ["x"], "output_names": ["values", "indices"]}
WITH_TIES = torch.randint(0, 4, (6, 9), generator=torch.Generator().manual_seed(0))
DISTINCT = torch.randperm(54, generator=torch.Generator().manual_seed(0)).view(6, 9)


def largest(x):
    return x.topk(3, 1)


def ranked(x):
    """Values and indices, in four orders."""
    return *largest(x), *x.topk(3, 1, largest=False), *x.sort(1), *x.sort(1, descending=True)


@pytest.mark.parametrize(("dtype", "exporter"), [(torch.int64, "dynamo"), (torch.float32, "torchscript")])
def test_another_choice_among_equal_values_is_right(dtype, exporter):
    x = torch.cat([WITH_TIES, 10 * DISTINCT]).to(dtype)
    result = run_one(recipe_of(ranked, x, input_names=["x"]), opsets="18", exporters=exporter)
    assert (rules(result), len({each.name for each in result.outputs})) == ([], 8)


@pytest.mark.parametrize("x", [WITH_TIES, DISTINCT], ids=["ties", "distinct"])
def test_indices_of_other_values_are_wrong(x):
    def shifted(x):
        values, indices = x.topk(3, 1)
        return values, (indices + 1) % 9

    x = torch.cat([x, DISTINCT])
    artifact = onnx_ci.export(recipe_of(shifted, x, **DECLARED), opset=13)
    assert "numeric-drift" in rules(onnx_ci.verify(artifact, recipe_of(largest, x, **DECLARED), opset=13))


def test_the_first_of_equal_maxima_is_defined():
    def last(x):
        return x.shape[1] - 1 - x.flip(1).argmax(1)

    declared = {"input_names": ["x"], "output_names": ["y"]}
    artifact = onnx_ci.export(recipe_of(last, WITH_TIES, **declared), opset=13)
    verdict = onnx_ci.verify(artifact, recipe_of(lambda x: x.argmax(1), WITH_TIES, **declared), opset=13)
    assert rules(verdict) == ["numeric-drift"]


def test_the_two_orders_differ_wherever_values_are_equal_and_nowhere_else():
    x = torch.tensor([[3, 1, 3, 2, 3, 1], [6, 5, 4, 3, 2, 1]])
    orders = []
    for is_rotated in (False, True):
        with OtherTies(is_rotated=is_rotated):
            values, indices = x.sort(1, descending=True)
            top = x.topk(4, 1).indices
        assert torch.equal(x.gather(1, indices), values)
        assert torch.equal(top, indices[:, :4])
        orders.append(indices.tolist())
    assert orders == [[[0, 2, 4, 3, 1, 5], [0, 1, 2, 3, 4, 5]], [[2, 4, 0, 3, 5, 1], [0, 1, 2, 3, 4, 5]]]


def test_a_stable_sort_is_defined():
    x = torch.zeros(4)
    with OtherTies(is_rotated=True):
        assert x.sort(stable=True).indices.tolist() == [0, 1, 2, 3]
        assert x.sort().indices.tolist() == [1, 2, 3, 0]


# --- models that torch has quantized


class Quantized(torch.nn.Module):
    """Layers that torch has quantized, whose file is off by ``steps`` of the output's scale."""

    def __init__(self, layers, steps):
        super().__init__()
        self.inner = torch.nn.Sequential(quantization.QuantStub(), *layers, quantization.DeQuantStub()).eval()
        self.inner.qconfig = quantization.get_default_qconfig("x86")
        quantization.prepare(self.inner, inplace=True)
        self.inner(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(3)))
        quantization.convert(self.inner, inplace=True)
        self.steps = steps

    def forward(self, x):
        y = self.inner(x)
        return y + self.steps * self.inner[-2].scale if torch.onnx.is_in_onnx_export() else y


class Added(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.sum = torch.nn.Conv2d(3, 3, 1), torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x):
        return self.sum.add(self.layer(x), x)


QUANTIZED = {
    "one layer": lambda: [torch.nn.Conv2d(3, 4, 3)],
    "three layers": lambda: [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.Conv2d(8, 4, 1)],
    "linear": lambda: [torch.nn.Flatten(), torch.nn.Linear(192, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5)],
    "a sum": lambda: [Added(), torch.nn.Conv2d(3, 3, 1)],
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "steps", "broken"),
    [*((name, 0.0, set()) for name in QUANTIZED), ("linear", 3.0, {"numeric-drift"}), ("a sum", 3.0, {"numeric-drift"})],
)
def test_a_model_that_torch_has_quantized_is_compared_by_its_own_steps(name, steps, broken):
    recipe = onnx_ci.recipe(
        name="net", input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}
    )(lambda: (Quantized(QUANTIZED[name](), steps), (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3)),)))
    result = run_one(recipe, opsets="17")
    assert {each.rule for each in result.findings if each.severity is onnx_ci.Severity.ERROR} == broken
    assert (max(each.drift for each in result.outputs) > 16) is bool(broken)
