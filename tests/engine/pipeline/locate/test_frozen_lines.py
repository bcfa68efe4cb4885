"""The lines that a file has as they were on the example are named, each proven by a run of the model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toolbox.cells import ROWS, Function, run_one
from torch import nn

import onnx_ci

SIZES = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "rows", 1: "steps"}, "y": {0: "rows"}}}


def errors(recipe, **options):
    findings = run_one(recipe, **options).findings
    return [each for each in findings if each.severity is onnx_ci.Severity.ERROR]


def marked_lines(found):
    return [line.text for line in found.lines]


class OneOfManySizes(nn.Module):
    """Many lines use the sizes, and one of them makes a number of them."""

    def forward(self, x):
        rows, steps = x.shape[0], x.shape[1]
        flat = x.reshape(rows * steps, 4).tanh()
        flat = flat.view(rows, steps, 4)
        half = math.ceil(steps / 2)  # fault
        return torch.cat([flat[:, :half].sum(1), flat.view(rows, steps * 4)[:, :2]], 1)


class InHelper(nn.Module):
    def forward(self, x):
        return x.sum((1, 2)) + table_of(x)


def table_of(x):
    ramp = x.new_ones(3)
    if x.shape[1] == 3:  # fault
        return ramp.sum()
    return ramp.flip(0).cumsum(0).max() * 2


class ValueOfTensor(nn.Module):
    def forward(self, x):
        last = int(x.abs().sum((0, 2)).argmax())  # fault
        kept = x[:, last]
        return kept.exp()


class CountedByLen(nn.Module):
    def forward(self, x):
        count = len(x[0])  # fault
        return x.sum(1) / count


class LongestSoFar(nn.Module):
    def forward(self, x):
        longest = 0
        for count in (x.abs().sum(2) > 0).sum(1):
            longest = max(longest, int(count))  # fault
        return x[:, :longest].sum(1)


FROZEN = {each.__name__: each for each in (OneOfManySizes, InHelper, ValueOfTensor, CountedByLen, LongestSoFar)}


@pytest.mark.parametrize("name", FROZEN)
def test_the_line_that_makes_the_frozen_value_is_named(name):
    recipe = onnx_ci.recipe(lambda: (FROZEN[name](), (torch.randn(2, 3, 4),)), name="net", **SIZES)
    found = [each for each in errors(recipe) if each.probe is not None]
    assert found
    for each in found:
        assert [text.endswith("# fault") for text in marked_lines(each)] == [True], each


class TwoFaults(nn.Module):
    def forward(self, x):
        doubled = x * int(x.shape[0])  # first
        if x.shape[0] > 2:  # second
            doubled = doubled + 1
        return doubled


def test_two_faults_that_only_together_explain_the_file_are_both_named():
    found = errors(onnx_ci.recipe(lambda: (TwoFaults(), (torch.randn(2, 4),)), name="net", **ROWS))
    assert ["x * int(x.shape[0])" in text for text in marked_lines(found[0])] == [True, False]
    assert marked_lines(found[0])[1].endswith("# second")


class EndsEarly(nn.Module):
    """``or`` asks both questions on the example, and only the first one at an odd number of rows."""

    def forward(self, x):
        if x.shape[0] % 2 != 0 or x.shape[1] % 2 != 0:  # fault
            x = x * 2
        return x.exp()


def test_a_condition_of_several_parts_is_no_loop():
    declared = {**SIZES, "dynamic_axes": {"x": {0: "rows", 1: "steps"}, "y": {0: "rows", 1: "steps"}}}
    found = errors(onnx_ci.recipe(lambda: (EndsEarly(), (torch.randn(2, 4, 4),)), name="net", **declared))
    assert {each.culprits[0].frozen.kind for each in found} == {onnx_ci.FrozenKind.CONDITION}
    assert all("torch.where" in each.remedy for each in found)


class PadsOdd(nn.Module):
    def forward(self, x):
        if x.shape[1] % 2 != 0:  # fault
            x = torch.cat([x, x[:, :1]], 1)
        return x.reshape(x.shape[0], -1, 2).exp()


class OneAfterTheOther(nn.Module):
    """The example asks both questions. Without the first one's answer, a long input asks the second for the first time."""

    def forward(self, x):
        if x.shape[1] > 5:  # fault
            x = x * 2
        elif x.shape[1] % 2 == 0:  # fault
            x = x - 1
        return x.exp().sum(1)


