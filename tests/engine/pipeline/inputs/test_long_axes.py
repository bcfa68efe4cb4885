"""Each dynamic axis is tried far longer than in the example, for code that depends on a size without comparing it."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import run_one

import onnx_ci


class Best(torch.nn.Module):
    """Keeps the best boxes, perhaps fewer of them in a file."""

    def __init__(self, in_file):
        super().__init__()
        self.in_file = in_file

    def forward(self, x):
        kept = 60
        if torch.onnx.is_in_onnx_export():  # the question
            kept = self.in_file
        return x.sort(0, descending=True).values[:kept]


class Limited(torch.nn.Module):
    """Takes so many rows, and multiples of a number only."""

    def __init__(self, most, multiple):
        super().__init__()
        self.most, self.multiple = most, multiple

    def forward(self, x):
        torch._assert(x.shape[0] <= self.most and x.shape[0] % self.multiple == 0, "too many, or no multiple")
        return x.relu()


class Sines(torch.nn.Module):
    """Computes a number of them, one after another."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        for _ in range(self.number):
            x = x.sin()
        return x


def judged(model, shape=(8,), *, dtype=torch.float32, exporters="torchscript", **declared):
    declared = {"dynamic_axes": {"x": {0: "rows"}, "y": {0: "kept"}}, "input_names": ["x"], "output_names": ["y"]} | declared
    recipe = onnx_ci.recipe(lambda: (model, (torch.rand(shape).to(dtype),)), name="net", **declared)
    return run_one(recipe, exporters=exporters, opsets="18", cache="off")


def longest(result):
    """The number of rows of the longest input."""
    sizes = (each.probe.rpartition("rows=")[2] for each in result.outputs)
    return max((int(size) for size in sizes if size.isdecimal()), default=0)


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_what_differs_in_an_export_at_large_sizes_alone_is_found(exporter):
    found = [each for each in judged(Best(20), exporters=exporter).findings if each.severity is onnx_ci.Severity.ERROR]
    assert {each.probe for each in found} == {"rows=1025"}
    assert all(each.lines[0].text.endswith("# the question") for each in found)
    assert all("torch.onnx.is_in_onnx_export() is true" in each.remedy for each in found)


def test_a_model_that_computes_the_same_there_passes():
    result = judged(Best(60))
    assert (result.status, longest(result)) == (onnx_ci.Status.PASSED, 1025)


@pytest.mark.parametrize(
    ("most", "multiple", "expected"), [(5000, 1, 1025), (5000, 8, 1024), (600, 1, 513), (300, 1, 257), (200, 1, 129)]
)
def test_the_longest_size_is_taken_that_the_model_accepts(most, multiple, expected):
    result = judged(Limited(most, multiple))
    assert (result.status, longest(result)) == (onnx_ci.Status.PASSED, expected)


def test_only_declared_sizes_are_tried():
    assert longest(judged(Best(60), dynamic_sizes={"rows": range(1, 301)})) == 257
    assert longest(judged(Best(60), dynamic_sizes={"rows": range(1, 33)})) == 32
    assert longest(judged(Best(60), dynamic_sizes={"rows": onnx_ci.multiple_of(10)}, shape=(10,))) == 1030
    assert longest(judged(Best(60), dynamic_sizes={"rows": (4, 12)})) == 12  # what is so far from the listed sizes is not tried


@pytest.mark.parametrize(("number", "expected"), [(1, 1024), (40, 129), (600, 61)])
def test_sizes_are_shorter_if_a_run_would_take_too_long(number, expected):
    assert longest(judged(Sines(number), (30, 1024))) == expected  # of 1025 rows, the input itself is too large


def test_positions_multiply_rounding_errors_there():
    limits = {each.probe: each.limit for each in judged(Best(60)).outputs}
    assert limits["rows=1025"] == 8 * limits["example"]


class Steps(torch.nn.Module):
    """In which of 16 steps a long sum is, or what is left of it, but for the last rows."""

    def __init__(self, wrong_from, *, is_whole):
        super().__init__()
        self.wrong_from, self.is_whole = wrong_from, is_whole

    def forward(self, x):
        y = (x.abs() * 6.2).cumsum(1) % 16
        y = y.long() if self.is_whole else y - y.floor()
        if torch.onnx.is_in_onnx_export():
            y = torch.where(torch.arange(x.shape[1]) >= self.wrong_from, y + 1000, y)
        return y


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(("wrong_from", "status"), [(1015, onnx_ci.Status.PASSED), (900, onnx_ci.Status.FAILED)])
def test_few_elements_may_be_on_the_other_side_of_a_step(is_whole, wrong_from, status):
    axes = {"dynamic_axes": {"x": {1: "rows"}, "y": {1: "rows"}}}
    result = judged(Steps(wrong_from, is_whole=is_whole), (4, 8), **axes)
    assert (result.status, longest(result)) == (status, 1025)


def test_half_precision_proves_something_there():
    limits = [each for each in judged(torch.nn.Tanh().half(), dtype=torch.float16).outputs if each.probe == "rows=1025"]
    assert [each.unproven for each in limits] == [""]
