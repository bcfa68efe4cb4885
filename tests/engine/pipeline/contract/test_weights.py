"""The weights in a file are the model's own: right files pass in every layout, changed weights are found and named."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy
import onnx
import pytest
import torch
from onnx import numpy_helper
from toolbox.cells import Counts, rules, run_one
from torch import nn

import onnx_ci

EXPORTERS = [("torchscript", 13), pytest.param("torchscript", 17, marks=pytest.mark.slow), ("dynamo", 18)]
both = pytest.mark.parametrize(("exporter", "opset"), EXPORTERS)


class Layers(nn.Module):
    """Layers whose weights exporters store in different ways: as they are, transposed, stacked or folded."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 6, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(12, 8, batch_first=True)
        self.conv, self.norm = nn.Conv1d(8, 10, 3), nn.BatchNorm1d(10)
        self.linear, self.layer_norm = nn.Linear(10, 10), nn.LayerNorm(10)
        self.attention = nn.MultiheadAttention(10, 2, batch_first=True)
        self.normalized = nn.utils.parametrizations.weight_norm(nn.Linear(10, 10))
        self.deconv, self.last_norm = nn.ConvTranspose1d(10, 8, 3), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        y = self.gru(self.lstm(self.embedding(x))[0])[0]
        y = self.norm(self.conv(y.transpose(1, 2))).transpose(1, 2)
        y = self.layer_norm(self.linear(y))
        y = self.normalized(self.attention(y, y, y)[0])
        return self.head(self.last_norm(self.deconv(y.transpose(1, 2))).transpose(1, 2))


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def layers():
    return Layers(), (torch.randint(0, 20, (2, 9)),)


def through(dtype):
    return lambda values: values.astype(dtype).astype(numpy.float32)


def first_rows_swapped(values):
    rows = values.reshape(-1, values.shape[-1]).copy()
    rows[[0, 1]] = rows[[1, 0]]
    return rows.reshape(values.shape)


@functools.cache
def exported(exporter, opset):
    return onnx.load(onnx_ci.export(layers, exporter=exporter, opset=opset).path).SerializeToString()


def judged(file, recipe, exporter="torchscript", opset=13):
    found = onnx_ci.verify(file, recipe, exporter=exporter, opset=opset, effort="quick")
    assert "internal-error" not in rules(found)
    return [each for each in found.findings if each.rule == "weight-mismatch"]


def with_changed(file, change, is_changed=lambda tensor: True):
    model = onnx.load_from_string(file)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and is_changed(tensor):
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    return model.SerializeToString()


# --- what is right passes


@both
def test_right_weights_are_recognized_in_every_layout(exporter, opset):
    assert rules(run_one(layers, exporters=exporter, opsets=str(opset), effort="quick")) == []
    assert judged(exported(exporter, opset), layers, exporter, opset) == []


class Gain(nn.Module):
    """Multiplies its weight by a number close to one before it uses it."""

    def __init__(self, change):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.other = self.weight.detach() * 1.0001  # neither a parameter nor a buffer
        self.change = change

    def forward(self, x):
        return self.change(x, self)


class NormBehindAnotherLayer(nn.Module):
    """Registers its modules in another order than it uses them in."""

    def __init__(self):
        super().__init__()
        self.narrow, self.wide, self.norm = nn.Conv2d(4, 5, 1), nn.Conv2d(5, 7, 1), nn.BatchNorm2d(5)

    def forward(self, x):
        return self.wide(self.norm(self.narrow(x)))


def conv_then_norms(first, *norms):
    return lambda: (nn.Sequential(first, *norms), (torch.randn(2, 4, 6, 6),))


def gain(change):
    return lambda: (Gain(change), (torch.randn(3, 6),))


RIGHT = {
    "a weight times a number": gain(lambda x, own: x @ (own.weight * 1.0005)),
    "a weight rounded by the model": gain(lambda x, own: x @ own.weight.half().float()),
    "another constant like the weight": gain(lambda x, own: x @ own.weight + x @ own.other),
    "only another constant": gain(lambda x, own: x @ own.other),
    "rows in another order": gain(lambda x, own: x @ own.weight[[1, 0, 2, 3, 4, 5]]),
    "two norms that change little": conv_then_norms(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.BatchNorm2d(5)),
    "a norm after a grouped deconvolution": conv_then_norms(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)),
    "as many channels in a group of it": conv_then_norms(nn.ConvTranspose2d(4, 4, 3, groups=2), nn.BatchNorm2d(4)),
    "a norm behind another layer": lambda: (NormBehindAnotherLayer(), (torch.randn(2, 4, 6, 6),)),
    "a norm without weights": conv_then_norms(nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5, affine=False)),
}


WITH_DYNAMO_TOO = ("another constant like the weight", "a norm behind another layer", "a norm without weights")


