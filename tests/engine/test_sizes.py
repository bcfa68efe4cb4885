"""Models that only take some sizes: right files pass on all of them, and files that are wrong at one of them fail."""

from __future__ import annotations

import re

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from toolbox.cells import errors, rules, run_one
from torch import nn
from torch.export import Dim

import onnx_ci
from onnx_ci import Status

EXPORTERS = pytest.mark.parametrize(("exporter", "opset"), [("torchscript", "13"), ("dynamo", "18")])
BATCH = {0: "batch"}


class DecodingStep(nn.Module):
    """The attention of one new token to a cache and itself, with a mask as long as both."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, mask, past_key, past_value):
        key = torch.cat([past_key, self.key(x)], 1)
        value = torch.cat([past_value, self.value(x)], 1)
        scores = self.query(x) @ key.transpose(1, 2) * 8**-0.5
        assert mask.shape == key.shape[:2]
        return self.out((scores + mask[:, None]).softmax(-1) @ value), key, value


class FrozenLength(DecodingStep):
    """Divides by the length of the mask, which both exporters freeze."""

    def forward(self, x, mask, past_key, past_value):
        y, key, value = super().forward(x, mask, past_key, past_value)
        return y / sum(1.0 for _ in range(mask.shape[1])), key, value


def step_axes(total):
    growing = {**BATCH, 1: total}
    past = {**BATCH, 1: "past"}
    return {
        "dynamic_axes": {
            "x": BATCH,
            "mask": growing,
            "past_key": past,
            "past_value": past,
            "y": BATCH,
            "key": growing,
            "value": growing,
        }
    }


def step_shapes():
    past = Dim("past", min=1, max=64)
    cache = {**BATCH, 1: past}
    return {"dynamic_shapes": {"x": BATCH, "mask": {**BATCH, 1: past + 1}, "past_key": cache, "past_value": cache}}


def step_recipe(model, **keywords):
    def args():
        return torch.randn(2, 1, 8), torch.randn(2, 6), torch.randn(2, 5, 8), torch.randn(2, 5, 8)

    names = {"input_names": ["x", "mask", "past_key", "past_value"], "output_names": ["y", "key", "value"]}
    return onnx_ci.recipe(name="step", **names, **keywords)(lambda: (model(), args()))


FED = {"feedback": {"key": "past_key", "value": "past_value"}, "steps": 4}
STEPS = {"axes": step_axes("past + 1"), "dims": step_shapes(), "fed back": {**step_axes("past + 1"), **FED}}


def declared(ways, quick):
    """Every way to declare sizes with both exporters. With dynamo, only those are quick that it is given in different forms."""
    return pytest.mark.parametrize(
        ("exporter", "opset", "keywords"),
        [
            pytest.param(
                exporter, opset, keywords, id=f"{exporter}-{name}",
                marks=[] if exporter == "torchscript" or name in quick else pytest.mark.slow,
            )
            for exporter, opset in (("torchscript", "13"), ("dynamo", "18"))
            for name, keywords in ways.items()
        ],
    )  # fmt: skip


@declared(STEPS, quick=("axes",))
def test_a_decoding_step_passes_with_a_mask_that_follows_its_cache(exporter, opset, keywords):
    result = run_one(step_recipe(DecodingStep, **keywords), exporters=exporter, opsets=opset)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    assert not [each for each in result.findings if each.rule == "size-relation"]


@pytest.mark.slow
@declared(STEPS, quick=())
def test_a_decoding_step_with_a_frozen_length_fails(exporter, opset, keywords):
    result = run_one(step_recipe(FrozenLength, **keywords), exporters=exporter, opsets=opset)
    assert result.status is Status.FAILED
    (found,) = errors(result)
    if exporter == "torchscript":
        assert (found.rule, found.output) == ("baked-value", "y")
        assert "past=" in found.message
    else:
        assert found.rule == "export-error"
        assert "'mask'" in found.remedy or "'past'" in found.remedy


@EXPORTERS
def test_an_undeclared_relation_is_told_and_does_not_fail_a_right_file(exporter, opset):
    result = run_one(step_recipe(DecodingStep, **step_axes("total")), exporters=exporter, opsets=opset)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    (told,) = (each for each in result.findings if each.rule == "size-relation")
    assert "'mask': {1: 'past + 1'}" in told.remedy


def test_an_undeclared_relation_does_not_pass_a_wrong_file():
    result = run_one(step_recipe(FrozenLength, **step_axes("total")), exporters="torchscript")
    assert rules(result) == ["baked-value"]


class UNet(nn.Module):
    """Halves an image three times and doubles it again. Adding what it was before requires multiples of 8."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(channels, 4, 3, stride=2, padding=1) for channels in (3, 4, 4))
        self.up = nn.ModuleList(nn.ConvTranspose2d(4, channels, 2, 2) for channels in (4, 4, 3))

    def forward(self, x):
        seen = []
        for layer in self.down:
            seen.append(x)
            x = torch.relu(layer(x))
        for layer in self.up:
            x = layer(x) + seen.pop()
        return x


