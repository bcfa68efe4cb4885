"""What makes an export right is its remedy: an option of the exporter, leaving out a symbolic, or the other exporter."""

from __future__ import annotations

import dataclasses
import math

import numpy
import pytest
import torch
from toolbox.cells import ROWS, Function, run_one
from torch.distributions import Normal
from torch.nn import functional

import onnx_ci

X = torch.tensor([[-1.0, 0.5, 0.25, 2.0], [3.0, -0.5, 0.0, -2.0]])


class Shrink(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        return torch.where(x.abs() >= limit, x, torch.zeros_like(x))

    @staticmethod
    def symbolic(g, x, limit):
        is_large = g.op("Greater", g.op("Abs", x), limit)  # the fault: GreaterOrEqual
        return g.op("Where", is_large, x, g.op("Constant", value_t=torch.tensor(0.0)))


class ShrinkRight(Shrink):
    @staticmethod
    def symbolic(g, x, limit):
        is_large = g.op("GreaterOrEqual", g.op("Abs", x), limit)
        return g.op("Where", is_large, x, g.op("Constant", value_t=torch.tensor(0.0)))


class Shrunk(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x, torch.tensor(0.5)) + 1


def judged(model):
    return run_one(onnx_ci.recipe(lambda: (model, (X,)), name="net", **ROWS), opsets="17", isolation="none", cache="off")


def test_a_symbolic_that_says_something_else_than_forward_is_named():
    result = judged(Shrunk(Shrink))
    (found,) = (each for each in result.findings if each.severity is onnx_ci.Severity.ERROR)
    assert found.lines[0].text.endswith("# the fault: GreaterOrEqual")
    assert "right with what Shrink.forward computes" in found.remedy
    assert "symbolic" in vars(Shrink)  # it was left out for the try alone


def test_a_right_symbolic_passes():
    assert judged(Shrunk(ShrinkRight)).status is onnx_ci.Status.PASSED


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (lambda x: x.long() >> 1, "rounding_mode='floor'"),
        (lambda x: torch.atan2(x.relu(), x), "in place of torch.atan2(y, x)"),
        (torch.exp, None),
    ],
)
def test_an_operator_that_the_exporter_is_known_to_get_wrong_has_its_remedy(function, remedy):
    found = [each for each in judged(Function(function)).findings if each.severity is onnx_ci.Severity.ERROR]
    assert {remedy in each.remedy for each in found} == ({True} if remedy else set())


@pytest.mark.slow
def test_attention_where_a_mask_hides_whole_rows_has_its_remedy():
    def attend(x):
        keys, mask = torch.stack([x, 2 * x], 1)[:, None], torch.stack([x[:, 0] > 0, x[:, 0] > 1], 1)[:, None, None]
        return functional.scaled_dot_product_attention(x[:, None, None], keys, keys, attn_mask=mask)[:, 0, 0]

    recipe = onnx_ci.recipe(lambda: (Function(attend), (X,)), name="net", **ROWS)
    result = run_one(recipe, exporters="dynamo", opsets="20", isolation="none", cache="off")
    assert any(each.remedy.startswith("Where a mask hides all of a row, torch gives 0") for each in result.findings)


@pytest.mark.parametrize(
    ("function", "opset", "remedy"),
    [
        (
            torch.asinh,
            "17",
            "Declare exporter='dynamo' and opsets='18-', with which the file is right.",
        ),
        (lambda x: x.kthvalue(2, 1).values, "17", "Write x.topk(3, -1, largest=False).values.amax(-1) in place of"),
        (
            lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
            "13",
            "the exporter translates it from opset 14 on",
        ),
        (
            lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2, 2)) * torch.polar(x[:, :2], x[:, 2:])),
            "17",
            "torch.view_as_complex(x) * torch.polar",
        ),
        (torch.nn.LSTM(4, 3, proj_size=2, batch_first=True), "17", "h = (o.sigmoid() * c.tanh()) @ weight_hr_l0.T"),
        (torch.lgamma, "17", "torch.onnx.register_custom_op_symbolic('aten::lgamma', FUNCTION, 17)"),  # dynamo has none either
    ],
    ids=["dynamo", "another operator", "a later opset", "complex", "projections", "neither"],
)
def test_an_operator_that_the_exporter_lacks_has_what_is_known_to_help(function, opset, remedy):
    recipe = onnx_ci.recipe(lambda: (Function(function), (X,)), name="net", **ROWS)
    (found,) = run_one(recipe, opsets=opset, isolation="none", cache="off").findings
    assert found.rule == "unsupported-operator"
    assert remedy in found.remedy


def silenced(x):
    y = x * 2
    y.data[x < 0] = 0.0
    return y