@pytest.mark.parametrize(
    ("name", "exporter", "opset"),
    [*((name, "torchscript", 13) for name in RIGHT), *((name, "dynamo", 18) for name in WITH_DYNAMO_TOO)],
)
def test_what_a_model_computes_from_its_weights_is_not_a_mismatch(name, exporter, opset):
    recipe = onnx_ci.recipe(name="net", input_names=["x"])(RIGHT[name])
    file = onnx_ci.export(recipe, exporter=exporter, opset=opset)
    assert judged(file, recipe, exporter, opset) == []


def test_statistics_that_training_changes_are_not_compared():
    recipe = onnx_ci.recipe(name="net", training=True)(conv_then_norms(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)))
    assert "weight-mismatch" not in rules(run_one(recipe))


def test_a_file_of_lower_precision_or_after_a_lossy_pass_is_not_compared():
    def in_float16(model):
        return onnx.load_from_string(with_changed(model.SerializeToString(), through(numpy.float16)))

    lossy = onnx_ci.graph_pass(in_float16, lossy="float16")
    recipe = onnx_ci.recipe(name="net", then=[lossy])(lambda: (nn.Linear(8, 8), (torch.randn(2, 8),)))
    for result in onnx_ci.run([recipe], opsets="13").cells:
        assert rules(result) == []


# --- what is wrong is found


@both
@pytest.mark.parametrize(
    ("change", "rounding"),
    [
        pytest.param(through(numpy.float16), "float16", id="float16"),
        pytest.param(through(ml_dtypes.bfloat16), "bfloat16", id="bfloat16", marks=pytest.mark.slow),
        pytest.param(lambda values: values * numpy.float32(1.0005), None, id="scaled", marks=pytest.mark.slow),
    ],
)
def test_changed_weights_are_found_in_every_layout(exporter, opset, change, rounding):
    found = judged(with_changed(exported(exporter, opset), change), layers, exporter, opset)
    named = {name for each in found for name in each.details["weights"]}
    expected = {"embedding.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0_reverse", "lstm.bias_ih_l0", "gru.weight_hh_l0",
                "gru.bias_hh_l0", "conv.weight", "conv.bias", "linear.weight", "linear.bias", "attention.in_proj_weight",
                "attention.out_proj.weight", "deconv.weight", "deconv.bias"}  # fmt: skip
    assert expected <= named
    assert rounding in {each.details["rounding"] for each in found}


@both
def test_the_weights_of_another_checkpoint_are_found_by_their_names(exporter, opset):
    def drawn(values):
        return numpy.random.default_rng(3).normal(size=values.shape).astype(numpy.float32)

    file = with_changed(exported(exporter, opset), drawn)
    (found,) = judged(file, layers, exporter, opset)
    assert "embedding.weight" in found.details["weights"]
    assert found.remedy.startswith("The file has other weights than the model: export it again")


ALONE = {
    "lstm": (lambda: nn.LSTM(8, 6, batch_first=True), (2, 9, 8)),
    "gru": (lambda: nn.GRU(8, 6, bidirectional=True, batch_first=True), (2, 9, 8)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 9, 8)),
    "folded": (lambda: nn.Sequential(nn.Conv1d(8, 6, 3), nn.BatchNorm1d(6)), (2, 8, 9)),
    "normalized": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), (2, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(8, 8, 3), (2, 8, 9)),
}


@both
@pytest.mark.parametrize("name", ALONE)
def test_a_layer_alone_whose_weights_are_stored_otherwise_has_its_own(name, exporter, opset):
    build, shape = ALONE[name]
    recipe = onnx_ci.recipe(name="alone", input_names=["x"])(lambda: (build(), (torch.randn(shape),)))
    assert "weight-mismatch" not in rules(run_one(recipe, opsets=str(opset), exporters=exporter, effort="quick"))


@both
def test_swapped_rows_are_found(exporter, opset):
    file = with_changed(exported(exporter, opset), first_rows_swapped, lambda tensor: list(tensor.dims) in ([10, 10], [20, 8]))
    (found,) = judged(file, layers, exporter, opset)
    assert {"embedding.weight", "linear.weight"} <= set(found.details["weights"])


@both
def test_a_changed_layer_norm_is_found_although_its_weights_are_ones(exporter, opset):
    def changed(values):
        return numpy.where(numpy.arange(values.size) == 3, numpy.float32(1.01), values)

    file = with_changed(exported(exporter, opset), changed, lambda tensor: tensor.name == "layer_norm.weight")
    (found,) = judged(file, layers, exporter, opset)
    assert found.message == (
        "tensor 'layer_norm.weight' of the file is the weight 'layer_norm.weight', but 1 of 10 values differ, by up to 0.01: "
        "1.00999999 instead of 1 at [3]"
    )


