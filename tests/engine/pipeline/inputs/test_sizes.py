"""The sizes that dynamic axes are tried at: declared relations are kept, and undeclared ones are found."""

from __future__ import annotations

import itertools

import pytest
import torch
from toolbox.cells import recipe_of, rules, run_one, task
from torch.export import Dim
from torch.onnx.operators import shape_as_tensor

import onnx_ci
from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.results.records import Status


def make(function, *args, **keywords):
    return prepare(task(recipe_of(function, *args, **keywords)))


def moved(prepared):
    """The sizes that the dynamic axes were moved to, but for far longer ones."""
    return [probe.name for probe in prepared.probes.all if "=" in probe.name and not probe.is_long]


def relations(prepared):
    return [each for each in prepared.findings if each.rule == "size-relation"]


def untested(prepared):
    return [each for each in prepared.findings if "was not tested" in each.message]


def masked(past, mask):
    """What a decoding step does with its cache: one more, and a mask of this length."""
    grown = torch.cat([past, past[:, :1]], 1)
    assert mask.shape == grown.shape
    return grown * mask


def doubled(x):
    return x * 2


PAST = (torch.randn(2, 5), torch.randn(2, 6))
NAMES = {"input_names": ["past", "mask"], "output_names": ["y"]}


def axes(mask, **outputs):
    return {"dynamic_axes": {"past": {1: "past"}, "mask": {1: mask}, **outputs}}


# --- declared relations


@pytest.mark.parametrize("text", ["past + 1", "(2*past + 2) // 2"])
def test_an_axis_with_an_expression_takes_the_size_that_follows(text):
    prepared = make(masked, *PAST, **NAMES, **axes(text, y={1: text}))
    assert moved(prepared) == ["past=6", "past=11", "past=1"]
    assert {tuple(tensor.shape[1] for tensor in probe.inputs) for probe in prepared.probes.all} == {
        (5, 6),
        (6, 7),
        (11, 12),
        (1, 2),
        (1025, 1026),
    }
    assert not [each for each in prepared.findings if each.rule in ("size-relation", "vacuous", "name-mismatch")]


def test_an_expression_can_have_several_names():
    def forward(new, past, mask):
        grown = torch.cat([past, new], 1)
        assert mask.shape == grown.shape
        return grown * mask

    declared = {"new": {1: "new"}, "past": {1: "past"}, "mask": {1: "past + new"}}
    args = (torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 8))
    prepared = make(forward, *args, input_names=list(declared), dynamic_axes=declared)
    assert moved(prepared) == ["new=4,past=7", "new=7", "new=1", "past=11", "past=1", "new=1,past=1"]
    assert all(new + past == mask for new, past, mask in ([t.shape[1] for t in probe.inputs] for probe in prepared.probes.all))


def test_a_variable_can_occur_in_expressions_only():
    def forward(x):
        assert x.shape[1] % 8 == 0
        return x * 2

    prepared = make(forward, torch.randn(2, 16), input_names=["x"], dynamic_axes={"x": {1: "8*h"}})
    assert moved(prepared) == ["h=3", "h=5", "h=1"]
    assert sorted({probe.inputs[0].shape[1] for probe in prepared.probes.all}) == [8, 16, 24, 40, 8 * 1025]


def test_sizes_below_1_are_not_tried():
    declared = {"x": {0: "n"}, "y": {0: "n - 2"}}
    prepared = make(lambda x, y: x[2:] + y, torch.randn(3), torch.randn(1), input_names=["x", "y"], dynamic_axes=declared)
    assert moved(prepared) == ["n=4", "n=7"]