def test_of_conditions_that_follow_each_other_the_one_that_decides_is_named():
    sizes = {"steps": [3, 8]}
    found = errors(
        onnx_ci.recipe(lambda: (OneAfterTheOther(), (torch.randn(2, 3, 4),)), name="net", **SIZES, dynamic_sizes=sizes)
    )
    assert {each.culprits[0].frozen.kind for each in found} == {onnx_ci.FrozenKind.CONDITION}
    assert [text.partition(" ")[0] for each in found for text in marked_lines(each)] == ["if"]


class Repaired(nn.Module):
    def forward(self, x):
        x = x.log()
        for row, column in x.isnan().nonzero().tolist():  # fault
            x[row, column] = -3.0
        return x.sum(1)


class Clean(nn.Module):
    def forward(self, x):
        if np.sign(x.numpy()).min() < 0:  # fault
            x = x.exp()
        return x * 2


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (Repaired, "compute with the tensor, not with a list of its numbers"),
        (Clean, "compute it with functions of torch"),
    ],
)
def test_numbers_that_leave_torch_together_are_one_cause(model, remedy):
    found = errors(onnx_ci.recipe(lambda: (model(), (torch.rand(3, 4),)), name="net", **ROWS))
    assert found
    for each in found:
        assert [text.endswith("# fault") for text in marked_lines(each)] == [True], each
        assert remedy in each.remedy


def test_sides_of_different_shapes_are_not_for_where():
    declared = {**SIZES, "dynamic_axes": {"x": {0: "rows", 1: "steps"}, "y": {0: "rows", 1: "pairs"}}}
    found = errors(onnx_ci.recipe(lambda: (PadsOdd(), (torch.randn(2, 4),)), name="net", **declared))
    of_shape = [each for each in found if each.rule == "baked-shape"]
    assert of_shape
    assert all("Do without the branch" in each.remedy for each in of_shape)


def test_what_limits_the_sizes_is_a_remedy_that_lists_do_not_end():
    declared = {**SIZES, "dynamic_axes": {"x": {0: "rows", 1: "steps"}, "y": {0: "rows", 1: "pairs"}}}

    def found(**sizes):
        return errors(onnx_ci.recipe(lambda: (PadsOdd(), (torch.randn(2, 4),)), name="net", **declared, **sizes))

    for sizes in ({}, {"dynamic_sizes": {"steps": (6, 8)}}):
        assert any("If only some sizes are meant, declare" in each.remedy for each in found(**sizes))
    assert found(dynamic_sizes={"steps": onnx_ci.multiple_of(2)}) == found(dynamic_sizes={"steps": range(2, 99, 2)}) == []


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = None

    def forward(self, x):
        if self.seen is None or self.seen.shape[0] != x.shape[1]:  # fault
            self.seen = torch.ones(x.shape[1], x.shape[1]).tril() > 0
        return (x[:, :, None] * x[:, None]).masked_fill(~self.seen, 0.0).sum(2)


def test_what_is_kept_for_a_size_is_to_be_made_in_each_run():
    def warmed_up():
        model, x = Keeps(), torch.randn(2, 4)
        model(x)
        return model, (x,)

    declared = {**SIZES, "dynamic_axes": {"x": {0: "rows", 1: "steps"}, "y": {0: "rows", 1: "steps"}}}
    found = errors(onnx_ci.recipe(warmed_up, name="net", **declared))
    assert [text.endswith("# fault") for each in found for text in marked_lines(each)] == [True] * len(found) != []
    assert all("make a new one in each run" in each.remedy for each in found)


class Ranks(nn.Module):
    def forward(self, x):
        order = sorted(range(len(x)), key=lambda row: -float(x[row, 0]))  # fault
        return x[order]


class RanksWithTorch(nn.Module):
    def forward(self, x):
        return x[x[:, 0].argsort(descending=True)]


