"""A failing cell names the nodes, the operator and the source line that its wrong values come from."""

from __future__ import annotations

import numpy
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from toolbox.cells import Total, errors, recipe_of, run_one

import onnx_ci
from onnx_ci.report.findings import describe_finding

DYNAMIC = {"dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
FLOATS = torch.linspace(-1, 1, 8).reshape(2, 4)
NAMES = {"input_names": ["x"], "output_names": ["y"]}


# --- models that exporters translate wrongly


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

    def forward(self, x):
        hidden = self.body(x)
        hidden = hidden * int(x.shape[0])  # the fault
        return hidden.softmax(-1)


class Masked(torch.nn.Module):
    def forward(self, x):
        mask = torch.empty_like(x)
        mask.bernoulli_(0.5)  # the fault
        return x.exp() * mask


class Branch(torch.nn.Module):
    def forward(self, x):
        hidden = x.sin()
        if x.shape[0] > 2:  # the fault
            hidden = hidden.exp()
        return hidden + 1


class Halves(torch.nn.Module):
    def forward(self, x):
        positive = x.abs() + x
        return positive + x // 2  # the fault


class Condition(torch.nn.Module):
    def forward(self, x):
        doubled = x * 2
        if doubled.sum() > 0.5:  # the fault
            return doubled
        return doubled - 1


class LoopThenBranch(torch.nn.Module):
    def forward(self, x):
        total = x * 2
        for i in range(x.shape[0]):  # the fault
            total = total + x[i]
        if x.shape[0] == 1:
            total = torch.relu(total)
        return total


class Heads(torch.nn.Module):
    def forward(self, x):
        second = x * float(x.max())
        first = x + float(x.min())
        return first, second


class Rows(torch.nn.Module):
    def forward(self, x):
        rows = x.unbind(0)  # the fault
        return torch.stack([row.cumsum(0) for row in rows])


class Upscaled(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Tanh(), Scaled())

    def forward(self, x):
        return self.layers(x)


def of(model, *args):
    return onnx_ci.recipe(lambda: (model, args), name="net", **NAMES, **DYNAMIC)


@pytest.mark.parametrize(
    ("model", "x", "module", "kind"),
    [
        (Nested(), FLOATS, "layers.1", "number"),
        (Branch(), FLOATS, "", "condition"),
        (Condition(), FLOATS, "", "condition"),
        (Halves(), torch.tensor([[1, 2], [3, 4]]), "", None),
    ],
    ids=["number", "branch", "condition", "mistranslated"],
)
def test_the_line_that_an_exporter_freezes_or_mistranslates_is_named(model, x, module, kind):
    result = run_one(of(model, x))
    found = next(each for each in errors(result) if each.rule == "baked-value")
    (culprit,) = found.culprits
    assert culprit.source.file == "tests/engine/pipeline/locate/test_culprits.py"
    assert culprit.source.text.endswith("# the fault")
    assert culprit.module == module
    assert (culprit.frozen and culprit.frozen.kind) == kind
    assert "translates the operator wrongly" not in found.remedy  # that claim was never tested
    assert ("rounding_mode='floor'" in found.remedy) == (kind is None)  # where no line of Python is at fault


class Positions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 4)

    def forward(self, x):
        at = torch.arange(x.shape[0])
        offsets = at[None, :] - at[:, None]
        steps = self.halved(offsets) + 8
        return x + self.table(steps).sum(0)

    def halved(self, offsets):
        return offsets // 2  # the fault


class RightPositions(Positions):
    def halved(self, offsets):
        return torch.div(offsets, 2, rounding_mode="floor")


def test_what_a_model_makes_of_sizes_is_followed_as_what_it_makes_of_inputs_is():
    (found,) = errors(run_one(of(Positions(), FLOATS)))
    (culprit,) = found.culprits
    assert culprit.source.text == "return offsets // 2  # the fault"
    assert culprit.nodes[0].startswith("Div ")
    assert "rounding_mode='floor'" in found.remedy
    assert run_one(of(RightPositions(), FLOATS)).status == "passed"


class Adapting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)

    def forward(self, x):
        self.norm.train()
        return self.norm(self.first(x))


class Pools(torch.nn.Module):
    """Its translation by dynamo has 90 nodes where both axes are dynamic."""

    def forward(self, x):
        return torch.nn.functional.adaptive_avg_pool2d(x, 3)