def test_derived_dims_are_expressions_and_reach_torch_export_as_they_are():
    past = Dim("past", min=2, max=9)
    prepared = make(masked, *PAST, **NAMES, dynamic_shapes=(({0: "batch", 1: past}, {0: "batch", 1: past + 1}),))
    assert prepared.model.signature.axes == {"past": {0: "batch", 1: "past"}, "mask": {0: "batch", 1: "past + 1"}}
    assert moved(prepared) == ["batch=3,past=7", "batch=5", "batch=1", "past=9", "past=2", "batch=1,past=2"]
    (tree,) = prepared.model.signature.dynamic_shapes
    assert tree[0] == {0: "batch", 1: past}
    assert tree[1][0] == "batch"
    assert isinstance(tree[1][1], Dim)
    assert tree[1][1].__name__ == "past + 1"


def test_the_limits_of_a_dim_hold_and_the_exporter_gets_it_as_it_is():
    n = Dim("n", min=3, max=7)
    prepared = make(doubled, torch.randn(4), input_names=["x"], dynamic_shapes=(({0: n},),))
    assert moved(prepared) == ["n=5", "n=7", "n=3"]
    assert prepared.model.signature.dynamic_shapes[0][0][0] is n


def test_lengths_can_be_those_of_a_variable_that_no_axis_is_alone():
    seen = []

    def forward(x, lengths):
        seen.append((x.shape[1], int(lengths.max())))
        return x * lengths[:, None]

    make(
        forward,
        torch.randn(2, 16),
        torch.tensor([2, 1]),
        input_names=["x", "lengths"],
        dynamic_axes={"x": {1: "8*h"}},
        inputs={"lengths": onnx_ci.lengths(of="h")},
    )
    assert (40, 5) in seen


# --- wrong declarations


@pytest.mark.parametrize(
    ("keywords", "rule", "said"),
    [
        (axes("past + 4"), "name-mismatch", "axis 1 of input 'mask' is declared as 'past + 4', which is 9 for past = 5, but the example has 6"),
        (axes("pats + new"), "unknown-axis", "'pats' is not an axis of an input; did you mean 'past'?"),
        (axes("(n + 1) // 2"), "unknown-axis", "'n' is not an axis of an input"),
        (axes("4*n"), "name-mismatch", "axis 1 of input 'mask' is declared as '4*n', but no n gives the example's size 6"),
        (axes("past + 1", y={1: "past + 2"}), "name-mismatch", "axis 1 of output 'y' is declared as 'past + 2', which is 7 for past = 5, but the model returns 6"),
        (axes("past + 1", y={1: "new + 1"}), "unknown-axis", "axis 1 of output 'y' is declared as 'new + 1', but 'new' is not an axis of an input"),
        ({**axes("past + 1"), "dynamic_sizes": {"past + 1": 9}}, "unknown-axis", "names the axis 'past + 1', whose size follows from 'past'"),
        ({**axes("past + 1"), "dynamic_sizes": {"past": onnx_ci.multiple_of(2)}}, "recipe-error", "multiples of 2 for 'past', but the example has 5"),
        ({**axes("past + 1"), "dynamic_sizes": {"past": range(5, 6)}}, "vacuous", "gives no size for 'past' other than the example's, 5"),
        ({"dynamic_shapes": (({1: "past"}, {1: "past / 2"}),)}, "unknown-axis", "can only have names of axes and integers"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_told(keywords, rule, said):
    with pytest.raises(PrepareError) as caught:
        make(masked, *PAST, **NAMES, **keywords)
    assert caught.value.finding.rule == rule
    assert said in caught.value.finding.message


def test_an_output_that_has_the_declared_size_on_the_example_only_is_told():
    prepared = make(
        lambda x: torch.cat([x, x]), torch.randn(3), input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "n"}, "y": {0: "n + 3"}},
    )  # fmt: skip
    (wrong,) = (each for each in prepared.findings if each.rule == "name-mismatch")
    assert wrong.message.startswith(
        "axis 0 of output 'y' is declared as 'n + 3', which is 7 for n = 4, but the model returns 8"
    )


# --- declared sizes


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (onnx_ci.multiple_of(8), ["n=24", "n=40", "n=8"]),
        (range(8, 65, 8), ["n=24", "n=40", "n=8", "n=64"]),  # where it ends, unless that is much more work
        (range(8, 129, 8), ["n=24", "n=40", "n=8"]),
        (range(10, 21, 5), ["n=20", "n=10"]),
        ((24, 56), ["n=24", "n=56"]),
    ],
)
def test_sizes_are_chosen_among_those_that_are_declared(sizes, expected):
    prepared = make(doubled, torch.randn(16), input_names=["x"], dynamic_axes={"x": {0: "n"}}, dynamic_sizes={"n": sizes})
    assert moved(prepared) == expected