@pytest.mark.parametrize(
    ("function", "cell", "remedy"),
    [
        (lambda x: torch.linspace(0, 1, x.shape[0]), "dynamo 20", "in place of torch.linspace(low, high, n)"),
        (lambda x: torch.log(x.exp()) * math.log(x.shape[0]), "dynamo 20", "as torch.tensor(x.shape[1]).float().log()"),
        (lambda x: torch.stack([row.sum() for row in x]), "dynamo 20", "The loop fixes the axis 'rows' of 'x' to"),
        (lambda x: functional.one_hot(x.long().abs()), "dynamo 20", "give it, as in F.one_hot(x, 10)"),
        (lambda x: x.long() % x.shape[0], "dynamo 20", "x % torch.tensor(x.shape[1])"),
        (lambda x: torch.fft.fftshift(x, dim=0), "dynamo 20", "in place of torch.fft.fftshift(x, dim=-1)"),
        (lambda x: Normal(x, x.exp(), validate_args=True).log_prob(2 * x), "dynamo 20", "validate_args=False"),
        (lambda x: x * torch.from_numpy(numpy.hanning(x.shape[0] + 2))[1:-1, None], "dynamo 20", "np.hanning(n) is torch.sin("),
        (
            lambda x: functional.max_unpool1d(*functional.max_pool1d(x, 2, return_indices=True), 2),
            "torchscript 17",
            "with which the file is right",
        ),
        (silenced, "dynamo 20", "through a view of it, as x.diagonal() or x.data is"),
        (lambda x: torch.func.grad(lambda y: y.square().sum())(x), "dynamo 20", "write the derivative out"),
        (torch.nn.DataParallel(torch.nn.Linear(4, 4)), "torchscript 17", "model.module"),
    ],
    ids=[
        *("linspace", "math", "loop", "one_hot", "remainder", "fftshift", "distribution", "numpy", "unpool"),
        *("data", "gradient", "parallel"),
    ],
)
def test_what_an_exporter_refuses_for_a_known_reason_has_its_remedy(function, cell, remedy):
    exporter, opset = cell.split()
    model = function if isinstance(function, torch.nn.Module) else Function(function)
    recipe = onnx_ci.recipe(lambda: (model, (X,)), name="net", **ROWS)
    findings = run_one(recipe, exporters=exporter, opsets=opset, isolation="none", cache="off").findings
    (found,) = (each for each in findings if each.severity is onnx_ci.Severity.ERROR)
    assert found.rule == "export-error"
    assert remedy in found.remedy


class Upsamples(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(1, 1, 3, padding=1)
        self.up = torch.nn.ConvTranspose1d(1, 1, 3, stride=2, padding=1)

    def forward(self, x):
        y = self.conv(x[:, None])
        return x + self.up(y[..., ::2], output_size=x.shape[1:])[:, 0]  # fault


def test_an_operator_that_dynamo_translates_elsewhere_is_not_blamed():
    axes = {name: {0: "rows", 1: "n"} for name in "xy"}
    recipe = onnx_ci.recipe(
        lambda: (Upsamples(), (torch.randn(2, 6),)), name="net", input_names=["x"], output_names=["y"], dynamic_axes=axes
    )
    found = next(
        each
        for each in run_one(recipe, exporters="dynamo", opsets="20", isolation="none", cache="off").findings
        if each.rule == "export-error"
    )
    assert found.source.text.endswith("# fault")
    assert "up(x)[..., : y.shape[-2], : y.shape[-1]] in place of" in found.remedy


class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x, need_weights=False)[0]


def test_what_torchscript_freezes_in_a_layer_of_torch_is_right_with_dynamo():
    axes = {name: {0: "batch", 1: "steps"} for name in "xy"}
    recipe = onnx_ci.recipe(
        lambda: (Attends(), (torch.randn(2, 3, 4),)), name="net", input_names=["x"], output_names=["y"], dynamic_axes=axes
    )
    found = [
        each for each in run_one(recipe, opsets="17", isolation="none", cache="off").findings if each.rule == "baked-shape"
    ]
    assert found
    assert all("Declare exporter='dynamo' and opsets='18-', with which the file is right" in each.remedy for each in found)


def adds_to_one_row(x):
    return torch.zeros_like(x).index_put((torch.zeros(x.shape[0], dtype=torch.int64),), x, accumulate=True)


def test_what_torchscript_translates_wrongly_is_right_with_dynamo():
    found = [each for each in judged(Function(adds_to_one_row)).findings if each.severity is onnx_ci.Severity.ERROR]
    assert found
    assert all("Declare exporter='dynamo' and opsets='18-', with which the file is right" in each.remedy for each in found)


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


PAIRS = numpy.array([[0, 1], [1, 2]])


class Does(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)


class ReturnsAClass(Does):
    def forward(self, x):
        return Pair(x, self.layer(x))


class AsksNumpy(Does):
    def forward(self, x):
        array = self.layer(x).detach().cpu().numpy()
        return torch.from_numpy(array[:, PAIRS[:, 1]] - array[:, PAIRS[:, 0]])


class Differentiates(Does):
    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(x).sin().sum(), x)[0]


class GoesBackward(Does):
    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            self.layer(x).sin().sum().backward()
        return x.grad


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (ReturnsAClass, "return Pair(x, self.layer(x))"),
        (AsksNumpy, "array = self.layer(x).detach().cpu().numpy()"),
        (Differentiates, "return torch.autograd.grad(self.layer(x).sin().sum(), x)[0]"),
        (GoesBackward, "x = x.detach().clone().requires_grad_()"),
    ],
)
def test_what_dynamo_refuses_without_a_line_is_found_in_a_run_of_the_model(model, line):
    recipe = onnx_ci.recipe(lambda: (model(), (X,)), name="net", **ROWS)
    result = run_one(recipe, exporters="dynamo", opsets="20", isolation="none", cache="off")
    found = next(each for each in result.findings if each.rule == "export-error")
    assert found.source.text == line