class FrozenHeight(UNet):
    def forward(self, x):
        return super().forward(x) / sum(1.0 for _ in range(x.shape[2]))


def image_axes(height, width):
    return {"dynamic_axes": {name: {**BATCH, 2: height, 3: width} for name in "xy"}}


def unet_recipe(model, **keywords):
    names = {"input_names": ["x"], "output_names": ["y"]}
    return onnx_ci.recipe(name="unet", **names, **keywords)(lambda: (model(), (torch.randn(2, 3, 16, 24),)))


EIGHTS = onnx_ci.multiple_of(8)
UNETS = {
    "multiples": {**image_axes("height", "width"), "dynamic_sizes": {"height": EIGHTS, "width": EIGHTS}},
    "ranges": {**image_axes("height", "width"), "dynamic_sizes": {"height": range(8, 65, 8), "width": range(16, 81, 8)}},
    "expressions": image_axes("8*_h", "8*_w"),
    "dims": {"dynamic_shapes": {"x": {0: "batch", 2: 8 * Dim("_h"), 3: 8 * Dim("_w")}}},
}


@declared(UNETS, quick=("multiples",))
def test_a_unet_passes_at_the_multiples_that_it_takes(exporter, opset, keywords):
    result = run_one(unet_recipe(UNet, **keywords), exporters=exporter, opsets=opset)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    assert not [each for each in result.findings if each.rule == "size-relation"]


@pytest.mark.slow
@declared(UNETS, quick=())
def test_a_unet_with_a_frozen_height_fails(exporter, opset, keywords):
    result = run_one(unet_recipe(FrozenHeight, **keywords), exporters=exporter, opsets=opset)
    assert result.status is Status.FAILED
    (found,) = errors(result)
    if found.rule == "export-error":  # torch.export rejects a name for an axis that it finds to be static
        assert re.match(r"The loop fixes the axis '(height|8\*_h)' of 'x' to 16: ", found.remedy)
    else:
        assert found.rule == "baked-value"


@EXPORTERS
def test_multiples_that_are_not_declared_are_told(exporter, opset):
    result = run_one(unet_recipe(UNet, **image_axes("height", "width")), exporters=exporter, opsets=opset)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    told = [each.remedy for each in result.findings if each.rule == "size-relation"]
    assert told == [f"Declare it: dynamic_sizes={{'{axis}': onnx_ci.multiple_of(8)}}." for axis in ("height", "width")]


class CropsIfNeeded(UNet):
    """Also takes other sizes, but a file cannot crop only then."""

    def forward(self, x):
        seen = []
        for layer in self.down:
            seen.append(x)
            x = torch.relu(layer(x))
        for layer in self.up:
            y, x = seen.pop(), layer(x)
            if x.shape[2:] != y.shape[2:]:
                x = x[:, :, : y.shape[2], : y.shape[3]]
            x = x + y
        return x


def test_a_file_that_fails_at_odd_sizes_names_the_option_with_which_it_passes():
    axes = image_axes("height", "width")
    keywords = {"exporters": "torchscript", "rules": "export-warning=note"}
    failed = run_one(unet_recipe(CropsIfNeeded, **axes), **keywords)
    assert set(rules(failed)) == {"baked-shape", "shape-mismatch"}
    remedy = "declare dynamic_sizes={NAME: range(LOW, HIGH)} or onnx_ci.multiple_of(8)."
    assert all(remedy in each.remedy for each in failed.findings if each.rule == "baked-shape")
    passed = run_one(unet_recipe(CropsIfNeeded, **axes, dynamic_sizes={"height": EIGHTS, "width": EIGHTS}), **keywords)
    assert passed.status is Status.PASSED


# --- what torch.export says about sizes


@pytest.mark.parametrize(
    ("suggested", "remedy"),
    [
        ("height = 8*_height", "torch.export suggests: name the axis 'height' by its size, '8*_height'."),
        ("height = 16", "torch.export suggests: do not declare 'height' dynamic, because it is always 16."),
        ("n = Dim('n', max=31)", "torch.export suggests: declare the sizes of 'n' in dynamic_shapes, torch.export.Dim('n', max=31)."),
        ("total = past + 1\n  past = Dim('past', min=2)", "name the axis 'total' by its size, 'past + 1'; declare the sizes of 'past'"),
    ],
)  # fmt: skip
def test_fixes_that_torch_export_suggests_become_the_remedy(monkeypatch, suggested, remedy):
    def export(*args, **kwargs):
        text = f"Constraints violated (height)!\nSuggested fixes:\n  {suggested}\n\nThe above was raised"
        raise RuntimeError("export failed") from ValueError(text)

    monkeypatch.setattr(torch.onnx, "export", export)
    (found,) = run_one(unet_recipe(UNet), exporters="dynamo", opsets="18", isolation="none").findings
    assert found.rule == "export-error"
    assert remedy in found.remedy


# --- two files