def test_of_many_listed_sizes_the_ends_and_some_between_them_are_tried():
    sizes = tuple(range(120, 20, -1))
    prepared = make(doubled, torch.randn(16), input_names=["x"], dynamic_axes={"x": {0: "n"}}, dynamic_sizes={"n": sizes})
    tried = sorted(int(name.removeprefix("n=")) for name in moved(prepared))
    assert (len(tried), tried[0], tried[-1]) == (16, 21, 120)
    assert max(larger - smaller for smaller, larger in itertools.pairwise(tried)) <= 8


def test_a_branch_that_only_a_later_one_of_the_listed_sizes_takes_is_compared():
    def prepared(sizes):
        return make(
            lambda x: x[:, ::2] if x.shape[1] <= 8 else x,
            torch.randn(2, 6),
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {1: "n"}, "y": {1: "half"}},
            dynamic_sizes={"n": sizes},
        )

    assert {probe.name for probe in prepared((4, 16)).probes.all} >= {"n=4", "n=16"}
    # Below the example's size, too, it shows that sizes decide: the other side is sought.
    assert any(probe.name.startswith("branch at") for probe in prepared((4,)).probes.all)


def test_an_output_that_has_another_size_at_one_of_the_listed_sizes_is_not_constant():
    prepared = make(
        lambda x: x[:, ::2],
        torch.randn(2, 10),
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {1: "n"}, "y": {1: "half"}},
        dynamic_sizes={"n": (9, 12)},
    )
    assert not prepared.findings


def test_a_multiple_of_the_sizes_of_a_variable_holds_within_expressions():
    declared = {"x": {0: "n"}, "y": {0: "2*n"}}
    args = (torch.randn(16), torch.randn(32))
    sizes = {"n": onnx_ci.multiple_of(8)}
    prepared = make(lambda x, y: x.sum() + y, *args, input_names=["x", "y"], dynamic_axes=declared, dynamic_sizes=sizes)
    assert [tuple(map(len, probe.inputs)) for probe in prepared.probes.all if "=" in probe.name] == [
        (24, 48),
        (40, 80),
        (8, 16),
        (1032, 2064),  # the next after 1025
    ]


# --- what the model shows


