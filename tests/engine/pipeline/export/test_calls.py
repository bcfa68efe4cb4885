"""Calls with arguments that an exporter does not take: the remedy is a wrapper, and the wrapper passes."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import rules, run_one

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


@pytest.mark.parametrize(("exporter", "kind"), [("torchscript", tuple), ("dynamo", torch.Size)])
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


class Masked(torch.nn.Module):
    """Takes a mask, by position or by name."""

    def forward(self, x, scale=None):
        return x if scale is None else x * scale


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_dict_at_the_end_of_the_args_holds_arguments_by_name(exporter):
    x, scale = tensors()
    assert judged(exporter, Masked(), (x, {"scale": scale})).status is onnx_ci.Status.PASSED
    assert judged(exporter, Masked(), ({"x": x, "scale": scale},)).status is onnx_ci.Status.PASSED


class OfMapping(torch.nn.Module):
    """Takes a dict of tensors, one of which has the name of another parameter."""

    def forward(self, scale, batch):
        return batch["x"] * batch["scale"] * scale


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_dict_that_forward_takes_as_a_dict_stays_one(exporter):
    x, scale = tensors()
    recipe = onnx_ci.recipe(lambda: (OfMapping(), (scale, {"x": x, "scale": scale.clone()})), name="net")
    assert run_one(recipe, exporters=exporter, opsets=EXPORTERS[exporter]).status is onnx_ci.Status.PASSED


HALF = torch.full((4,), 0.5)


class WithTensor(torch.nn.Module):
    """Has a tensor as a default."""

    def forward(self, x, scale=HALF):
        return x * scale


def test_a_default_tensor_that_torchscript_makes_an_input_is_fixed():
    x, _ = tensors()
    recipe = onnx_ci.recipe(lambda: (WithTensor(), (x,)), name="net")
    result = run_one(recipe, exporters="torchscript", opsets="17")
    assert [each.rule for each in result.findings] == ["input-extra"]
    assert result.findings[0].message.endswith("and the tensor scale is a default of forward")
    (remedy,) = remedies(result)
    assert "onnx_ci.adapt(model, fixed={'scale': scale}), with the default of forward as scale." in remedy
    fixed = onnx_ci.adapt(WithTensor(), fixed={"scale": HALF})
    again = onnx_ci.recipe(lambda: (fixed, (x,)), name="net")
    assert run_one(again, exporters="torchscript", opsets="17").status is onnx_ci.Status.PASSED


class Chunked(torch.nn.Module):
    """Takes a number between two tensors, as the steps of a stream do."""

    def forward(self, chunk, offset, mask):
        return chunk * mask + offset


@pytest.mark.parametrize(("number", "axes"), [(64, {"mask": {0: "T"}, "chunk": {0: "T"}}), (0.5, {})], ids=["int", "float"])
def test_a_number_takes_no_name_of_an_input(number, axes):
    chunk, mask = torch.randn(5, 4), torch.ones(5, 1)

    def judged(model, args, names):
        recipe = onnx_ci.recipe(lambda: (model, args), name="net", input_names=names, output_names=["y"], dynamic_axes=axes)
        return run_one(recipe, opsets="17")

    result = judged(Chunked(), (chunk, number, mask), ["chunk", "offset", "mask"])
    [found] = [each for each in result.findings if each.rule == "name-mismatch"]
    assert found.message == f"input_names declares 3 names, but args contain 2 tensors; 'offset' is {number!r}"
    assert f"onnx_ci.adapt(model, inputs=['chunk', 'mask'], fixed={{'offset': {number!r}}})" in found.remedy
    fixed = onnx_ci.adapt(Chunked(), inputs=["chunk", "mask"], fixed={"offset": number})
    assert judged(fixed, (chunk, mask), ["chunk", "mask"]).status is onnx_ci.Status.PASSED
    tensors = (chunk, torch.tensor(number), mask)
    assert judged(Chunked(), tensors, ["chunk", "offset", "mask"]).status is onnx_ci.Status.PASSED


class Optional(torch.nn.Module):
    """Takes all but one argument optionally; in ``ByName``, some by their names only."""

    def forward(self, x, mask=None, bias=None, gain=None):
        y = x * 2 if mask is None else x * mask
        y = y if bias is None else y + bias
        return y if gain is None else y * gain


class ByName(Optional):
    def forward(self, x, mask=None, *, bias=None, gain=None):
        return super().forward(x, mask, bias, gain)


MOVED = {
    "by position": (Optional, ["bias"], "'bias' as 'mask'"),
    "by name only": (ByName, ["bias"], "'bias' as 'mask'"),
    "nowhere": (ByName, ["mask", "bias"], "forward does not take for 'bias'"),
    "in place": (Optional, ["mask", "bias"], ""),
}


@pytest.mark.parametrize(("model", "names", "said"), MOVED.values(), ids=MOVED)
def test_what_torch_passes_to_another_parameter_is_told_with_the_declaration_that_helps(model, names, said):
    kwargs = {name: torch.randn(4) for name in names}
    call = {"input_names": ["x", *names], "output_names": ["y"]}

    def judged(**axes):
        recipe = onnx_ci.recipe(lambda: (model(), (torch.randn(3, 4),), kwargs), name="net", **call, **axes)
        return run_one(recipe, exporters="dynamo", opsets="18")

    result = judged(dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
    assert result.status is onnx_ci.Status.PASSED
    warned = [each for each in result.findings if each.rule == "export-warning"]
    assert [said in each.message for each in warned] == ([True] if said else [])
    shapes = {"x": {0: "batch"}, **{name: {} for name in names}}
    assert all(f"dynamic_shapes={shapes!r}" in each.remedy for each in warned)
    assert "export-warning" not in {each.rule for each in judged(dynamic_shapes=shapes).findings}


class Columns(torch.nn.Module):
    """Takes as many columns as there are after the first."""

    def forward(self, x, *columns):
        return torch.cat([x, *columns], 1)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_variadic_arguments_whose_dynamic_axes_torch_refuses_are_told_with_the_declaration_that_helps(others):
    args = [torch.randn(3, 4) for _ in range(1 + others)]
    names = ["x", "first", "second"][: 1 + others]

    def warnings_of(**axes):
        recipe = onnx_ci.recipe(
            lambda: (Columns(), (*args,)), name="net", input_names=names, output_names=["y"], **axes
        )  # fmt: skip
        result = run_one(recipe, exporters="dynamo", opsets="18")
        assert result.status is onnx_ci.Status.PASSED
        return [each for each in result.findings if each.rule == "export-warning"]

    warned = warnings_of(dynamic_axes={name: {0: "rows"} for name in [*names, "y"]})
    assert ["refuses a forward that takes *columns" in each.message for each in warned] == [True] * (others > 0)
    shapes = {"x": {0: "rows"}, "columns": ({0: "rows"},) * others}
    assert all(f"dynamic_shapes={shapes!r}" in each.remedy for each in warned)
    assert warnings_of(dynamic_shapes=shapes if others else {"x": {0: "rows"}}) == []


def test_variadic_arguments_of_adapt_are_not_told():
    names = ["x", "first", "second"]
    recipe = onnx_ci.recipe(
        lambda: (onnx_ci.adapt(Columns()), tuple(torch.randn(3, 4) for _ in names)),
        name="net",
        input_names=names,
        output_names=["y"],
        dynamic_axes={name: {0: "rows"} for name in [*names, "y"]},
    )
    assert "export-warning" not in {each.rule for each in run_one(recipe, exporters="dynamo", opsets="18").findings}


class Recurrent(torch.nn.Module):
    """Torch's export unrolls the layer, or keeps it, as what the process has run before decides."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(6, 8, 3, padding=1)
        self.layer = torch.nn.LSTM(8, 5, bidirectional=True)

    def forward(self, x, h, c):
        return self.layer(self.convolution(x).permute(2, 0, 1), (h, c))[0]


def test_the_second_export_in_a_process_is_like_the_first():
    axes = {"x": {0: "batch", 2: "length"}, "h": {1: "batch"}, "c": {1: "batch"}, "y": {0: "length", 1: "batch"}}
    names = {"input_names": ["x", "h", "c"], "output_names": ["y"], "dynamic_axes": axes}
    state = torch.zeros(2, 2, 5)
    recipe = onnx_ci.recipe(name="net", **names)(lambda: (Recurrent().eval(), (torch.randn(2, 6, 7), state, state)))
    first, second = (run_one(recipe, opsets="18", exporters="dynamo", effort="quick", locate=False) for _ in range(2))
    assert rules(first) == rules(second)