@pytest.mark.slow
def test_an_operator_that_is_translated_into_many_nodes_is_named():
    axes = {"x": {0: "batch", 2: "height", 3: "width"}, "y": {0: "batch"}}
    sizes = {"height": range(6, 30), "width": range(6, 30)}
    recipe = recipe_of(Pools(), torch.randn(2, 3, 8, 10), **NAMES, dynamic_axes=axes, dynamic_sizes=sizes)
    found = next(each for each in errors(run_one(recipe, exporters="dynamo", opsets="20")) if each.probe and each.output)
    assert found.culprits[0].operators == ("aten._adaptive_avg_pool2d",)
    assert "in place of torch.nn.functional.adaptive_avg_pool1d(x, k)" in found.remedy


class OfBatch(Adapting):
    def forward(self, x):
        hidden = self.first(x)
        deviation = (hidden.var(0, unbiased=False) + self.norm.eps).sqrt()
        return (hidden - hidden.mean(0)) / deviation * self.norm.weight + self.norm.bias


@pytest.mark.slow
def test_the_remedy_of_a_normalization_by_the_batch_names_what_is_right():
    found = next(
        each for each in errors(run_one(of(Adapting(), torch.randn(5, 4)), opsets="18")) if each.rule == "numeric-drift"
    )
    assert "(x - m) / (v + eps).sqrt() * weight + bias, where m = x.mean(...)" in found.remedy
    assert run_one(of(OfBatch(), torch.randn(5, 4)), opsets="18").status == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("opset", ["17", "18"])
def test_what_is_left_in_new_memory_is_not_taken_for_a_value_of_the_model(opset):
    result = run_one(of(Masked(), FLOATS), opsets=opset)
    (found,) = (each for each in errors(result) if each.rule == "numeric-drift")
    assert [each.text for each in found.lines] == ["mask.bernoulli_(0.5)  # the fault"]


def test_a_loop_says_how_often_it_runs():
    recipe = onnx_ci.recipe(
        lambda: (Total(), (torch.randn(3, 4),)),
        name="total",
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "rows"}},
    )
    found = {each.rule: each for each in errors(run_one(recipe))}
    (culprit,) = found["baked-value"].culprits
    loop = "for i in range(x.shape[0]):"
    assert (culprit.source.text, culprit.frozen.here, culprit.frozen.on_example) == (loop, (4.0,), (3.0,))
    assert describe_finding(found["baked-value"]).startswith(
        f"{culprit.source}, `{loop}`, which uses 4 here and 3 on the example: output 'y'"
    )
    (culprit,) = found["baked-shape"].culprits  # the file fails on one row, as the model does with three rounds
    assert (culprit.source.text, culprit.frozen.here) == (loop, (1.0,))


def test_the_loop_at_which_two_runs_part_is_named_and_not_the_branch_after_it():
    found = {each.rule: each for each in errors(run_one(of(LoopThenBranch(), -FLOATS.abs().repeat(2, 1)[:3])))}
    assert found.keys() == {"baked-value", "baked-shape"}
    assert {line.text for each in found.values() for line in each.lines} == {"for i in range(x.shape[0]):  # the fault"}


def test_each_output_is_blamed_on_the_fault_that_it_depends_on():
    recipe = onnx_ci.recipe(lambda: (Heads(), (FLOATS,)), name="heads", input_names=["x"], output_names=["first", "second"])
    lines = {each.output: [line.text for line in each.lines] for each in errors(run_one(recipe))}
    assert lines == {"first": ["first = x + float(x.min())"], "second": ["second = x * float(x.max())"]}


def test_what_is_undefined_in_both_is_right():
    def logarithms(x):
        return x.log() * x

    recipe = recipe_of(logarithms, FLOATS, **NAMES)
    wrong = with_faults(onnx.load(onnx_ci.export(recipe, opset=13).path), replaced("Mul", "Add"))
    found = next(each for each in errors(onnx_ci.verify(wrong.SerializeToString(), recipe, opset=13)) if each.steps)
    assert [(step.node.partition(" ")[0], step.is_culprit) for step in found.steps] == [("Log", False), ("Add", True)]
    assert found.steps[0].drift < 16  # its logarithms of negative numbers are NaN
    assert found.steps[1].drift > 1000