@pytest.mark.parametrize("number", [2, 32])
def test_multiples_that_the_model_requires_are_found_and_told(number):
    def forward(x):
        assert x.shape[0] % number == 0
        return x * 2

    prepared = make(forward, torch.randn(96), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert {len(probe.inputs[0]) for probe in prepared.probes.all} >= {96, 192 + number, number}
    (told,) = relations(prepared)
    assert told.severity is onnx_ci.Severity.NOTE
    assert told.message.startswith("the model rejects the sizes 97, 193")
    assert f"accepts multiples of {number}" in told.message
    assert f"dynamic_sizes={{'n': onnx_ci.multiple_of({number})}}" in told.remedy
    declared = make(
        forward,
        torch.randn(96),
        input_names=["x"],
        dynamic_axes={"x": {0: "n"}},
        dynamic_sizes={"n": onnx_ci.multiple_of(number)},
    )
    assert not relations(declared)


def test_multiples_that_are_found_stay_within_the_limits_of_a_dim():
    def forward(x):
        assert x.shape[0] % 8 == 0
        return x * 2

    prepared = make(forward, torch.randn(32), input_names=["x"], dynamic_shapes=(({0: Dim("n", min=20, max=200)},),))
    (told,) = relations(prepared)
    assert "accepts multiples of 8" in told.message
    assert [len(probe.inputs[0]) for probe in prepared.probes.all if "n=" in probe.name] == [72, 24, 40]


def test_a_relation_of_two_axes_is_found_and_told():
    prepared = make(masked, *PAST, **NAMES, **axes("total", y={1: "total"}))
    assert moved(prepared) == ["past=11,total=12", "past=1,total=2"]
    assert not untested(prepared)
    (told,) = relations(prepared)
    assert "of the axis 'total' and accepts 'past + 1'" in told.message
    assert told.remedy == "Declare it in dynamic_axes or dynamic_shapes: 'mask': {1: 'past + 1'}, 'y': {1: 'past + 1'}."


def test_a_size_of_1_that_is_broadcast_does_not_hide_a_relation():
    def forward(past, mask):
        return torch.cat([past, past[:, :1]], 1) * mask

    prepared = make(forward, *PAST, **NAMES, **axes("total"))
    assert moved(prepared) == ["past=11,total=12", "past=1,total=2"]
    assert len(relations(prepared)) == 1


def summed(new, past, mask):
    """A sum, at few sizes: the first ones that are tried happen to be sums, too."""
    assert new.shape[0] + past.shape[0] == mask.shape[0]
    assert (new.shape[0], past.shape[0]) in ((3, 5), (7, 11), (7, 5), (3, 11))
    return new.sum() + past.sum() + mask


def tripled(frames, samples):
    assert samples.shape[0] == 3 * frames.shape[0]
    assert frames.shape[0] in (4, 9)
    return frames.sum() + samples


@pytest.mark.parametrize(
    ("function", "sizes", "found"),
    [
        (summed, {"new": 3, "past": 5, "mask": 8}, "'mask': {0: 'n_new + n_past'}"),
        (tripled, {"frames": 4, "samples": 12}, "'samples': {0: '3*n_frames'}"),
    ],
)
def test_a_relation_is_a_sum_or_a_multiple_of_others(function, sizes, found):
    args = [torch.randn(size) for size in sizes.values()]
    prepared = make(function, *args, input_names=list(sizes), dynamic_axes={name: {0: f"n_{name}"} for name in sizes})
    (told,) = relations(prepared)
    assert found in told.remedy
    assert not untested(prepared)


def test_axes_that_must_be_equal_should_have_one_name():
    def forward(x, y):
        assert x.shape == y.shape and x.shape[0] in (3, 7, 1)
        return x + y

    declared = {"x": {0: "n"}, "y": {0: "m"}}
    prepared = make(forward, torch.randn(3), torch.randn(3), input_names=["x", "y"], dynamic_axes=declared)
    assert not untested(prepared)
    (told,) = relations(prepared)
    assert told.remedy == "Declare it in dynamic_axes or dynamic_shapes: 'x': {0: 'm'}."


def test_an_untested_axis_names_all_remedies():
    def forward(x):
        assert x.shape[0] in (5, 77)
        return x * 2

    (told,) = untested(make(forward, torch.randn(5), input_names=["x"], dynamic_axes={"x": {0: "n"}}))
    for remedy in ("dynamic_sizes={'n': SIZE}", "onnx_ci.multiple_of(NUMBER)", "'past + 1'"):
        assert remedy in told.remedy


def test_a_model_that_takes_every_size_is_not_asked_for_more():
    calls = []

    def forward(x):
        calls.append(x.shape[0])
        return x * 2

    prepared = make(forward, torch.randn(8), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert moved(prepared) == ["n=9", "n=17", "n=1"]
    assert set(calls) == {8, 9, 17, 1, 1025}


# --- fewer inputs where the model computes each row by itself

IMAGES = {"dynamic_axes": {"x": {0: "batch", 1: "height", 2: "width"}, "y": {0: "batch", 1: "height", 2: "width"}}}
X = torch.rand(2, 24, 48, generator=torch.Generator().manual_seed(0)) + 0.1


def images(function=doubled, **keywords):
    return make(function, X, input_names=["x"], output_names=["y"], **{**IMAGES, **keywords})


def sizes_of(probes):
    """The sizes of the probes that have others than the example, but for far longer ones, without the special values in rows."""
    return [probe.name.partition(" with ")[0] for probe in probes.all if "=" in probe.name and not probe.is_long]


LARGER = "batch=3,height=26,width=51"
ALONE = ["batch=1,height=49", "batch=1,height=1", "batch=1,width=97", "batch=1,width=1"]


def test_other_axes_are_tried_beside_the_smallest_batch():
    prepared = images()
    assert sizes_of(prepared.probes) == [LARGER, "batch=5", "batch=1", *ALONE, "batch=1,height=1,width=1"]
    assert sizes_of(prepared.probes.one_kind_per_probe) == sizes_of(prepared.probes)


def test_the_batch_comes_first_wherever_it_is():
    axes = {"x": {0: "frames", 1: "batch"}, "scale": {0: "batch"}, "y": {0: "batch"}}
    args = (X.transpose(0, 1).contiguous(), torch.rand(2, 1024))
    prepared = make(
        lambda x, scale: x.mean(0).sum(1, keepdim=True) * scale,
        *args,
        input_names=["x", "scale"],
        output_names=["y"],
        dynamic_axes=axes,
    )
    assert sizes_of(prepared.probes) == [
        "frames=25,batch=4", "batch=5", "batch=1", "frames=49,batch=1", "frames=1,batch=1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / x.abs().amax((0, 1, 2)),
        lambda x: x * 2 if x.sum() > 0 else x,
    ],
)
def test_otherwise_each_axis_is_tried_beside_the_examples_batch(function):
    names = [probe.name for probe in images(function).probes.all]
    assert {"random values", "height=49", "height=1", "width=97", "width=1"} <= set(names)


def test_what_the_model_rejects_is_told_of_each_axis():
    def forward(x):
        assert x.shape[1] % 8 == 0
        return x * 2

    (relation,) = relations(images(forward))
    assert relation.message == "the model rejects the sizes 25, 49, 50, 52 of the axis 'height' and accepts multiples of 8"


def test_listed_sizes_are_tried_alone():
    prepared = images(dynamic_sizes={"height": (12,), "width": (96,)})
    assert sizes_of(prepared.probes)[-2:] == ["batch=1,height=12", "batch=1,width=96"]


def test_an_example_at_the_largest_size_is_no_size_that_is_rejected():
    def forward(x):
        return torch.nn.functional.conv1d(x, torch.ones(24, 24, 3)).mean(2)

    axes = {"x": {0: "batch", 2: "length"}, "y": {0: "batch"}}
    prepared = make(
        forward, X, input_names=["x"], output_names=["y"], dynamic_axes=axes, dynamic_sizes={"length": range(1, 49)}
    )
    assert sizes_of(prepared.probes) == ["batch=3", "batch=5", "batch=1", "batch=1,length=47"]
    assert not untested(prepared)


def test_random_values_at_the_examples_sizes_are_left_out_if_others_have_them():
    def names(x):
        axes = {name: {0: "batch"} for name in ("x", "y")}
        made = make(doubled, x, input_names=["x"], output_names=["y"], dynamic_axes=axes)
        return [probe.name for probe in made.probes.all], [probe.name for probe in made.probes.one_kind_per_probe.all]

    few, separate = names(X)
    assert ("random values" in few, "random values" in separate) == (False, True)
    few, _ = names(X[:1])  # of one row, no larger batch has a row without special values
    assert "random values" in few


def judged(condition):
    """The result of a file that is wrong at the sizes of a condition."""

    def forward(x):
        if not torch.onnx.is_in_onnx_export():
            return x * 2
        batch, height, width = (shape_as_tensor(x)[axis] for axis in range(3))
        return x * torch.where(condition(batch, height, width), 3.0, 2.0)

    return run_one(recipe_of(forward, X, input_names=["x"], output_names=["y"], **IMAGES))


@pytest.mark.parametrize(
    "condition",
    [
        lambda batch, height, width: height > width,
        lambda batch, height, width: (height == 1) & (width > 1),
        lambda batch, height, width: (height < 24) & (width == 48),
        lambda batch, height, width: batch > 4,
    ],
)
def test_a_file_that_is_wrong_at_some_sizes_only_is_found(condition):
    assert rules(judged(condition)) == ["baked-value"]


def test_a_file_that_is_right_at_all_of_them_passes():
    result = judged(lambda batch, height, width: batch > 10_000)
    assert result.status is Status.PASSED
    assert {"batch=1,height=49", "batch=1,width=97"} <= {output.probe for output in result.outputs}


def test_a_file_that_does_not_load_needs_no_other_inputs():
    seen = []

    def crossed_bounds(x):
        seen.append(x)
        return x.clamp(1.0, -1.0)  # which opset 9 refuses

    recipe = recipe_of(crossed_bounds, X, input_names=["x"], output_names=["y"], **IMAGES)
    assert rules(run_one(recipe, opsets="9", isolation="none")) == ["load-error"]
    negated = [x for x in seen if (x < 0).all()]
    assert {len(x) for x in negated} == {1}  # rows alone


# --- sequences


def test_inputs_with_expressions_follow_the_steps_without_step_inputs():
    def step(x, past, mask):
        grown = torch.cat([past, x])
        return (grown * mask).sum(), grown

    names = {"input_names": ["x", "past", "mask"], "output_names": ["y", "after"]}
    declared = {"x": {0: "new"}, "past": {0: "past"}, "mask": {0: "past + new"}, "after": {0: "past + new"}}
    args = (torch.randn(1), torch.randn(3), torch.rand(4))
    prepared = make(step, *args, **names, dynamic_axes=declared, feedback={"after": "past"}, steps=4)
    assert not [each for each in prepared.findings if each.rule in ("vacuous", "size-relation")]
    by_name = {probe.name: [len(tensor) for tensor in probe.inputs] for probe in prepared.probes.all}
    assert [by_name[f"step={number}"] for number in (1, 2, 3)] == [[1, 4, 5], [1, 5, 6], [1, 6, 7]]
    assert by_name["prefill"] == [3, 3, 6]
    assert by_name["prefill,step=3"] == [1, 6, 7]
    assert by_name["new=2,past=5,step=1"] == [2, 7, 9]


# --- sizes that the model has in its code


def written_size(x):
    return x.view(2, 4) + 1


def taken_size(x):
    return x.view(x.shape[0], 4) + 1


def test_a_size_that_is_written_into_the_model_is_told_with_the_error_and_its_line():
    batch = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
    prepared = make(written_size, torch.randn(2, 4), **batch)
    (told,) = [each for each in prepared.findings if each.rule == "vacuous"]  # that the output's size is the same, too, follows
    line = written_size.__code__.co_firstlineno + 1
    assert "RuntimeError: shape '[2, 4]' is invalid for input of size " in told.message
    assert f"test_sizes.py, line {line})" in told.message
    assert "x.shape[0]" in told.remedy
    assert not untested(make(taken_size, torch.randn(2, 4), **batch))  # the remedy


class Cross(torch.nn.Module):
    def forward(self, past, future):
        return future @ past.mean(1, keepdim=True).transpose(1, 2)


@pytest.mark.parametrize(("declared", "broken"), [("past", ["name-mismatch"]), ("future", [])])
def test_an_output_with_the_axis_of_another_input_is_an_error_though_dynamo_does_not_read_its_name(declared, broken):
    axes = {"past": {1: "past"}, "future": {1: "future"}, "y": {1: declared}}

    @onnx_ci.recipe(input_names=["past", "future"], output_names=["y"], dynamic_axes=axes)
    def cross():
        return Cross(), (torch.randn(2, 6, 3), torch.randn(2, 4, 3))

    result = run_one(cross, opsets="18")
    assert rules(result) == broken
    assert [each.remedy for each in result.findings if each.rule in broken] == ["Declare it as 'future'."] * len(broken)