class Large(nn.Module):
    """Adds its bias to numbers that are a million times as large: outputs do not show small changes of it."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return (x.abs() + 1) * 1e6 + self.bias


def large():
    return Large(), (torch.randn(4, 8),)


def test_rounding_that_drift_cannot_see_is_found():
    recipe = onnx_ci.recipe(name="net")(large)
    file = onnx.load(onnx_ci.export(recipe, opset=13).path).SerializeToString()
    rounded = with_changed(file, through(numpy.float16), lambda tensor: tensor.name == "bias")
    result = onnx_ci.verify(rounded, recipe, opset=13)
    assert rules(result) == ["weight-mismatch"]


def test_a_pass_that_rounds_weights_is_named_and_its_mismatch_can_be_expected_or_allowed():
    def rounds(model):
        return onnx.load_from_string(with_changed(model.SerializeToString(), through(numpy.float16)))

    def results(**declared):
        return onnx_ci.run([onnx_ci.recipe(name="net", then=[rounds], **declared)(large)], opsets="13").cells

    (found,) = [each for each in results()[-1].findings if each.severity is onnx_ci.Severity.ERROR]
    assert found.rule == "weight-mismatch"
    assert found.introduced_by == "rounds"
    known = onnx_ci.known_failure("weight-mismatch", "rounded on purpose", seen="torch 2.13.0")
    assert results(expect={"torchscript+rounds": known})[-1].status is onnx_ci.Status.XFAILED
    assert results(allow=["weight-mismatch"])[-1].status is onnx_ci.Status.PASSED


def test_a_single_number_is_no_weight_to_compare():
    recipe = onnx_ci.recipe(input_names=["x"], name="net")(lambda: (Counts(), (torch.randn(3),)))
    (result,) = onnx_ci.run([recipe], opsets="13", isolation="none").cells
    rules = {each.rule for each in result.findings}
    assert {"impure-model"} <= rules <= {"impure-model", "baked-value", "numeric-drift", "export-warning"}


# --- stored several times ---------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self, *, is_tied=True):
        super().__init__()
        self.words, self.scores = nn.Embedding(500, 32), nn.Linear(32, 500, bias=False)
        self.scores.weight = self.words.weight if is_tied else nn.Parameter(self.words.weight.detach().clone())

    def forward(self, x):
        return self.scores(self.words(x))


def tied(**keywords):
    is_tied = keywords.pop("is_tied", True)
    return onnx_ci.recipe(name="net", **keywords)(lambda: (Tied(is_tied=is_tied), (torch.randint(0, 500, (2, 3)),)))


def repeated(recipe, exporter, opset):
    result = run_one(recipe, opsets=opset, exporters=exporter, effort="quick")
    assert set(rules(result)) <= {"repeated-weight"}, result.findings
    return [each for each in result.findings if each.rule == "repeated-weight"]


@both
def test_tied_weights_that_are_stored_twice_are_told(exporter, opset):
    found = repeated(tied(), exporter, opset)
    if exporter == "dynamo":
        assert not found
        return
    (wrong,) = found
    assert wrong.message.startswith("the weight 'words.weight' is stored 2 times, as 'words.weight' and 'onnx::MatMul_")
    assert wrong.message.endswith(": 64,000 bytes more than the model has")
    assert wrong.details["bytes"] == 64_000


@both
@pytest.mark.parametrize(
    "keywords",
    [{"do_constant_folding": False}, {"is_tied": False}, {"is_tied": False, "weights": "trained"}],
    ids=["unfolded", "untied", "equal"],
)
def test_weights_that_are_stored_as_often_as_the_model_has_them_pass(exporter, opset, keywords):
    assert not repeated(tied(**keywords), exporter, opset)


class Shared(nn.Module):
    """A layer that is used twice."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        for _ in range(2):
            y = self.layer(x)
            x = y if isinstance(y, torch.Tensor) else y[0]  # torch 2.9 writes a wrong rank for a second LSTM's states
        return x


@both
@pytest.mark.parametrize("layer", [nn.Linear(128, 128), nn.LSTM(128, 128)], ids=["linear", "lstm"])
def test_a_layer_that_is_used_twice_is_stored_once(exporter, opset, layer):
    recipe = onnx_ci.recipe(name="net")(lambda: (Shared(layer), (torch.randn(2, 128, 128),)))
    assert not repeated(recipe, exporter, opset)


def test_small_repetitions_do_not_matter(tmp_path):
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(128, 128), nn.Linear(128, 128)

        def forward(self, x):
            return self.second(self.first(x))

    recipe = onnx_ci.recipe(name="net")(lambda: (Large(), (torch.randn(2, 128),)))
    made = onnx_ci.export(recipe, opset=17, path=tmp_path / "net.onnx")
    for name, is_told in (("first.bias", False), ("first.weight", True)):
        model = onnx.load(made.path)
        tensor = next(each for each in model.graph.initializer if each.name == name)
        copy = model.graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = "again"
        model.graph.node.append(onnx.helper.make_node("Identity", ["again"], ["unused"]))
        found = {each.rule for each in onnx_ci.verify(model.SerializeToString(), recipe).findings}
        assert ("repeated-weight" in found) is is_told