def test_what_a_line_gives_is_counted():
    (found,) = errors(run_one(of(Rows(), FLOATS)))
    first = found.culprits[0]
    assert (first.source.text, first.frozen) == (
        "rows = x.unbind(0)  # the fault",
        onnx_ci.Frozen(kind=onnx_ci.FrozenKind.TENSORS, here=(3.0,), on_example=(2.0,)),
    )
    assert "which gives 3 tensors here and 2 on the example: onnxruntime fails" in describe_finding(found)


class Written(torch.nn.Module):
    def forward(self, x):
        written = x.clone()
        written.view(-1)[0] = 5  # the fault
        return written * 2


def test_the_remedy_of_a_line_that_writes_into_a_tensor_says_so():
    (found,) = errors(run_one(of(Written(), FLOATS)))
    assert found.culprits[0].source.text.endswith("# the fault")
    assert "writes into a tensor" in found.remedy


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = torch.nn.GRU(4, 4)

    def forward(self, x):
        return self.gru(x)[0]  # torch computes it in place


def test_a_line_that_calls_what_torch_computes_in_place_is_not_said_to_write():
    recipe = of(Recurrent(), FLOATS)
    wrong = onnx.load(onnx_ci.export(recipe, opset=13).path)
    (gru,) = (node for node in wrong.graph.node if node.op_type == "GRU")
    next(each for each in gru.attribute if each.name == "linear_before_reset").i = 0
    (found,) = errors(onnx_ci.verify(wrong.SerializeToString(), recipe, opset=13))
    assert "aten.sigmoid_" in found.culprits[0].operators
    assert "writes into a tensor" not in found.remedy


def test_where_only_torchs_modules_run_the_recipe_is_named():
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 1), torch.nn.Upsample(scale_factor=2.0, mode="bilinear"))
    recipe = of(model, torch.randn(2, 2, 4, 4))
    (culprit,) = errors(run_one(recipe, opsets="10"))[0].culprits
    assert (culprit.module, culprit.source) == ("1", None)
    assert (culprit.recipe.file, culprit.recipe.line) == ("tests/engine/pipeline/locate/test_culprits.py", recipe.line)
    assert f"Resize '/1/Resize' in 1 of the model that {culprit.recipe} builds: " in describe_finding(
        errors(run_one(recipe, opsets="10"))[0]
    )


def test_an_error_of_the_exporter_in_torchs_modules_names_the_recipe_and_no_line_of_onnx_ci():
    recipe = of(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(5)), torch.randn(2, 2, 6, 6))
    (error,) = errors(run_one(recipe, opsets="9", isolation="fork"))  # in this process, this line would be the innermost
    assert error.source is None
    assert describe_finding(error).startswith(
        "torch.nn.functional.adaptive_avg_pool2d in 1 of the model that tests/engine/pipeline/locate/"
    )


def test_the_search_can_be_skipped():
    (found,) = errors(run_one(of(Scaled(), FLOATS), locate=False))
    assert (found.rule, found.culprits) == ("baked-value", ())


def test_a_cell_that_passes_is_not_searched():
    result = run_one(of(torch.nn.Linear(4, 4), FLOATS))
    assert not errors(result)
    assert "locate" not in result.timings


@pytest.mark.parametrize(
    ("model", "rule"), [(Scaled(), "baked-value"), (Upscaled(), "numeric-drift")], ids=["other sizes", "every input"]
)
def test_a_known_failure_is_not_searched(model, rule):
    expected = onnx_ci.known_failure(rule, "the exporter translates it wrongly")
    x = FLOATS if rule == "baked-value" else FLOATS.reshape(1, 2, 2, 2)
    result = run_one(
        onnx_ci.recipe(lambda: (model, (x,)), name="net", expect={"torchscript": expected}, **NAMES, **DYNAMIC), opsets="9"
    )
    assert result.status is onnx_ci.Status.XFAILED
    assert "locate" not in result.timings


# --- files with planted faults


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(6)
        self.recurrent = torch.nn.LSTM(6, 5, batch_first=True)
        self.scale = torch.nn.LayerNorm(5)
        self.head = torch.nn.Linear(5, 4)

    def forward(self, image):
        features = torch.nn.functional.gelu(self.norm(self.conv(image)))
        steps = features.mean(3).transpose(1, 2)
        output, _ = self.recurrent(steps)
        return self.head(self.scale(output)).softmax(-1)


