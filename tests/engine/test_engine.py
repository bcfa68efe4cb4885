"""What a cell finds, through the public functions: each fault is named by its rule, and its right twin passes."""

from __future__ import annotations

import ctypes
import random
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from packaging.version import Version
from toolbox.cells import BATCH, Counts, recipe_of, rules, run_one

import onnx_ci
from onnx_ci import Status
from onnx_ci.pipeline.export.export import move, remove_kept
from onnx_ci.report.causes import causes_of
from onnx_ci.report.findings import describe_finding
from onnx_ci.results.verdict import decide


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@onnx_ci.recipe(**BATCH)
def net():
    return Net(), (torch.randn(3, 8),)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The recipe ``net`` exported at opset 13, for tests that break the file."""
    return onnx_ci.export(net, opset=13, path=tmp_path_factory.mktemp("exported") / "net.onnx")


def broken(artifact, change, recipe=net, opset=13):
    """The verdict on ``artifact`` after ``change`` was made to its ModelProto."""
    model = onnx.load(artifact.path)
    change(model)
    return onnx_ci.verify(model.SerializeToString(), recipe, opset=opset)


# --- what is right passes


def test_a_right_cell_passes_and_tells_its_numbers():
    result = run_one(net)
    assert (result.status, result.findings) == (Status.PASSED, ())
    assert [output.probe for output in result.outputs] == [
        "example", "random values", "batch=4", "batch=7", "batch=1", "floats zero", "floats negated", "floats large",
        "floats small", "floats mixed", "floats mixed 2", "floats mixed 3", "floats extreme", "batch=1025",
    ]  # fmt: skip
    assert [output.reference for output in result.outputs] == ["float64"] * 2 + ["proportion"] * 12
    assert result.observability == 1.0
    for output in result.outputs:
        assert 0 <= output.drift < 8
        assert output.drift == output.error / output.noise
        assert output.limit == 16 * {"floats extreme": 64, "batch=1025": 8}.get(output.probe, 1)
    assert set(result.timings) == {
        "build", "reference", "sketch", "side-effects", "probes", "branches", "long-axes", "observability",
        "export", "contract", "load", "run", "compare",
    }  # fmt: skip


def test_a_quick_run_compares_on_the_example_alone():
    quick = run_one(net, effort="quick")
    assert (quick.status, [output.probe for output in quick.outputs]) == (Status.PASSED, ["example"])
    assert quick.observability is None
    assert not {"side-effects", "branches", "long-axes", "observability"} & set(quick.timings)


def test_a_process_that_cannot_compute_gradients_says_so(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    result = run_one(net)
    assert (result.status, result.observability) == (Status.PASSED, None)
    assert [each.message for each in result.findings] == [
        "observability was not measured: the parent process has already computed gradients"
    ]


def test_limits_may_differ_by_output_and_by_type():
    def two(x):
        return x * 2, x.half() * 2

    def recipe(**keywords):
        return recipe_of(two, torch.ones(4), input_names=["x"], output_names=["a", "b"], **keywords)

    outputs = run_one(recipe(max_drift={"a": 7, "float16": 9})).outputs
    assert {output.name: output.limit for output in outputs if output.is_decisive} == {"a": 7, "b": 9}


@pytest.mark.parametrize(
    ("keywords", "unknown"),
    [
        ({"max_drift": {"a": 7, "aa": 7}, "output_names": ["a", "b"]}, "max_drift names 'aa'"),
        ({"rtol": {"x": 1e-3}, "output_names": ["a", "b"]}, "rtol names 'x'"),
        ({"rtol": 1e-3, "atol": {"c": 1e-3, "b": 1.0}, "output_names": ["a", "b"]}, "atol names 'c'"),
        ({"max_drift": {"a": 7}}, "max_drift names 'a'"),
        ({"rtol": {"b": 1e-2}, "output_names": ["a", "b"]}, None),
        ({"max_drift": {"float32": 7}}, None),
    ],
)
def test_a_limit_is_for_an_output_that_there_is(keywords, unknown):
    result = run_one(recipe_of(lambda x: (x * 2, x.half() * 2), torch.ones(4), input_names=["x"], **keywords))
    messages = [each.message for each in result.findings if each.rule == "name-mismatch"]
    assert [message.partition(",")[0] for message in messages] == ([unknown] if unknown else [])
    assert all("the outputs are " in message for message in messages)
    assert result.status == (Status.FAILED if unknown else Status.PASSED)


def test_dynamo_is_a_cell_of_its_own_and_passes_from_opset_18():
    report = onnx_ci.run([net], opsets="18", exporters="torchscript,dynamo")
    assert [(each.cell.label, each.status) for each in report.cells] == [
        ("opset18-cpu-torchscript", Status.PASSED),
        ("opset18-cpu", Status.PASSED),
    ]


def test_dynamo_takes_the_dynamic_axes_of_nested_arguments():
    class Nested(torch.nn.Module):
        def forward(self, x, pair):
            return x + pair[0] + pair[1]

    @onnx_ci.recipe(
        input_names=["x", "a", "b"],
        output_names=["y"],
        dynamic_axes={"x": {0: "n"}, "a": {0: "n"}, "b": {0: "n"}, "y": {0: "n"}},
    )
    def nested():
        return Nested(), (torch.randn(3, 2), (torch.randn(3, 2), torch.randn(3, 2)))

    result = run_one(nested, opsets="18")
    assert (rules(result), result.status) == ([], Status.PASSED)
    assert {"example", "n=7"} < {output.probe for output in result.outputs}


@pytest.mark.parametrize("scale", [1e-30, 1e12])
def test_outputs_of_any_size_are_judged_alike(scale):
    def recipe(factor):
        return recipe_of(lambda x: torch.tanh(x) * factor, torch.randn(64), input_names=["x"], output_names=["y"])

    right = onnx_ci.export(recipe(scale), opset=13)
    assert onnx_ci.verify(right, recipe(scale), opset=13).status is Status.PASSED
    wrong = onnx_ci.verify(right, recipe(scale * 1.001), opset=13)
    assert rules(wrong) == ["numeric-drift"]


def test_a_zero_output_must_stay_zero():
    artifact = onnx_ci.export(recipe_of(lambda x: x * 0.0, torch.randn(4)), opset=13)
    assert rules(onnx_ci.verify(artifact, recipe_of(lambda x: x * 0.0, torch.randn(4)), opset=13)) == ["vacuous"]
    tiny = onnx_ci.export(recipe_of(lambda x: x * 0.0 + 1e-20, torch.randn(4)), opset=13)
    assert rules(onnx_ci.verify(tiny, recipe_of(lambda x: x * 0.0, torch.randn(4)), opset=13)) == ["vacuous", "numeric-drift"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool])
def test_every_data_type_is_compared(dtype):
    x = (torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    recipe = recipe_of(lambda x: x[:, 1:] if x.dtype == torch.bool else x[:, 1:] + 1, x, input_names=["x"], output_names=["y"])
    result = run_one(recipe)
    assert (rules(result), result.status) == ([], Status.PASSED)
    assert result.outputs[0].reference == ("float64" if dtype.is_floating_point else "exact")


def test_what_is_not_a_number_in_both_is_no_finding():
    x = torch.tensor([2.0, -1.0, 0.0])
    result = run_one(recipe_of(torch.log, x, input_names=["x"], output_names=["y"]))
    assert (rules(result), result.outputs[0].index) == ([], (0,))


# --- the export itself


def test_what_the_exporter_raises_is_one_line_with_its_cause_and_the_rest_in_the_log():
    class Branches(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    result = run_one(onnx_ci.recipe(name="branches")(lambda: (Branches(), (torch.ones(3),))), opsets="18")
    assert rules(result) == ["export-error"]
    message = result.findings[0].message
    assert message.startswith("the dynamo exporter raised TorchExportError: ")
    assert "caused by" in message
    assert "Next steps" not in message
    assert "\n" not in message
    assert "\x1b" not in message
    assert "Traceback (most recent call last)" in result.log


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("the conflicts are:\n\n  - axis 2\n  - axis 3", "ValueError: the conflicts are: - axis 2 - axis 3"),
        (
            "no dispatch for <torch.Thing object at 0x7f30f7413a10>\nsecond line",
            "ValueError: no dispatch for <torch.Thing object> second line",
        ),
        ("", "ValueError: no message"),
    ],
)
def test_an_error_of_the_exporter_is_told_by_the_paragraph_that_says_what_is_wrong(raised, told):
    def fails_in_export(x):
        if torch.onnx.is_in_onnx_export():
            raise ValueError(raised)
        return x * 2

    result = run_one(recipe_of(fails_in_export, torch.ones(3)))
    assert rules(result) == ["export-error"]
    assert result.findings[0].message == f"the torchscript exporter raised {told}"


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 24, reason="the exporter knows every opset that onnx does")
def test_an_opset_that_the_exporter_does_not_know_is_named_and_costs_no_other_cell():
    report = onnx_ci.run([net], opsets="13,24", exporters="torchscript")
    assert [(each.cell.opset, rules(each)) for each in report.cells] == [(13, []), (24, ["unsupported-opset"])]
    assert "24" in report.cells[1].findings[0].message


def test_dynamo_that_comes_out_at_another_opset_is_a_mismatch():
    result = run_one(net, opsets="7", exporters="dynamo")
    mismatch = next(each for each in result.findings if each.rule == "opset-mismatch")
    assert (mismatch.opset, result.cell.opset) == (18, 7)
    assert result.status is Status.FAILED


def test_what_the_exporter_prints_is_kept_with_the_cell_and_never_shown(capfd):
    class Loud(torch.nn.Module):
        def forward(self, x):
            print("printed while tracing")
            ctypes.CDLL(None).puts(b"printed by C")  # which keeps it until its buffer is full
            return x if x.sum() > 0 else -x

    result = run_one(onnx_ci.recipe(name="loud")(lambda: (Loud(), (torch.ones(3),))))
    assert "printed while tracing" in result.log
    assert "printed by C" in result.log
    assert "TracerWarning" in result.log
    assert capfd.readouterr() == ("", "")


def test_the_exporter_gets_the_recipes_other_keywords():
    model = onnx.load(onnx_ci.export(onnx_ci.recipe(name="k", keep_initializers_as_inputs=True)(net.function), opset=13).path)
    assert len(model.graph.input) == 5


# --- the file against its recipe


def test_another_opset_than_asked_is_a_mismatch(exported):
    result = onnx_ci.verify(exported, net, opset=12)
    assert rules(result) == ["opset-mismatch"]
    assert "opset 12 was requested, but the file is written at opset 13" in result.findings[0].message


def test_a_file_that_the_checker_refuses(exported):
    def drop_output(model):
        model.graph.node[0].output[0] = "elsewhere"

    assert "checker" in rules(broken(exported, drop_output))


@pytest.mark.parametrize(("name", "broken"), [("sigmoid", ["name-mismatch"]), ("probability", [])])
def test_dynamo_gives_a_node_the_name_of_an_output(name, broken):
    recipe = recipe_of(lambda x: torch.sigmoid(x) * x, torch.randn(2, 3), input_names=["x"], output_names=[name])
    result = run_one(recipe, opsets="18", exporters="dynamo")
    errors = [each for each in result.findings if each.severity is onnx_ci.Severity.ERROR]
    assert [each.rule for each in errors] == broken  # the name alone: no other cause is searched for
    assert all("output_names" in each.remedy for each in errors)


def test_a_file_that_is_no_model():
    result = onnx_ci.verify(b"not a model at all", net, opset=13)
    assert (rules(result), result.status) == (["checker"], Status.FAILED)


def rename(model, old, new):
    for values in (model.graph.input, model.graph.output):
        for value in values:
            value.name = new if value.name == old else value.name
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_renamed_value_is_named(exported, name):
    result = broken(exported, lambda model: rename(model, name, "renamed"))
    assert rules(result) == ["name-mismatch"]
    assert f"declared as {name}, but the graph has renamed" in result.findings[0].message


def test_a_dropped_input_is_missing():
    recipe = recipe_of(lambda x, unused: x * 2, torch.ones(2), torch.ones(3), input_names=["x", "unused"], output_names=["y"])
    artifact = onnx_ci.export(recipe, opset=13)
    model = onnx.load(artifact.path)
    del model.graph.input[1:]
    result = onnx_ci.verify(model.SerializeToString(), recipe, opset=13)
    assert rules(result) == ["input-missing"]
    assert "missing: unused" in result.findings[0].message


def test_an_added_output_is_a_mismatch(exported):
    def add_output(model):
        hidden = model.graph.node[0].output[0]
        model.graph.output.append(helper.make_tensor_value_info(hidden, onnx.TensorProto.FLOAT, ["batch", 16]))

    assert rules(broken(exported, add_output)) == ["output-mismatch"]


def test_an_axis_that_is_fixed_in_the_file_is_static():
    static = onnx_ci.export(onnx_ci.recipe(name="s", input_names=["x"], output_names=["y"])(net.function), opset=13)
    result = onnx_ci.verify(static, net, opset=13)
    assert rules(result) == ["static-axis", "static-axis", "baked-shape"]
    assert "axis 0 of input 'x' is declared dynamic as 'batch', but is fixed to 3" in result.findings[0].message


class Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(8, 6, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]  # the line


@pytest.mark.slow  # dynamo takes apart every step of a layer
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_recurrent_layer_of_any_length_has_nothing_that_nobody_can_act_on(kind):
    axes = {0: "batch", 1: "length"}

    def net():
        return Recurrent(kind), (torch.randn(2, 5, 8),)

    def declared(model):
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "length"
        return model

    keywords = {"name": "net", "input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": axes, "y": axes}}
    recipe = onnx_ci.recipe(**keywords)(net)
    traced, exported = onnx_ci.run([recipe], opsets="18", exporters="torchscript,dynamo").cells
    assert (traced.status, traced.findings) == (Status.PASSED, ())
    if Version(torch.__version__) >= Version("2.15"):  # dynamo names the axis
        assert (exported.status, rules(exported)) == (Status.PASSED, [])
        return
    (static,) = (each for each in exported.findings if each.severity is onnx_ci.Severity.ERROR)
    assert "is declared dynamic as 'length', and has size" in static.message
    assert "but the graph declares 5" in static.message
    assert static.lines[0].text == "return self.rnn(x)[0]  # the line"
    assert 'by model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "length", and' in static.remedy
    assert "allow='static-axis'" in static.remedy
    by_remedy = onnx_ci.recipe(**keywords, then=[declared], allow="static-axis")(net)
    assert [each.status for each in onnx_ci.run([by_remedy], opsets="18", exporters="dynamo").cells] == [Status.PASSED] * 2


def test_an_axis_under_another_name_is_a_mismatch():
    other = onnx_ci.recipe(name="o", **{**BATCH, "dynamic_axes": {"x": {0: "N"}, "y": {0: "N"}}})(net.function)
    result = onnx_ci.verify(onnx_ci.export(other, opset=13), net, opset=13)
    assert rules(result) == ["name-mismatch", "name-mismatch"]


@pytest.mark.parametrize(
    ("file", "model", "x", "rule", "said"),
    [
        (lambda x: x.double() * 2, lambda x: x * 2, torch.ones(3), "dtype-mismatch", "output 'y' is double in the graph and float32 in the model"),
        (lambda x: x.flatten(), lambda x: x * 1, torch.ones(2, 3), "shape-mismatch", "'y' has rank 1 in the graph and 2 in the model"),
        (lambda x: x * 2 + (x == 3).long(), lambda x: x * 2, torch.arange(5), "numeric-drift", "output 'y' at [3] on 'example' is 7 and should be 6; int64 values must be equal"),
        (lambda x: x + 1, lambda x: x * 1, torch.tensor([2**62 + 1]), "numeric-drift", "int64 values must be equal"),  # float64 has no such number
    ],
    ids=["type", "rank", "integers", "integers beyond float64"],
)  # fmt: skip
def test_the_file_of_another_function_is_told_by_what_differs(file, model, x, rule, said):
    names = {"input_names": ["x"], "output_names": ["y"]}
    result = onnx_ci.verify(onnx_ci.export(recipe_of(file, x, **names), opset=13), recipe_of(model, x, **names), opset=13)
    assert set(rules(result)) == {rule}
    assert said in result.findings[0].message


# --- the numbers


def test_a_perturbed_weight_is_drift(exported):
    def perturb(model):
        tensor = next(each for each in model.graph.initializer if each.name == "second.weight")
        values = numpy_helper.to_array(tensor).copy()
        values[2, 5] *= 1 + 1e-4
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    result = broken(exported, perturb)
    assert rules(result) == ["weight-mismatch", "numeric-drift"]
    found = result.findings[1]
    assert found.details["index"][1] == 2
    assert found.drift == result.outputs[0].drift > 16
    assert "the limit is 16" in found.message
    assert result.status is Status.FAILED


def test_a_frozen_value_is_right_on_the_example_and_wrong_elsewhere():
    def sum_rows(x):
        total = x[0] * 0
        for i in range(int(x.shape[0])):
            total = total + x[i]
        return total

    recipe = recipe_of(sum_rows, torch.randn(3, 4), input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}})
    result = run_one(recipe)
    assert rules(result) == ["baked-value", "baked-shape"]
    baked = next(each for each in result.findings if each.rule == "baked-value")
    assert baked.probe == "n=4"
    assert describe_finding(baked).endswith("; also on 'n=7' and 'n=1025'")


class Masked(torch.nn.Module):
    """The sum and number of what a mask selects; the file gives another number for a row without any."""

    def forward(self, x, mask):
        total = (x * mask).sum(-1)
        count = mask.to(x.dtype).sum(-1)
        if torch.onnx.is_in_onnx_export():
            count = count.clamp(min=1)
        return total + count


def masked(**keywords):
    mask = torch.tensor([[True, False, True, True], [True, True, False, False]])
    return onnx_ci.recipe(input_names=["x", "mask"], name="masked", **keywords)(lambda: (Masked(), (torch.randn(2, 4), mask)))


def test_a_mismatch_on_a_fully_masked_row_is_a_warning():
    result = run_one(masked())
    assert result.status is Status.PASSED
    assert {(each.rule, each.probe) for each in result.warnings} == {("edge-mismatch", "masks empty")}
    assert result.warnings[0].also_on == ("first row false",)
    assert result.worst.drift <= result.worst.limit  # the drift in the grid is that of usual inputs
    assert run_one(masked(), strict=True).status is Status.FAILED
    assert run_one(masked(allow="edge-mismatch"), strict=True).status is Status.PASSED


@pytest.mark.parametrize("keeps_files", [False, True])
def test_a_recipe_that_skips_when_it_is_built_again_is_judged_by_what_is_known(tmp_path, keeps_files):
    builds = []

    class Wrong(torch.nn.Module):
        def forward(self, x):
            return x + (1.0 if torch.onnx.is_in_onnx_export() else 0.0)

    @onnx_ci.recipe(name="wrong", input_names=["x"], output_names=["y"])
    def wrong():
        builds.append(1)
        if len(builds) > 1:
            pytest.skip("only once")
        return torch.nn.Sequential(torch.nn.Linear(4, 4), Wrong()), (torch.randn(3, 4),)

    result = run_one(wrong, **({"artifacts": str(tmp_path)} if keeps_files else {}))
    assert (result.status, rules(result), len(builds)) == (Status.FAILED, ["numeric-drift"], 2)


def test_the_inputs_of_a_warning_are_saved_like_those_of_an_error(tmp_path):
    run_one(masked(), save_inputs=str(tmp_path))
    assert {path.name for path in tmp_path.rglob("*.npz")} == {"masks_empty.npz", "first_row_false.npz"}


def test_a_file_that_alone_loses_a_finite_value_is_wrong_on_special_inputs_too():
    """What softplus does for large values: the logarithm of a sigmoid is finite where the sigmoid is zero."""

    class LogSigmoid(torch.nn.Module):
        def forward(self, x):
            if torch.onnx.is_in_onnx_export():
                return torch.log(torch.sigmoid(x))
            return torch.nn.functional.logsigmoid(x)

    recipe = onnx_ci.recipe(input_names=["x"], name="net")(lambda: (LogSigmoid(), (torch.linspace(-12, 12, 25),)))
    assert "nonfinite-mismatch" in rules(run_one(recipe))


def test_not_a_number_where_the_model_has_one_is_an_error():
    def recipe(shift):
        return recipe_of(lambda x: torch.log(x - shift), torch.tensor([1.0, 2.0, 3.0]), input_names=["x"], output_names=["y"])

    result = onnx_ci.verify(onnx_ci.export(recipe(1.5), opset=13), recipe(0.5), opset=13)
    assert rules(result)[0] == "nonfinite-mismatch"
    assert (
        "1 of 3 values are NaN or infinite on one side, first nan in the file and -0.693147 in the model at [0]"
        in result.findings[0].message
    )
    reverse = onnx_ci.verify(onnx_ci.export(recipe(0.0), opset=13), recipe(1.5), opset=13)
    assert "nonfinite-mismatch" in rules(reverse)


def test_a_file_that_computes_nan_is_wrong_and_is_not_said_to_prove_nothing():
    def recipe(weight):
        return recipe_of(lambda x: x * weight, torch.ones(3), input_names=["x"], output_names=["y"])

    result = onnx_ci.verify(onnx_ci.export(recipe(float("nan")), opset=13), recipe(2.0), opset=13)
    assert rules(result) == ["nonfinite-mismatch"]


def test_an_output_without_a_finite_value_proves_nothing():
    result = run_one(recipe_of(lambda x: x / 0, torch.ones(3), input_names=["x"], output_names=["y"]))
    assert (set(rules(result)), result.status) == ({"vacuous"}, Status.FAILED)


def test_an_output_that_is_always_empty_proves_nothing():
    result = run_one(recipe_of(lambda x: (x, x[:0]), torch.ones(3), input_names=["x"], output_names=["y", "empty"]))
    assert rules(result) == ["vacuous"]
    assert "output 'empty' was never compared" in result.findings[-1].message


@pytest.mark.parametrize(
    ("noise", "remedy"), [(torch.rand_like, "nondeterministic=True"), (lambda x: random.random(), "Make an input of it")]
)
def test_a_random_model_proves_nothing_and_its_numbers_are_no_second_finding(noise, remedy):
    result = run_one(recipe_of(lambda x: x + noise(x), torch.ones(1000)))
    (cause,) = causes_of(each for each in result.findings if each.severity is onnx_ci.Severity.ERROR)
    assert cause.finding.rule == "nondeterministic"
    assert remedy in cause.finding.remedy
    assert {each.rule for each in cause.consequences} & {"numeric-drift", "vacuous"}


def test_modules_that_an_activation_hides_show_on_another_example():
    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.linear(x) - 10) + x

    def hidden(scale, **keywords):
        return run_one(onnx_ci.recipe(name="hidden", **keywords)(lambda: (Hidden(), (torch.randn(3, 4) * scale,))))

    (found,) = hidden(1).findings
    assert (found.rule, "weights='trained'" in found.remedy) == ("vacuous", True)
    assert hidden(100, weights="trained").status is Status.PASSED


@pytest.mark.parametrize("opset", [13, pytest.param(18, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("returned", "broken"),
    [
        (lambda x: torch.clamp(x, 2, 2), ["vacuous"]),
        (lambda x: x * x >= 0, ["vacuous"]),
        (lambda x: (x, torch.clamp(x, 2, 2).to(torch.int64)), []),
        (lambda x: (x + 100 > 0).to(torch.int64), []),  # whatever the example is, it depends on the layer
        (lambda x: x.argmax(1), []),
    ],
)
def test_a_model_of_which_no_layer_shows_proves_nothing_whatever_type_its_outputs_have(returned, broken, opset):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return returned(self.linear(x))

    result = run_one(onnx_ci.recipe(name="layer", input_names=["x"])(lambda: (Layer(), (torch.randn(3, 4),))), opsets=opset)
    assert rules(result) == broken
    assert not broken or "1 of 1 modules has no measurable effect on the outputs: 'linear'" in result.findings[0].message


def test_the_usual_remedy_for_a_size_of_the_example_advises_against_the_loop_that_froze_it():
    def total(x):
        return sum(x[i] for i in range(x.shape[0]))

    axes = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "rows"}}}
    (result,) = onnx_ci.run([recipe_of(total, torch.ones(3, 4), **axes)], opsets="17", locate=False).cells
    remedies = {each.rule: each.remedy for each in result.findings}
    assert "instead of in a loop" in remedies["baked-shape"]
    assert "and loops" not in remedies["baked-shape"]


def test_a_recipe_may_judge_by_tolerance():
    one = recipe_of(lambda x: x, torch.rand(9) + 1, atol=1e-2)
    close = recipe_of(lambda x: x + 5e-3, torch.rand(9) + 1)
    far = recipe_of(lambda x: x + 5e-2, torch.rand(9) + 1)
    assert onnx_ci.verify(onnx_ci.export(close, opset=13), one, opset=13).status is Status.PASSED
    result = onnx_ci.verify(onnx_ci.export(far, opset=13), one, opset=13)
    assert "more than atol=0.01, rtol=0 allow" in result.findings[0].message


def test_a_recipes_own_limit_wins_over_the_settings():
    loose = onnx_ci.recipe(name="loose", max_drift=1e3)(net.function)
    wrong = onnx_ci.export(onnx_ci.recipe(name="w")(lambda: (Net().requires_grad_(False), (torch.randn(3, 8),))), opset=13)
    assert onnx_ci.verify(wrong, net, opset=13).status is Status.FAILED
    assert run_one(loose, max_drift="0.001").status is Status.PASSED
    assert run_one(net, max_drift="0.001").status is Status.FAILED


@pytest.mark.parametrize("limit", [1e12, {"float32": 1e12}])
def test_a_limit_that_lets_everything_pass_proves_nothing_wherever_it_is_given(limit):
    declared = onnx_ci.recipe(name="net", max_drift=limit, **BATCH)(net.function)
    assert rules(run_one(declared)) == ["vacuous"]
    assert rules(run_one(net, max_drift="1e12")) == ["vacuous"]


FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def float8(dtype, factor=1.0, rows=64):
    class Quantized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x):
            return (self.layer(x.float()) * factor).to(dtype)

    return onnx_ci.recipe(name="float8", **BATCH)(lambda: (Quantized(), (torch.randn(rows, 16),)))


@pytest.mark.parametrize("runtimes", ["onnxruntime", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [FLOAT8[0], pytest.param(FLOAT8[1], marks=pytest.mark.slow)])
def test_an_8_bit_float_is_judged_like_any_output(dtype, runtimes):
    result = run_one(float8(dtype), opsets="21", runtimes=runtimes)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    assert {(output.dtype, output.drift) for output in result.outputs} == {(str(dtype).removeprefix("torch."), 0.0)}
    assert result.observability == 1.0
    assert result.facts.outputs[0].dtype == str(dtype).removeprefix("torch.").replace("_", "")
    wrong = onnx_ci.verify(onnx_ci.export(float8(dtype, 1.01), opset=21), float8(dtype), runtimes=runtimes)
    assert (wrong.status, rules(wrong)[0]) == (Status.FAILED, "numeric-drift")
    other = next(each for each in FLOAT8 if each != dtype)
    assert "dtype-mismatch" in rules(onnx_ci.verify(onnx_ci.export(float8(other), opset=21), float8(dtype), runtimes=runtimes))


def test_an_8_bit_float_near_the_middle_of_two_steps_may_be_rounded_to_either():
    result = run_one(float8(torch.float8_e4m3fn, rows=4096), opsets="21")
    assert (result.status, rules(result)) == (Status.PASSED, [])


def test_8_bit_floats_come_in_as_they_go_out():
    def scaled(x):
        return (x.float() * 2).to(x.dtype)

    x = torch.randn(3, 8).to(torch.float8_e4m3fn)
    result = run_one(recipe_of(scaled, x, **BATCH), opsets="21", runtimes="onnxruntime,reference")
    assert (result.status, rules(result)) == (Status.PASSED, [])


@pytest.mark.parametrize(("opset", "exporter", "rule"), [(13, "torchscript", "export-error"), (18, "dynamo", "checker")])
def test_8_bit_floats_that_an_exporter_or_opset_lacks_are_named_as_that(opset, exporter, rule):
    result = run_one(float8(torch.float8_e4m3fn), opsets=str(opset), exporters=exporter)
    assert (result.status, rules(result)) == (Status.FAILED, [rule])


# --- the run


class Session:
    nodes_on_cpu = None

    def __init__(self, provider="cpu"):
        self.provider = provider

    def run(self, inputs):
        raise RuntimeError("the kernel gave up\nwith a long story")


class Runtime:
    """A runtime that misbehaves as it is told."""

    name = "fake"
    is_deployed = True

    def __init__(self, session=None, load=None, missing=None):
        self.session, self.error, self.missing = session, load, missing

    def missing_device(self, device):
        return self.missing

    def load(self, path, device):
        if self.error:
            raise self.error
        return self.session


def run_with(runtime, tmp_path):
    from onnx_ci.collection.discovery import Found
    from onnx_ci.config.settings import load_settings
    from onnx_ci.engine.one_process import Engine
    from onnx_ci.matrix.plan import plan

    settings = load_settings(tmp_path, flags={"opsets": "13"}, environment={})
    with Engine(runtimes=[runtime]) as engine:
        found = engine.run_cell(*plan([Found(net, "r.py")], settings).cells)
    return decide(found)


def test_a_file_that_the_runtime_cannot_load(tmp_path):
    result = run_with(Runtime(load=RuntimeError("no kernel for X")), tmp_path)
    assert rules(result) == ["load-error"]
    assert "no kernel for X" in result.findings[0].message


def test_what_a_runtime_says_is_told_without_the_place_where_the_file_lay(tmp_path):
    class Talkative(Runtime):
        def load(self, path, device):
            raise RuntimeError(f"Load model from {path} failed: invalid")

    result = run_with(Talkative(), tmp_path)
    assert result.findings[0].message == "fake cannot load the file: Load model from the file failed: invalid"


def test_a_file_that_never_runs_is_told_once_and_not_as_one_that_knows_one_size_only(tmp_path):
    result = run_with(Runtime(Session()), tmp_path)
    assert rules(result) == ["run-error"]
    assert describe_finding(result.findings[0]).startswith(
        "fake fails on 'example': the kernel gave up; also on 'random values', 'batch="
    )


def test_a_runtime_that_fell_back_to_another_device_is_a_mismatch(tmp_path):
    assert rules(run_with(Runtime(Session("other")), tmp_path)) == ["provider-mismatch"]


def test_a_device_that_is_absent_skips_with_its_reason(tmp_path):
    result = run_with(Runtime(missing="no driver"), tmp_path)
    assert (result.status, result.reason) == (Status.SKIPPED, "no cpu: no driver")


def test_a_runtime_that_cannot_be_imported_is_no_failure_of_ours(tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('numpy is too new')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    result = run_one(net)
    assert (result.status, rules(result)) == (Status.ERROR, ["missing-device"])
    assert result.findings[0].message.startswith("ONNX Runtime cannot be imported: ImportError: numpy is too new")
    assert result.findings[0].remedy == "onnx-ci doctor shows what does not work here."


def test_our_own_failure_costs_one_cell_its_verdict(tmp_path):
    result = run_with(Runtime(session=None), tmp_path)
    assert (rules(result), result.status) == (["internal-error"], Status.ERROR)
    assert "Traceback" in result.log


def test_names_beyond_the_inputs_are_for_weights_if_that_is_meant(tmp_path):
    def named(**keywords):
        return onnx_ci.recipe(name="named", input_names=["x", "learned_0", "learned_1"], **keywords)(
            lambda: (torch.nn.Linear(3, 2), (torch.ones(2, 3),))
        )

    (found,) = run_one(named()).findings
    assert (found.rule, found.message) == ("name-mismatch", "input_names declares 3 names, but args contain 1 tensor")
    meant = run_one(named(allow=["name-mismatch"]), artifacts=tmp_path)
    assert (meant.status, rules(meant)) == (Status.PASSED, [])
    assert {each.name for each in onnx.load(meant.artifact).graph.initializer} == {"learned_0", "learned_1"}


def test_a_file_without_its_weights_is_given_those_of_the_model(tmp_path):
    def linear(**keywords):
        return onnx_ci.recipe(name="linear", input_names=["x"], export_params=False, **keywords)(
            lambda: (torch.nn.Linear(3, 2), (torch.randn(2, 3),))
        )

    result = run_one(linear(), artifacts=tmp_path)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    model = onnx.load(result.artifact)
    assert ([each.name for each in model.graph.input], list(model.graph.initializer)) == (["x", "weight", "bias"], [])
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("alpha", 2.0))
    del model.graph.node[0].attribute[0]
    wrong = onnx_ci.verify(model.SerializeToString(), linear(), opset=13)
    assert rules(wrong) == ["numeric-drift"]


# --- expectations, and cells among themselves


def test_an_expected_failure_is_strict():
    def fft(x):
        return torch.fft.fft(x).abs()

    gap = {"13": onnx_ci.unsupported("fft")}
    assert run_one(recipe_of(fft, torch.randn(4), expect=gap)).status is Status.XFAILED
    closed = run_one(recipe_of(torch.relu, torch.randn(4), expect=gap))
    assert (closed.status, rules(closed)) == (Status.XPASSED, ["unexpected-pass"])
    dynamo = {"dynamo": onnx_ci.unsupported("fft")}
    assert run_one(recipe_of(torch.relu, torch.randn(4), expect=dynamo)).status is Status.PASSED
    another = run_one(recipe_of(fft, torch.randn(4), expect={"13": onnx_ci.known_failure("numeric-drift", "why")}))
    assert another.status is Status.FAILED


def test_a_reason_that_is_given_twice_is_told_once():
    def fft(x):
        return torch.fft.fft(x).abs()

    twice = {"13": onnx_ci.unsupported("fft"), "9-17": onnx_ci.unsupported("fft")}
    result = run_one(recipe_of(fft, torch.randn(4), expect=twice))
    assert (result.status, result.reason) == (Status.XFAILED, "fft")


def test_a_broken_recipe_costs_no_other_recipe_its_result():
    report = onnx_ci.run([recipe_of(lambda x: 1 / 0, torch.ones(1), name="broken"), net], opsets="12-13")
    assert [(each.cell.recipe, each.status) for each in report.cells] == [
        ("broken", Status.ERROR), ("broken", Status.ERROR), ("net", Status.PASSED), ("net", Status.PASSED),
    ]  # fmt: skip
    assert report.verdict == "failed"


def test_an_export_that_changes_the_model_does_not_reach_the_next_cell():
    report = onnx_ci.run([onnx_ci.recipe(name="counts")(lambda: (Counts(), (torch.randn(3),)))], opsets="12-14")
    assert len({(each.status, each.outputs[0].error if each.outputs else None) for each in report.cells}) == 1


def test_a_model_that_writes_each_weight_to_a_file_is_kept_in_a_folder_of_its_own(tmp_path):
    for opset in ("9", "10", "9"):
        path = tmp_path / "scratch" / f"opset{opset}.onnx"
        path.parent.mkdir()
        for name in (path.name, "layer.weight"):
            (path.parent / name).write_text(f"{name} at {opset}")
        kept = move(path, tmp_path / "kept")
        assert kept == tmp_path / "kept" / path.stem / path.name
        assert kept.with_name("layer.weight").read_text() == f"layer.weight at {opset}"
        path.parent.rmdir()  # nothing is left there
    assert len([each for each in (tmp_path / "kept").rglob("*") if each.is_file()]) == 4


def test_of_a_folder_with_a_kept_model_only_its_own_files_are_replaced(tmp_path):
    folder = tmp_path / "kept" / "opset9"
    for weight in ("first", "second"):
        tensor = helper.make_tensor(weight, onnx.TensorProto.FLOAT, [2], b"12345678", raw=True)
        model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
        path = tmp_path / "scratch" / "opset9.onnx"
        path.parent.mkdir()
        onnx.save_model(model, path, save_as_external_data=True, location=weight, size_threshold=0)
        move(path, tmp_path / "kept")
        (folder / "batch=4.npz").write_bytes(b"inputs of others")
        path.parent.rmdir()
    assert sorted(each.name for each in folder.iterdir()) == ["batch=4.npz", "opset9.onnx", "second"]
    remove_kept(tmp_path / "kept" / "opset9.onnx")
    assert [each.name for each in folder.iterdir()] == ["batch=4.npz"]


def test_artifacts_stay_only_where_they_are_asked_for(tmp_path):
    report = onnx_ci.run([net], opsets="12-13", artifacts=tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept/net").iterdir()) == ["opset12-cpu.onnx", "opset13-cpu.onnx"]
    assert report.cells[0].artifact == str(tmp_path / "kept/net/opset12-cpu.onnx")
    assert run_one(net).artifact is None


def test_the_artifact_is_what_torch_onnx_export_writes(tmp_path):
    import warnings

    artifact = onnx_ci.export(net, opset=13)
    torch.manual_seed(0)
    model, args = net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), args, tmp_path / "plain.onnx", dynamo=False, opset_version=13, **BATCH)
    assert artifact.read_bytes() == (tmp_path / "plain.onnx").read_bytes()


# --- bad input to the functions


def test_functions_refuse_what_they_cannot_use(tmp_path):
    with pytest.raises(onnx_ci.RecipeError, match="two recipes are named 'net'"):
        onnx_ci.run([net, onnx_ci.recipe(name="net")(lambda: None)])
    with pytest.raises(onnx_ci.ConfigurationError, match="there is no setting 'opset'; did you mean 'opsets'"):
        onnx_ci.run([net], opset=9)
    with pytest.raises(onnx_ci.ConfigurationError, match="there is no file"):
        onnx_ci.verify(tmp_path / "none.onnx", net, opset=13)
    with pytest.raises(onnx_ci.RecipeError, match="net: the recipe raised ValueError: no"):
        onnx_ci.export(onnx_ci.recipe(name="net")(lambda: (_ for _ in ()).throw(ValueError("no"))), opset=13)
    with pytest.raises(onnx_ci.RecipeError, match="torchscript exporter raised"):
        onnx_ci.export(recipe_of(lambda x: torch.fft.fft(x).abs(), torch.randn(4)), opset=13)


def test_an_export_that_fails_leaves_no_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for function in (lambda x: torch.fft.fft(x).abs(), lambda x: x.no_such_method()):
        with pytest.raises(onnx_ci.RecipeError):
            onnx_ci.export(recipe_of(function, torch.randn(4)), opset=13)
    assert [*tmp_path.iterdir()] == []
    file = onnx_ci.export(net, opset=13)
    assert [*tmp_path.iterdir()] == [file.path.parent]


@pytest.mark.parametrize("given", ["onnx_recipes.py", torch.nn.ReLU()], ids=["path", "model"])
def test_what_is_not_a_recipe_is_refused_with_its_class(given):
    with pytest.raises(onnx_ci.RecipeError, match=f"^{type(given).__name__} is not a recipe: pass what"):
        onnx_ci.run([given], opsets=13)


def test_an_operator_that_the_exporter_half_supports_is_unsupported():
    def pad(x):
        return torch.nn.functional.pad(x, (0, x.shape[1] % 3))

    axes = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {1: "n"}, "y": {1: "m"}}}
    result = run_one(recipe_of(pad, torch.randn(2, 4), **axes), opsets="9")
    assert rules(result) == ["unsupported-operator"]
    assert len(result.findings[0].message) < 600


def test_an_operator_that_the_exporter_cannot_write_is_named_for_programs():
    def named(function, *inputs, **options):
        (broken,) = (
            each for each in run_one(recipe_of(function, *inputs), **options).findings if each.rule == "unsupported-operator"
        )
        return broken.operator

    assert named(lambda x: torch.linalg.det(x), torch.eye(3), opsets="9") == "aten::linalg_det"
    assert named(lambda x: torch.cumsum(x, 0), torch.randn(4), opsets="9") == "cumsum"
    assert named(lambda x: torch.sort(x, 0)[0], torch.randn(4), opsets="10") == "Sort, Ascending"
    assert named(lambda x: torch.linalg.qr(x)[1], torch.randn(3, 3), opsets="18") == "aten.linalg_qr.default"


def test_an_argument_that_the_opset_does_not_support_is_unsupported():
    assert rules(run_one(recipe_of(lambda x: x[::2], torch.randn(4)), opsets="9")) == ["unsupported-operator"]


def test_a_user_without_a_home_directory_is_judged_like_any_other(monkeypatch):
    """A container can run as a number that no account has."""

    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    result = run_one(recipe_of(torch.relu, torch.randn(2, 3), input_names=["x"], output_names=["y"]), isolation="none")
    assert result.status is onnx_ci.Status.PASSED


class Length(torch.nn.Module):
    """A length that is never zero: dynamo's optimizer takes the constant for nothing."""

    def forward(self, x):
        return torch.sqrt(x.square().sum(-1) + 1e-8)


@pytest.mark.parametrize(("optimize", "status"), [(True, Status.FAILED), (False, Status.PASSED)])
def test_a_small_constant_counts_beside_small_values(optimize, status):
    declared = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "rows"}, "y": {0: "rows"}}}
    recipe = onnx_ci.recipe(lambda: (Length(), (torch.randn(3, 8),)), name="net", optimize=optimize, **declared)
    result = run_one(recipe, opsets="18")
    assert result.status is status
    assert {each.probe for each in result.findings if each.severity is onnx_ci.Severity.ERROR} == (
        {"floats small"} if optimize else set()
    )