def test_an_order_is_to_be_found_by_torch():
    found = errors(onnx_ci.recipe(lambda: (Ranks(), (torch.randn(3, 4),)), name="net", **ROWS))
    assert found
    assert all("x[x.argsort(descending=True)]" in each.remedy for each in found)
    assert not errors(onnx_ci.recipe(lambda: (RanksWithTorch(), (torch.randn(3, 4),)), name="net", **ROWS))


class Upsamples(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(1, 1, 3, stride=2, padding=1)

    def forward(self, x):
        return x + self.up(x[:, None, ::2], output_size=x.shape[1:])[:, 0]  # fault


class UpsamplesAndCuts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(1, 1, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        return x + self.up(x[:, None, ::2])[..., : x.shape[1]][:, 0]


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, which):
        return self.towers[int(which)](x)  # fault


class ChoosesByIndex(Chooses):
    def forward(self, x, which):
        return torch.stack([tower(x) for tower in self.towers])[which]


class Rolls(nn.Module):
    def forward(self, x):
        return torch.roll(x, x.shape[1] // 2, -1)  # fault


class RollsByParts(nn.Module):
    def forward(self, x):
        return torch.cat([x[..., -(x.shape[1] // 2) :], x[..., : -(x.shape[1] // 2)]], -1)


class Best(nn.Module):
    def forward(self, x):
        return x.topk(int(x.shape[1] * 0.75), 1).values.sum(1)  # fault


class BestOfTensor(nn.Module):
    def forward(self, x):
        return x.topk((torch.tensor(x.shape[1]) * 0.75).long(), 1).values.sum(1)


class Scales(nn.Module):
    def forward(self, x):
        return x * math.log(x.shape[1] + 1)  # fault


class ScalesRows(nn.Module):
    def forward(self, x):
        return x / math.sqrt(x.shape[0])  # fault


class ScalesRowsByTensor(nn.Module):
    def forward(self, x):
        return x / torch.tensor(x.shape[0]).float().sqrt()


class ScalesByTensor(nn.Module):
    def forward(self, x):
        return x * torch.tensor(x.shape[1] + 1).float().log()


COLUMNS = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "rows", 1: "n"}, "y": {0: "rows", 1: "n"}}}
ONE_AXIS = {"dynamic_axes": {"x": {0: "rows", 1: "n"}, "y": {0: "rows"}}}
KIND = {**ROWS, "input_names": ["x", "which"], "inputs": {"which": onnx_ci.integers(0, 3)}}


@pytest.mark.parametrize(
    ("wrong", "right", "others", "declared", "remedy"),
    [
        (Upsamples, UpsamplesAndCuts, (), COLUMNS, "up(x)[..., : y.shape[-2], : y.shape[-1]] in place of"),
        (Rolls, RollsByParts, (), {**COLUMNS, "dynamic_sizes": {"n": range(2, 9)}}, "in place of torch.roll(x, 3, -1)"),
        (Best, BestOfTensor, (), {**COLUMNS, "dynamic_sizes": {"n": range(2, 9)}, **ONE_AXIS}, "is int(n * 0.75)"),
        (Scales, ScalesByTensor, (), COLUMNS, "torch.tensor(x.shape[1]).float().log()"),
        (ScalesRows, ScalesRowsByTensor, (), COLUMNS, "torch.tensor(x.shape[1]).float().log()"),
        (Chooses, ChoosesByIndex, (torch.tensor(1),), KIND, "torch.stack([layer(x) for layer in layers])[index]"),
    ],
    ids=["an output's size", "roll", "int", "math", "math of a size", "a module by a value"],
)
def test_lines_that_are_known_to_be_frozen_have_what_to_write(wrong, right, others, declared, remedy):
    found = errors(onnx_ci.recipe(lambda: (wrong(), (torch.randn(3, 4), *others)), name="net", **declared))
    assert found
    assert all(remedy in each.remedy for each in found)
    assert not errors(onnx_ci.recipe(lambda: (right(), (torch.randn(3, 4), *others)), name="net", **declared))


class IntoView(nn.Module):
    def forward(self, x):
        y = x * 3
        left = y[:, :2]
        y.add_(1)
        left.mul_(2)  # lost
        return y.sum(1)


def test_a_write_is_named_if_the_model_without_it_is_what_the_file_is():
    (found,) = errors(onnx_ci.recipe(lambda: (IntoView(), (torch.randn(2, 4),)), name="net", **ROWS))
    assert found.culprits[0].source.text == "left.mul_(2)  # lost"
    assert found.culprits[0].frozen.kind is onnx_ci.FrozenKind.WRITE
    assert "The line writes into a tensor" in found.remedy


class Replaces(nn.Module):
    """Without the branch, torch refuses the index of -1, and ONNX Runtime takes the last row."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, codes):
        unknown = codes < 0
        if unknown.any():  # fault
            codes = torch.where(unknown, 3, codes)
        return self.table(codes)


def test_a_branch_is_named_without_which_the_model_fails_and_the_file_does_not():
    found = errors(
        onnx_ci.recipe(
            lambda: (Replaces(), (torch.tensor([0, 2, 4, 1]),)),
            name="net",
            input_names=["codes"],
            output_names=["y"],
            inputs={"codes": onnx_ci.integers(-1, 5)},
        )
    )
    assert found
    assert {each.lines[0].text for each in found} == {"if unknown.any():  # fault"}


class Dependent(nn.Module):
    """The number at the first line decides at the second one; the first is used elsewhere, too."""

    def forward(self, x):
        rows = int(x.shape[0])  # fault
        return x.sum(0) * rows + torch.ones(rows).sum()


def test_one_number_used_twice_is_named_where_it_is_read():
    declared = {**ROWS, "dynamic_axes": {"x": {0: "rows"}}}
    found = errors(onnx_ci.recipe(lambda: (Dependent(), (torch.randn(3, 4),)), name="net", **declared))
    assert {text for each in found for text in marked_lines(each)} == {"rows = int(x.shape[0])  # fault"}


class Right(nn.Module):
    def forward(self, x):
        rows = x.shape[0]
        return x.reshape(rows, -1) * torch.arange(4) + torch.ones(rows, 4)


def test_nothing_is_named_in_a_model_whose_file_is_right():
    recipe = onnx_ci.recipe(lambda: (Right(), (torch.randn(3, 4),)), name="net", **ROWS)
    assert errors(recipe) == []


class ByNumpy(nn.Module):
    def forward(self, x):
        order = np.arange(x.shape[1])[::-1].copy()  # fault
        return x[:, torch.from_numpy(order)].cumsum(1).sum(1)


class ByUniversalFunction(nn.Module):
    def forward(self, x):
        largest = np.maximum.reduce([2, x.shape[0]])
        kept = int(np.ceil(x.shape[1] / 2))  # fault
        return x[:, :kept].sum(1) + 0 * largest


@pytest.mark.parametrize("model", [ByNumpy, ByUniversalFunction])
def test_a_line_that_computes_with_plain_numbers_is_named(model):
    found = errors(onnx_ci.recipe(lambda: (model(), (torch.randn(2, 3, 4),)), name="net", **SIZES))
    assert found
    assert {text.endswith("# fault") for each in found for text in marked_lines(each)} == {True}


class EachPair(nn.Module):
    """With a table of the example's size, the model fails, too; with fewer pairs it does not, but no file has fewer."""

    def forward(self, x, pairs):
        table = torch.zeros(x.shape[0], x.shape[0])
        for row, column in pairs:  # fault
            table[row, column] = 1
        return table @ x


def ramp_of(steps: int):
    return torch.arange(steps) / 8


class ByScriptedFunction(nn.Module):
    """No mode sees what makes its tensor."""

    def __init__(self):
        super().__init__()
        with pytest.warns(DeprecationWarning):
            self.ramp_of = torch.jit.script(ramp_of)

    def forward(self, x):
        ramp = self.ramp_of(x.shape[1])
        shared = x.tanh()
        weights = ramp[None, :, None]  # fault
        return shared * weights


class ByHiddenNumpy(nn.Module):
    """Nor what is computed with a numpy that is imported within."""

    def forward(self, x):
        import numpy

        ramp = torch.from_numpy(numpy.arange(x.shape[1]))
        shared = x.tanh()
        weights = ramp[None, :, None] / 8  # fault
        return shared * weights


@pytest.mark.parametrize("model", [ByScriptedFunction, ByHiddenNumpy])
def test_a_line_that_uses_a_tensor_made_out_of_sight_is_named(model):
    recipe = onnx_ci.recipe(name="net", **SIZES)(lambda: (model(), (torch.rand(2, 3, 4),)))
    found = next(each for each in errors(recipe, opsets="17") if each.rule == "baked-shape")
    assert [line.rpartition("# ")[2] for line in marked_lines(found)] == ["fault"]
    assert found.remedy.startswith("The file has the tensor of the example: make it of the input's shape")


class KeepsTensors(nn.Module):
    """Its tables are not weights, and are the same on every input, so nothing is their fault."""

    def __init__(self):
        super().__init__()
        self.tables = [torch.arange(4.0), torch.ones(4)]

    def forward(self, x):
        scaled = x * self.tables[0] + self.tables[1]
        return scaled.sum(1) / len(x[0])  # fault


def test_tensors_that_a_model_keeps_are_not_blamed():
    recipe = onnx_ci.recipe(name="net", **SIZES)(lambda: (KeepsTensors(), (torch.rand(2, 3, 4),)))
    found = next(each for each in errors(recipe, opsets="17") if each.rule == "baked-value")
    assert [line.rpartition("# ")[2] for line in marked_lines(found)] == ["fault"]


def test_a_loop_over_a_tensor_is_named_though_the_model_would_do_with_fewer_rounds():
    def net():
        return EachPair(), (torch.randn(3, 4), torch.tensor([[0, 1], [2, 0]]))

    names = {"input_names": ["x", "pairs"], "output_names": ["y"]}
    dynamic = {"x": {0: "rows"}, "pairs": {0: "pairs"}, "y": {0: "rows"}}
    found = errors(onnx_ci.recipe(net, name="net", dynamic_axes=dynamic, **names))
    assert [text.endswith("# fault") for text in marked_lines(found[0])] == [True]
    assert found[0].culprits[0].frozen.kind is onnx_ci.FrozenKind.TENSORS
    assert "as many of them as the example" in found[0].remedy


class Chosen(nn.Module):
    def forward(self, x, position):
        return x[:, int(position)] * 2  # fault


def test_the_line_that_reads_an_input_which_the_file_does_not_have_is_named():
    names = {"input_names": ["x", "position"], "output_names": ["y"]}
    (found,) = errors(onnx_ci.recipe(lambda: (Chosen(), (torch.randn(2, 3), torch.tensor(1))), name="net", **names))
    assert found.rule == "input-missing"
    assert [text.endswith("# fault") for text in marked_lines(found)] == [True]


class Gated(nn.Module):
    def forward(self, x, done):
        if done.any():  # fault
            x = x * 0.5
        return x + 1


def test_a_missing_input_of_which_only_a_branch_is_frozen_is_told_with_the_remedy_of_a_branch():
    names = {"input_names": ["x", "done"], "output_names": ["y"]}
    (found,) = errors(onnx_ci.recipe(lambda: (Gated(), (torch.randn(2, 3), torch.tensor([False, False]))), name="net", **names))
    assert found.rule == "input-missing"
    assert "torch.where" in found.remedy


class WrittenIntoView(nn.Module):
    """The newest frame goes into the last place of a cache, through a view of that place."""

    def forward(self, frame, cache):
        following = torch.cat([cache[:, 1:], cache[:, :1]], 1)
        newest = following[:, 4]
        newest.copy_(frame)  # fault
        return following.sum(1).tanh(), following


def test_the_write_that_is_lost_with_all_that_is_computed_from_an_input_is_named():
    names = {"input_names": ["frame", "cache"], "output_names": ["y", "following"]}
    (found,) = errors(
        onnx_ci.recipe(lambda: (WrittenIntoView(), (torch.randn(2, 3), torch.randn(2, 5, 3))), name="net", **names)
    )
    assert found.rule == "input-missing"
    assert [text.endswith("# fault") for text in marked_lines(found)] == [True]
    assert "The line writes into a tensor" in found.remedy


class NamedByNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = {"scale_0": 0.5, "scale_1": 2.0, "scale_2": 3.0}

    def forward(self, x, task):
        key = f"scale_{task}"  # fault
        return x * self.scales[key]


def test_a_tensor_that_becomes_a_part_of_a_key_is_named():
    names = {"input_names": ["x", "task"], "output_names": ["y"]}
    (found,) = errors(onnx_ci.recipe(lambda: (NamedByNumber(), (torch.randn(2, 3), torch.tensor(1))), name="net", **names))
    assert [text.endswith("# fault") for text in marked_lines(found)] == [True]
    assert found.culprits[0].frozen.kind == "number"


class OfOneSizeAndImprecise(nn.Module):
    """TorchScript writes distances so that those of equal points are not zero."""

    def forward(self, x, present):
        order = (torch.arange(present.shape[0]) - 1000 * present.int()).argsort()
        count = int(present.sum())  # fault
        real = x[order][:count]
        return real.tanh() + torch.cdist(real, real).exp().reciprocal().sum(1, keepdim=True)


def test_a_line_that_fixes_a_shape_is_named_where_it_does_and_not_for_another_fault_of_the_values():
    model = OfOneSizeAndImprecise(), (torch.randn(6, 16), torch.tensor([True, True, False, True, True, False]))
    axes = {"x": {0: "atoms"}, "present": {0: "atoms"}, "y": {0: "real"}}
    recipe = onnx_ci.recipe(lambda: model, name="net", input_names=[*axes][:2], output_names=["y"], dynamic_axes=axes)
    found = {each.rule: marked_lines(each) for each in errors(recipe, opsets="17")}
    assert [text.endswith("# fault") for text in found["baked-shape"]] == [True]
    assert [text for text in found["numeric-drift"] if text.endswith("# fault")] == []  # the example has its own size


class FlatHeads(nn.Module):
    """Attention over channels of images. With one image, ``torch.export`` takes the size after ``@`` for a constant."""

    def __init__(self):
        super().__init__()
        self.both = nn.Conv2d(4, 8, 1)

    def forward(self, image):
        batch, channels, height, width = image.shape
        keys, values = self.both(image).chunk(2, dim=1)
        keys = keys.reshape(batch, 1, channels, height * width)
        values = values.reshape(batch, 1, channels, height * width)
        heads = (keys @ keys.transpose(-2, -1)).softmax(-1) @ values
        return heads.reshape(heads.shape[0], channels, height, width)  # fault


IMAGES = {"x": {0: "batch", 2: "height", 3: "width"}, "y": {0: "batch", 2: "height", 3: "width"}}
"""Axes of images and of what a model makes of them."""


def test_of_a_file_that_fails_the_line_at_which_it_fails_is_named():
    """The model fails, too, if it gets one image at the reshape before; but the file does not fail there."""
    model = FlatHeads(), (torch.randn(1, 4, 5, 6),)
    recipe = onnx_ci.recipe(lambda: model, name="net", input_names=["x"], output_names=["y"], dynamic_axes=IMAGES)
    found = errors(recipe, opsets="18", exporters="dynamo")
    assert {each.rule: [text.endswith("# fault") for text in marked_lines(each)] for each in found} == {
        "static-axis": [True],
        "baked-shape": [True],
    }
    assert all(each.remedy.startswith("The example has size 1 along 'batch'") for each in found)


class FirstHalf(nn.Module):
    def forward(self, x):
        return x[:, : int(x.shape[1] / 2.0)]  # fault


def test_a_size_of_1_that_is_not_at_fault_is_not_in_the_remedy():
    """The file is right for other numbers of rows."""
    axes = {"x": {0: "rows", 1: "steps"}, "y": {0: "rows", 1: "half"}}
    model = FirstHalf(), (torch.randn(1, 6),)
    recipe = onnx_ci.recipe(lambda: model, name="net", input_names=["x"], output_names=["y"], dynamic_axes=axes)
    found = errors(recipe, opsets="18", exporters="dynamo")
    assert "baked-shape" in [each.rule for each in found]
    assert not any("size 1" in each.remedy for each in found)


LIBRARY = """
def halved(x):
    return x[:, : int(x.shape[1] / 2)]
"""


class CallsLibrary(nn.Module):
    """One line calls a function of a library for what has one size, the other for what has several."""

    def __init__(self, halved):
        super().__init__()
        self.halved = halved
        self.table = nn.Parameter(torch.randn(1, 8))

    def forward(self, x):
        scale = self.halved(self.table).sum()
        return x[:, :1] * scale + self.halved(x).sum(1, keepdim=True)  # fault


@pytest.mark.parametrize(("exporter", "opset"), [("torchscript", 17), ("dynamo", 18)])
def test_of_lines_that_call_a_library_the_one_is_named_whose_call_is_frozen(exporter, opset, tmp_path):
    file, library = tmp_path / "site-packages" / "library.py", {}
    exec(compile(LIBRARY, file, "exec"), library)
    model = CallsLibrary(library["halved"]), (torch.randn(3, 6),)
    recipe = onnx_ci.recipe(lambda: model, name="net", **SIZES)
    (found,) = errors(recipe, opsets=str(opset), exporters=exporter)
    assert [text.endswith("# fault") for text in marked_lines(found)] == [True]


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.previous = None

    def forward(self, x):
        before = x if self.previous is None else self.previous
        self.previous = x  # fault
        return x - before


class InBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = x - self.mean
        self.mean.mul_(0.9).add_(x.mean(0) * 0.1)  # fault
        return y


class Reassigned(nn.Module):
    """After the first run, each leaves the same."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x):
        y = x - self.last
        self.last = x[-1].detach()  # fault
        return y


class Random(nn.Module):
    def forward(self, x):
        y = x.relu()
        return nn.functional.dropout(y, 0.5) + 1  # fault


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (Stateful, "impure-model"),
        (InBuffer, "impure-model"),
        (Reassigned, "impure-model"),
        (Random, "nondeterministic"),
    ],
)
def test_the_line_that_changes_state_or_draws_is_named(model, rule):
    found = {each.rule: each for each in errors(onnx_ci.recipe(lambda: (model(), (torch.randn(3, 4),)), name="net", **ROWS))}
    assert found[rule].source.text.endswith("# fault")


def in_pairs(x):
    x = x[:, :, None].expand(-1, -1, 4)
    try:
        x = x.reshape(x.shape[0], x.shape[1] // 2, 8)  # fault
    except RuntimeError:
        x = torch.cat([x, torch.zeros_like(x[:, :1])], 1).reshape(x.shape[0], -1, 8)
    return x.sum(2)


@pytest.mark.parametrize(("exporter", "opset"), [("torchscript", 17), ("dynamo", 18)])
def test_a_call_whose_exception_the_model_catches_is_named(exporter, opset):
    axes = {"x": {0: "rows", 1: "columns"}, "y": {0: "rows", 1: "pairs"}}
    recipe = onnx_ci.recipe(name="net", input_names=["x"], output_names=["y"], dynamic_axes=axes)
    found = errors(recipe(lambda: (Function(in_pairs), (torch.randn(3, 6),))), opsets=str(opset), exporters=exporter)
    (wrong,) = (each for each in found if each.rule == "baked-shape")
    assert wrong.culprits[0].source.text.endswith("# fault")
    assert wrong.remedy.startswith("Not tried: decide by tensors, not by an exception")


class FrozenInALayer(nn.Module):
    """TorchScript freezes the length within the attention of the encoder, and not what is added before."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(64, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x):
        x = x + self.positions(torch.arange(x.shape[1]))
        return self.encoder(x).mean(1)  # fault


def test_a_line_whose_freezing_fails_elsewhere_than_the_file_is_not_blamed():
    found = errors(onnx_ci.recipe(lambda: (FrozenInALayer(), (torch.randn(2, 5, 8),)), name="net", **SIZES), opsets="17")
    assert {text.partition("  # ")[2] for each in found for text in marked_lines(each)} == {"fault"}