@onnx_ci.recipe(input_names=["image"], output_names=["y"], dynamic_axes={"image": {0: "batch"}, "y": {0: "batch"}})
def network():
    return Network(), (torch.randn(2, 3, 6, 6),)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("network") / "network.onnx"
    onnx_ci.export(network, opset=15, path=path)
    return onnx.load(path)


def with_faults(model, *faults):
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    for fault in faults:
        fault(wrong.graph)
    return wrong


def node_of(graph, operator, number=0):
    return [node for node in graph.node if node.op_type == operator][number]


def replaced(operator, other, number=0):
    """Replaces an operator by another one."""

    def plant(graph):
        node = node_of(graph, operator, number)
        node.op_type = other
        del node.attribute[:]

    return plant


def scaled(operator, position, factor=1.1):
    """Changes one number of a weight."""

    def plant(graph):
        node = node_of(graph, operator)
        tensor = next(each for each in graph.initializer if each.name == node.input[position])
        array = numpy_helper.to_array(tensor).copy()
        array.flat[0] *= factor
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return plant


def set_to(operator, **attributes):
    """Changes attributes."""

    def plant(graph):
        node = node_of(graph, operator)
        kept = [each for each in node.attribute if each.name not in attributes]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attributes.items())])

    return plant


PLANTED = {
    "Conv, a weight": (scaled("Conv", 1), "Conv", "conv", "aten.convolution"),
    "Erf": (replaced("Erf", "Tanh"), "Tanh", "", "aten.gelu"),
    "LSTM, a weight": (scaled("LSTM", 2), "LSTM", "recurrent", "aten.addmm"),
    "LayerNorm's Sqrt": (replaced("Sqrt", "Abs"), "Abs", "scale", "aten.native_layer_norm"),
    "Softmax": (set_to("Softmax", axis=1), "Softmax", "", "aten._softmax"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_at_its_node(name, exported):
    plant, operator, module, computed = PLANTED[name]
    wrong = with_faults(exported, plant)
    result = onnx_ci.verify(wrong.SerializeToString(), network, opset=15)
    culprits = next(each.culprits for each in errors(result) if each.probe)
    assert len(culprits) == 1, culprits
    assert culprits[0].nodes[0].startswith(f"{operator} ")
    assert culprits[0].module == module
    assert computed in culprits[0].operators


# --- a node of several that compute one value together


class Stacked(torch.nn.Module):
    """In the file, the second layer takes its states by Slice; in the model, each of its directions takes one by itself."""

    def __init__(self):
        super().__init__()
        self.recurrent = torch.nn.LSTM(6, 8, num_layers=2, bidirectional=True)

    def forward(self, x, h, c):
        return self.recurrent(x, (h, c))


@onnx_ci.recipe(input_names=["x", "h", "c"], output_names=["y", "h_n", "c_n"])
def stacked():
    return Stacked(), (torch.randn(5, 2, 6), torch.randn(4, 2, 8), torch.randn(4, 2, 8))


def input_of(operator, number, position, make):
    """Changes what a node takes; ``make`` adds to the graph what gives the new input, and returns its name."""

    def plant(graph):
        node = node_of(graph, operator, number)
        node.input[position] = make(graph, node.input[position])

    return plant


def number(value):
    def make(graph, name):
        graph.initializer.append(numpy_helper.from_array(numpy.array([value]), f"number_{value}"))
        return f"number_{value}"

    return make


def without_sign(graph, name):
    before = next(place for place, node in enumerate(graph.node) if name in node.output)
    graph.node.insert(before + 1, helper.make_node("Abs", [name], ["unsigned"], name="unsigned"))
    return "unsigned"


def swapped_states(graph):
    last = node_of(graph, "LSTM", 1)
    last.output[1], last.output[2] = last.output[2], last.output[1]


AMONG_SEVERAL = {
    "the other states": (input_of("Slice", 0, 0, lambda graph, name: "c"), "Slice"),
    "the states of one direction": (input_of("Slice", 0, 2, number(1)), "Slice"),
    "a node too many": (input_of("LSTM", 1, 0, without_sign), "Abs 'unsigned'"),
    "swapped outputs": (swapped_states, "LSTM '/recurrent/LSTM_1'"),
}


@pytest.fixture(scope="module")
def stacked_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("stacked") / "stacked.onnx"
    onnx_ci.export(stacked, opset=15, path=path)
    return onnx.load(path)


@pytest.mark.parametrize("name", AMONG_SEVERAL)
def test_of_several_nodes_the_one_whose_repair_makes_them_right_is_named_first(name, stacked_file):
    plant, first = AMONG_SEVERAL[name]
    result = onnx_ci.verify(with_faults(stacked_file, plant).SerializeToString(), stacked, opset=15)
    culprits = next(each.culprits for each in errors(result) if each.probe)
    assert [each.nodes[0].startswith(first) for each in culprits] == [True], culprits


# --- layers that are alike, and the sizes that they compute


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = torch.nn.LayerNorm(8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.after = torch.nn.LayerNorm(8)
        self.mlp = torch.nn.Linear(8, 8)

    def forward(self, x):
        normal = self.before(x)
        x = x + self.attention(normal, normal, normal, need_weights=False)[0]
        return x + self.mlp(self.after(x))


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
def blocks():
    return torch.nn.Sequential(Block(), Block(), Block()), (torch.randn(3, 5, 8),)


@pytest.fixture(scope="module")
def blocks_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("blocks") / "blocks.onnx"
    onnx_ci.export(blocks, opset=15, path=path)
    return onnx.load(path)


def named(name, change):
    """Changes the node of a name."""

    def plant(graph):
        change(graph, next(node for node in graph.node if node.name == name))

    return plant


def becomes(operator, **attributes):
    def change(_, node):
        node.op_type = operator
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())

    return change


def reads(name):
    def change(_, node):
        node.input[0] = name

    return change


def dropped(_, node):
    node.op_type = "Identity"
    del node.input[1:]


IN_BLOCKS = {
    "another axis": ("/1/before/ReduceMean_1", becomes("ReduceMean", axes=[1], keepdims=1)),
    "the mean of something else": ("/1/before/ReduceMean_1", reads("/0/Add_1_output_0")),
    "a missing factor of a size": ("/0/attention/Mul", dropped),
    "another size": ("/1/attention/Unsqueeze_3", reads("/1/attention/Gather_2_output_0")),
}


QUICK = {"another axis", "another size"}


@pytest.mark.parametrize("name", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in IN_BLOCKS])
def test_of_layers_that_are_alike_the_node_of_the_one_at_fault_is_named_first(name, blocks_file):
    node, change = IN_BLOCKS[name]
    result = onnx_ci.verify(with_faults(blocks_file, named(node, change)).SerializeToString(), blocks, opset=15)
    culprits = next(each.culprits for each in errors(result) if each.probe)
    assert [each.nodes[0].partition(" ")[2] for each in culprits] == [repr(node)], culprits


def test_a_size_that_an_exporter_freezes_inside_a_layer_of_torch_is_at_the_line_that_calls_it():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.nn.Linear(8, 5)

        def forward(self, x):
            mixed, _ = self.attention(x, x, x)
            return self.head(mixed)

    axes = {"x": {0: "batch", 1: "length"}, "y": {0: "batch", 1: "length"}}
    result = run_one(recipe_of(Attention(), torch.randn(2, 7, 8), **NAMES, dynamic_axes=axes), opsets="17")
    culprits = errors(result)[0].culprits
    assert {each.source.text for each in culprits} == {"mixed, _ = self.attention(x, x, x)"}
    assert errors(result)[0].remedy.startswith("Declare exporter='dynamo' and opsets='18-', with which the file is right")
    # The reshapes of keys and values, and not a transpose whose result looks right whatever it gets.
    assert [any("Reshape" in node for node in each.nodes[:2]) for each in culprits] == [True, True]


def test_a_part_of_a_long_axis_is_searched_for_in_little_time_and_memory():
    recipe = recipe_of(lambda x: x[2:] // 3, torch.arange(-100_000, 100_000), **NAMES)
    result = run_one(recipe, memory_limit="4g", timeout=60)
    assert [each.rule for each in errors(result)] == ["numeric-drift"]
    assert errors(result)[0].culprits[0].operators == ("aten.floor_divide",)


def test_two_planted_faults_are_both_found(exported):
    wrong = with_faults(exported, scaled("Conv", 1), set_to("Softmax", axis=1))
    result = onnx_ci.verify(wrong.SerializeToString(), network, opset=15)
    found = next(each for each in errors(result) if each.output)
    assert [each.nodes[0].partition(" ")[0] for each in found.culprits] == ["Conv", "Softmax"]
    other = found.culprits[1].source
    assert f"in {found.culprits[0].module}, and {other}: output 'y' at " in describe_finding(found)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 18])