def file_of(path, mask="past + 1", frozen=False):
    """A file that adds a mask to a cache and one more element."""
    x = helper.make_tensor_value_info("past", TensorProto.FLOAT, ["past"])
    mask_info = helper.make_tensor_value_info("mask", TensorProto.FLOAT, [mask])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["out"])
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    ends = [helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in (("zero", 0), ("end", 8), ("step", 1))]
    nodes = [
        helper.make_node("Concat", ["past", "one"], ["grown"], axis=0),
        helper.make_node("Mul", ["grown", "mask"], ["product"]),
        # With a frozen length, only the first eight elements are kept, which hides nothing at small sizes.
        helper.make_node("Slice", ["product", "zero", "end", "zero", "step"], ["y"])
        if frozen
        else helper.make_node("Identity", ["product"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "graph", [x, mask_info], [y], [one, *ends])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_two_files_are_compared_at_sizes_that_follow(tmp_path):
    right = file_of(tmp_path / "a.onnx")
    same = onnx_ci.compare(right, file_of(tmp_path / "b.onnx"), sizes={"past": (5, 20)})
    assert not [each for each in same.findings if each.rule == "vacuous"]
    assert any("past=20" in each.probe for each in same.outputs)
    different = onnx_ci.compare(right, file_of(tmp_path / "c.onnx", frozen=True), sizes={"past": (5, 20)})
    assert any("past=20" in each.message for each in different.findings)
    with pytest.raises(onnx_ci.ConfigurationError, match="no input has a dynamic axis 'past \\+ 1'; did you mean 'past'"):
        onnx_ci.compare(right, right, sizes={"past + 1": (6,)})


def test_a_dimension_that_is_declared_as_an_expression_must_hold(tmp_path):
    declared = {"x": {0: "n"}, "y": {0: "2*n"}}

    class Repeats(nn.Module):
        def forward(self, x):
            return torch.cat([x, x])

    recipe = onnx_ci.recipe(name="twice", input_names=["x"], output_names=["y"], dynamic_axes=declared)(
        lambda: (Repeats(), (torch.randn(3),))
    )
    with_artifacts = run_one(recipe, artifacts=tmp_path)
    assert with_artifacts.status is Status.PASSED
    (path,) = tmp_path.rglob("*.onnx")
    model = onnx.load(path)
    dims = model.graph.output[0].type.tensor_type.shape.dim
    assert dims[0].dim_param == "2*n"
    dims[0].dim_param = "n + n"
    onnx.save(model, path)
    assert rules(onnx_ci.verify(path, recipe, opset=13)) == []
    dims[0].dim_param = "n + 3"
    onnx.save(model, path)
    assert set(rules(onnx_ci.verify(path, recipe, opset=13))) == {"name-mismatch", "shape-mismatch"}


class Tagger(nn.Module):
    """Three outputs: the features of all words, a number for each text, and three for each."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, ids):
        features = self.embedding(ids).tanh()
        tags = self.head(features.mean(1))
        return features, tags.sum(1), tags


def tagger(*output_names, **axes):
    length = {0: "batch", 1: "length"}
    axes = {"ids": length, "features": length, "score": BATCH, "tags": BATCH} | axes

    @onnx_ci.recipe(input_names=["ids"], output_names=output_names, dynamic_axes=axes)
    def recipe():
        return Tagger(), torch.arange(14).reshape(2, 7) % 9

    return run_one(recipe, opsets="17")


@pytest.mark.parametrize(
    "names", [("tags", "score", "features"), ("score", "features", "tags")], ids=["another size", "another rank"]
)
def test_names_of_outputs_that_fit_in_another_order_are_the_one_finding(names):
    """Declaring other axes instead would make the cell green, and whoever uses the file would read the wrong output."""
    (found,) = errors(tagger(*names))
    assert found.rule == "name-mismatch"
    assert found.message == (
        f"output_names lists {', '.join(names)}, but the axes declared for them fit the order features, score, tags"
    )
    assert found.remedy == "Declare output_names in the model's own order: they are assigned by position."


def test_names_of_outputs_in_the_order_of_the_model_pass_whatever_else_would_fit():
    assert tagger("features", "score", "tags", tags={}, features=BATCH).status is Status.PASSED


def test_an_axis_whose_name_fits_any_output_is_no_question_of_order():
    assert rules(tagger("features", "score", "tags", score={0: "batch", 1: "other"})) == ["unknown-axis"]


class Divides(nn.Module):
    def forward(self, x):
        return x.sum(1) / int(x.shape[1])


@pytest.mark.parametrize(
    ("declared", "expected"),
    [({"dynamic_shapes": ({1: Dim("time", min=2, max=9)},)}, "static-axis"), ({"dynamic_axes": {"x": {1: "time"}}}, None)],
    ids=["a Dim, whose axis is fixed silently", "a name, of which the size stays a symbol"],
)
def test_dynamo_is_called_with_what_the_recipe_declares(declared, expected):
    recipe = onnx_ci.recipe(name="net", input_names=["x"], output_names=["y"], **declared)(
        lambda: (Divides(), torch.rand(2, 5))
    )
    result = run_one(recipe, opsets="20", exporters="dynamo")
    assert rules(result)[:1] == [expected] if expected else result.status is Status.PASSED