def test_every_node_of_a_right_file_is_innocent(opset):
    """A difference that is allowed by nothing fails the cell, and no node can be blamed for it."""
    result = run_one(network, opsets=str(opset), max_drift=1e-6)
    assert all(each.rule in ("numeric-drift", "baked-value") for each in errors(result))
    assert errors(result)
    assert "locate" in result.timings
    assert not any(each.culprits for each in errors(result))


def test_values_of_integers_and_branches_in_the_file_are_followed():
    def count(x):
        return (x > 0).sum(1) * 2 + x.argmax(1)

    recipe = recipe_of(count, torch.randn(2, 5), **NAMES)
    exported = onnx.load(onnx_ci.export(recipe, opset=13).path)
    wrong = with_faults(exported, replaced("Greater", "Less"))
    result = onnx_ci.verify(wrong.SerializeToString(), recipe, opset=13)
    (culprit,) = errors(result)[0].culprits
    assert culprit.nodes[0].startswith("Less ")
    assert culprit.source.text == "return (x > 0).sum(1) * 2 + x.argmax(1)"


# --- the nodes around a fault


def test_the_steps_are_right_before_the_fault_and_grow_wrong_from_there():
    class Tripled(Scaled):
        def forward(self, x):
            return (self.body(x) * 3).softmax(-1)

    recipe = of(Tripled(), FLOATS)
    wrong = with_faults(onnx.load(onnx_ci.export(recipe, opset=13).path), replaced("Mul", "Div"))
    found = next(each for each in errors(onnx_ci.verify(wrong.SerializeToString(), recipe, opset=13)) if each.steps)
    at_fault = next(number for number, step in enumerate(found.steps) if step.is_culprit)
    before, culprit, after = found.steps[:at_fault], found.steps[at_fault], found.steps[at_fault + 1 :]
    assert before and all(step.drift < 16 and step.source is not None for step in before)
    assert culprit.node.partition(" ")[0] == "Div"
    assert culprit.drift > 1000
    assert culprit.file_value == pytest.approx(culprit.model_value / 9, rel=1e-5)
    assert [step.node.partition(" ")[0] for step in after] == ["Softmax"]
    assert all(step.drift > 1000 for step in after)


def test_a_node_that_cannot_run_stops_those_behind_it():
    def scaled(x):
        return (x.exp() * x).cos()

    recipe = recipe_of(scaled, FLOATS, **NAMES, **DYNAMIC)
    wrong = with_faults(onnx.load(onnx_ci.export(recipe, opset=13).path), replaced("Mul", "MatMul"))
    found = next(each for each in errors(onnx_ci.verify(wrong.SerializeToString(), recipe, opset=13)) if each.steps)
    steps = [(step.node.partition(" ")[0], step.is_culprit, step.can_run) for step in found.steps]
    assert steps == [("Exp", False, True), ("MatMul", True, False), ("Cos", False, False)]
    assert found.steps[1].drift is None
    assert found.steps[1].source.text == "return (x.exp() * x).cos()"


# --- casts to a lower precision


class Halved(torch.nn.Module):
    def forward(self, x):
        hidden = x.sin() * 3
        if torch.onnx.is_in_onnx_export():
            hidden = hidden.half().float()
        return hidden.exp()


class HalvedInBoth(torch.nn.Module):
    def forward(self, x):
        return (x.sin() * 3).half().float().exp() * int(x.shape[0])


def test_a_cast_to_float16_that_the_model_does_not_have_is_a_fault_like_any_other():
    (found,) = errors(run_one(of(Halved(), FLOATS)))
    nodes = [each.node.partition(" ")[0] for each in found.steps if each.is_culprit]
    assert nodes == ["Cast", "Cast", "Exp"]  # the second cast is exact


def test_where_the_model_computes_in_float16_itself_nothing_is_blamed():
    found = errors(run_one(of(HalvedInBoth(), FLOATS)))
    assert found
    assert not any(each.culprits for each in found)
