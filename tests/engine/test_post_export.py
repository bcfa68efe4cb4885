"""The file of each post-export pass is a cell of its own, and the pass that broke it is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from packaging.version import Version
from toolbox.cells import BATCH, recipe_of, rules

import onnx_ci
from onnx_ci import Status
from onnx_ci.environment.versions import version_of
from onnx_ci.report.findings import describe_finding
from onnx_ci.report.text import describe_result

ONE_PROCESS = {"opsets": 17, "isolation": "none"}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8 * 36, 10)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.convolution(x))).flatten(1))


def net_with(*passes, **keywords):
    @onnx_ci.recipe(**{**BATCH, "name": "net", "then": list(passes), **keywords})
    def net():
        return Net(), (torch.randn(2, 3, 8, 8),)

    return net


def results_of(recipe, **options):
    return {result.cell.graph_pass: result for result in onnx_ci.run([recipe], **{**ONE_PROCESS, **options}).cells}


def fault(result):
    (found,) = [each for each in result.findings if each.severity is onnx_ci.Severity.ERROR]
    return found


def keeps(model):
    return model


def raises_opset(model):
    return onnx.version_converter.convert_version(model, 21)


def halves(model):
    """A float16 file of which one weight is wrong."""
    converter = pytest.importorskip("onnxconverter_common").float16
    (weight,) = [each for each in model.graph.initializer if each.name == "head.weight"]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) / 2, weight.name))
    return converter.convert_float_to_float16(model)


def drops_relu(model):
    (node,) = [each for each in model.graph.node if each.op_type == "Relu"]
    for other in model.graph.node:
        other.input[:] = [node.input[0] if name == node.output[0] else name for name in other.input]
    model.graph.node.remove(node)
    return model


# --- cells


def test_every_pass_is_a_cell_after_that_of_the_export():
    results = results_of(net_with(keeps, onnx_ci.graph_pass(keeps, name="again")))
    assert list(results) == [None, "keeps", "again"]
    assert [each.cell.label for each in results.values()] == ["opset17-cpu", "opset17-cpu+keeps", "opset17-cpu+again"]
    assert {(each.status, each.findings) for each in results.values()} == {(Status.PASSED, ())}
    assert all(each.facts is not None for each in results.values())  # each has a baseline


def test_globs_select_passes():
    recipe = net_with(keeps)
    for glob, passes in (("*+keeps", ["keeps"]), ("net::opset17-cpu", [None]), ("net", [None, "keeps"])):
        assert list(results_of(recipe, select=glob)) == passes


def test_the_kept_file_of_a_pass_has_the_models_own_weights_and_is_judged(tmp_path):
    own = Net()
    recipe = onnx_ci.recipe(**BATCH, name="net", then=[drops_relu])(lambda: (own, (torch.randn(2, 3, 8, 8),)))
    results = results_of(recipe, artifacts=tmp_path)
    assert "Relu" in {node.op_type for node in onnx.load(results[None].artifact).graph.node}
    result = results["drops_relu"]
    model = onnx.load(result.artifact)
    weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    numpy.testing.assert_array_equal(weights["head.weight"], own.head.weight.detach())
    assert "Relu" not in {node.op_type for node in model.graph.node}
    judged = {(each.probe_weights, each.introduced_by) for each in result.findings if each.severity is onnx_ci.Severity.ERROR}
    assert (False, "drops_relu") in judged
    assert {each.probe_weights for each in result.outputs} == {False, True}


def test_failing_inputs_of_a_pass_can_be_given_to_its_recipe_again(tmp_path):
    recipe = net_with(onnx_ci.graph_pass(halves, lossy="float16", keep_io_types=False))
    result = results_of(recipe, save_inputs=tmp_path)["halves"]
    assert result.status is Status.FAILED
    saved = sorted(path.parent.name for path in tmp_path.rglob("*.npz"))
    assert set(saved) == {"opset17-cpu+halves"}
    again = results_of(recipe, inputs=[str(path) for path in tmp_path.rglob("*.npz")])
    assert again[None].status is Status.PASSED


def usual(result):
    """The outputs without those on numbers and sizes far larger than the example's, whose limit is wider."""
    return [each for each in result.outputs if each.probe not in ("floats extreme", "batch=129")]


def test_lossless_built_in_passes_pass():
    for package in ("onnxsim", "onnxslim"):
        pytest.importorskip(package)
    results = results_of(net_with("onnxsim", "onnxslim", "ort-optimized"))
    assert {graph_pass: each.status for graph_pass, each in results.items()} == dict.fromkeys(results, Status.PASSED)
    assert len(results) == 4
    assert {output.limit for each in results.values() for output in usual(each)} == {16}


# --- faults, and the pass that is guilty


def test_a_pass_that_drops_an_operator_is_named_by_the_cells_after_it():
    """As OnnxSlim#277: a pass that drops or merges a node whose output is still needed."""
    results = results_of(net_with(keeps, drops_relu, onnx_ci.graph_pass(keeps, name="last")))
    assert [each.status for each in results.values()] == ["passed", "passed", "failed", "failed"]
    for graph_pass in ("drops_relu", "last"):
        found = fault(results[graph_pass])
        assert (found.rule, found.introduced_by) == ("numeric-drift", "drops_relu")
        assert describe_finding(found).startswith(f"after drops_relu: {found.culprits[0].source}, ")
        assert "torch.relu" in found.culprits[0].source.text
        assert "After drops_relu, at fault: " in describe_result(results[graph_pass], "")


def test_the_exporters_own_file_can_already_be_wrong():
    def frozen(x):
        return x * float(x.sum())

    results = results_of(recipe_of(frozen, torch.randn(3), input_names=["x"], output_names=["y"], then=[keeps]))
    assert rules(results[None]) == rules(results["keeps"]) == ["baked-value"]
    assert fault(results[None]).introduced_by is None
    assert fault(results["keeps"]).introduced_by == "export"
    assert describe_finding(fault(results["keeps"])).startswith("the exporter's own file is already wrong: ")


def test_two_faults_have_two_origins():
    def raises_opset(model):
        model.opset_import[0].version = 18
        return model

    results = results_of(net_with(drops_relu, raises_opset))
    errors = [each for each in results["raises_opset"].findings if each.severity == "error"]
    origins = {each.rule: each.introduced_by for each in errors}
    assert origins == {"opset-mismatch": "raises_opset", "numeric-drift": "drops_relu"}


def test_a_pass_that_raises_costs_only_the_cells_that_need_it():
    def raises(model):
        raise RuntimeError("cannot fuse")

    results = results_of(net_with(keeps, raises, onnx_ci.graph_pass(keeps, name="last")))
    assert [each.status for each in results.values()] == ["passed", "passed", "failed", "failed"]
    for graph_pass in ("raises", "last"):
        found = fault(results[graph_pass])
        assert (found.rule, found.introduced_by) == ("pass-error", "raises")
        assert describe_finding(found).startswith("raises raised RuntimeError: cannot fuse")


@pytest.mark.slow
def test_only_the_domains_of_a_pass_are_known():
    def foreign(model):
        relu = next(each for each in model.graph.node if each.op_type == "Relu")
        relu.op_type, relu.domain = "Gelu", "com.microsoft"
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return model

    assert "foreign-domain" in rules(results_of(net_with(foreign))["foreign"])
    known = net_with(onnx_ci.graph_pass(foreign, domains="com.microsoft"))
    assert rules(results_of(known)["foreign"]) == ["numeric-drift"]


def test_a_kept_file_is_verified_as_the_file_of_its_pass(tmp_path):
    recipe = net_with("ort-optimized", onnx_ci.graph_pass(halves, lossy="float16", keep_io_types=False))
    kept = results_of(recipe, artifacts=tmp_path)
    options = {"opset": 17, "isolation": "none"}
    optimized = kept["ort-optimized"]
    assert "foreign-domain" in rules(onnx_ci.verify(optimized.artifact, recipe, **options))
    verified = onnx_ci.verify(optimized.artifact, recipe, graph_pass="ort-optimized", **options)
    assert (verified.status, verified.cell) == (Status.PASSED, optimized.cell)
    wrong = onnx_ci.verify(kept["halves"].artifact, recipe, graph_pass="halves", **options)
    assert (wrong.status, rules(wrong)) == (Status.FAILED, rules(kept["halves"]))
    with pytest.raises(onnx_ci.ConfigurationError, match="did you mean 'halves'"):
        onnx_ci.verify(optimized.artifact, recipe, graph_pass="half", **options)


def test_a_known_failure_of_a_pass_is_expected_there_only():
    gap = onnx_ci.known_failure("numeric-drift", "the pass drops Relu")
    results = results_of(net_with(keeps, drops_relu, expect={"+drops_relu": gap}))
    assert [each.status for each in results.values()] == ["passed", "passed", "xfailed"]


def test_a_pass_can_have_its_own_limit():
    def scales(model):
        weight = next(each for each in model.graph.initializer if each.name == "head.weight")
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * numpy.float32(1 + 1e-5), weight.name))
        return model

    allowed = ["weight-mismatch"]
    assert rules(results_of(net_with(scales, allow=allowed))["scales"]) == ["numeric-drift"]
    assert rules(results_of(net_with(onnx_ci.graph_pass(scales, max_drift=1e4), allow=allowed))["scales"]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only")
def test_a_pass_that_kills_its_process_costs_only_its_own_cell():
    def crashes(model):
        os._exit(3)

    results = results_of(net_with(keeps, crashes), isolation="fork")
    assert [each.status for each in results.values()] == ["passed", "passed", "failed"]
    assert rules(results["crashes"]) == ["crash"]


def test_a_trained_model_is_judged_with_probe_weights_too_after_a_pass():
    @onnx_ci.recipe(**BATCH, weights="trained", then=[drops_relu])
    def trained():
        net = Net()
        with torch.no_grad():
            net.head.weight.zero_()  # hides everything before it
        return net, (torch.randn(2, 3, 8, 8),)

    found = fault(results_of(trained)["drops_relu"])
    assert (found.probe_weights, found.introduced_by) == (True, "drops_relu")
    assert describe_finding(found).startswith("after drops_relu: ")
    assert ": with probe weights: output 'y'" in describe_finding(found)


# --- float16


@pytest.mark.parametrize("keep_io_types", [False, True])
def test_float16_passes_in_units_of_its_own_rounding(keep_io_types):
    pytest.importorskip("onnxconverter_common")
    result = results_of(net_with(onnx_ci.graph_pass("float16", keep_io_types=keep_io_types)))["float16"]
    assert (result.status, result.findings) == (Status.PASSED, ())
    assert {each.dtype for each in result.outputs} == {"float32" if keep_io_types else "float16"}
    for output in usual(result):
        assert (output.limit, output.reference) == (4, "simulated float16")
        assert output.drift < 4
    example = result.outputs[0].similarity
    assert example.cosine > 0.9999
    assert example.sqnr > 40
    assert (example.agreement, example.ties) == (1.0, 0)
    assert "cosine 1.0000" in describe_result(result, "")


def test_a_pass_that_changes_the_interface_must_declare_it():
    converter = pytest.importorskip("onnxconverter_common").float16

    def halves(model):
        return converter.convert_float_to_float16(model)

    assert set(rules(results_of(net_with(onnx_ci.graph_pass(halves, lossy="float16")))["halves"])) >= {"dtype-mismatch"}
    declared = onnx_ci.graph_pass(halves, lossy="float16", keep_io_types=False)
    assert rules(results_of(net_with(declared))["halves"]) == []


def test_a_wrong_float16_file_is_found_above_its_rounding():
    pytest.importorskip("onnxconverter_common")

    def scales(model):
        weight = next(each for each in model.graph.initializer if "head.weight" in each.name)
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * numpy.float16(1.05), weight.name))
        return model

    found = fault(results_of(net_with("float16", scales))["scales"])
    assert (found.rule, found.introduced_by) == ("numeric-drift", "scales")
    assert "times simulated float16 rounding" in found.message


class Large(torch.nn.Module):
    """A scale that float16 cannot hold, and its inverse."""

    def forward(self, x):
        return x * 1e5 / 1e5 + x


def test_a_constant_that_overflows_float16_is_found():
    """As onnxconverter-common#323: an initializer becomes infinite, and the file computes NaN."""

    def to_float16(model):
        for weight in model.graph.initializer:
            with numpy.errstate(over="ignore"):
                weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(numpy.float16), weight.name))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
        del model.graph.value_info[:]
        return model

    graph_pass = onnx_ci.graph_pass(to_float16, lossy="float16", keep_io_types=False)

    @onnx_ci.recipe(**BATCH, then=["onnxslim", graph_pass])
    def large():
        return Large(), (torch.randn(2, 4),)

    pytest.importorskip("onnxslim")
    results = results_of(large)
    assert rules(results["onnxslim"]) == []
    assert "nonfinite-mismatch" in rules(results["to_float16"])
    assert {each.introduced_by for each in results["to_float16"].findings if each.severity == "error"} == {"to_float16"}


def test_a_float32_constant_that_stays_behind_is_found():
    """As onnxconverter-common#323: a constant keeps its type, and the runtime refuses to load the file."""

    def to_float16(model):
        for weight in model.graph.initializer:
            if "bias" not in weight.name:  # these are forgotten
                weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(numpy.float16), weight.name))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
        del model.graph.value_info[:]
        return model

    result = results_of(net_with(onnx_ci.graph_pass(to_float16, lossy="float16", keep_io_types=False)))["to_float16"]
    assert "load-error" in rules(result)
    assert {each.introduced_by for each in result.findings if each.severity == "error"} == {"to_float16"}


class Classes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x):
        scores = self.head(x)
        return scores, scores.argmax(-1)


def classes_with(*passes):
    @onnx_ci.recipe(input_names=["x"], output_names=["scores", "class"], then=list(passes), name="classes")
    def classes():
        return Classes(), (torch.randn(200, 16),)

    return classes


@pytest.mark.parametrize("name", ["float16", "int8-static"])
def test_classes_are_compared_by_agreement_with_ties_told_apart(name):
    if name == "float16":
        pytest.importorskip("onnxconverter_common")
    result = results_of(classes_with(name))[name]
    assert rules(result) == []
    drawn = next(each for each in result.outputs if each.name == "class" and each.probe == "example")
    assert drawn.similarity.cosine is None
    assert drawn.similarity.agreement > 0.9


def picks_the_least(model):
    next(each for each in model.graph.node if each.op_type == "ArgMax").op_type = "ArgMin"
    return model


def test_wrong_classes_are_found_after_a_lossy_pass():
    pytest.importorskip("onnxconverter_common")

    found = fault(results_of(classes_with("float16", picks_the_least))["picks_the_least"])
    assert (found.rule, found.output, found.introduced_by) == ("numeric-drift", "class", "picks_the_least")


# --- int8


@pytest.mark.parametrize(("name", "per_channel"), [("int8-dynamic", True), ("int8-static", False)])
def test_int8_passes_in_units_of_its_own_rounding(name, per_channel):
    result = results_of(net_with(onnx_ci.graph_pass(name, per_channel=per_channel)))[name]
    assert rules(result) == []
    assert {(each.limit, each.reference) for each in usual(result)} == {(4, "simulated int8")}
    assert result.outputs[0].similarity.sqnr > 15


def test_a_wrong_scale_is_found_above_the_rounding_of_int8():
    def wrong_scale(model):
        scale = next(each for each in model.graph.initializer if "head.weight" in each.name and each.name.endswith("scale"))
        scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * numpy.float32(1.5), scale.name))
        return model

    found = fault(results_of(net_with("int8-static", wrong_scale))["wrong_scale"])
    assert (found.rule, found.introduced_by) == ("numeric-drift", "wrong_scale")


class Calibration:
    """What a function of one's own hands to ONNX Runtime's quantizer."""

    def __init__(self, feeds):
        self.get_next = iter([*feeds, None]).__next__


@pytest.mark.parametrize("factor", [1, 16])
def test_a_function_that_calibrates_is_judged_as_a_static_quantization(factor, tmp_path, recwarn, caplog):
    from onnxruntime.quantization import quantize_static

    def calibrated(before: Path, after: Path, feeds):
        quantize_static(before, after, Calibration(feeds()))
        model = onnx.load(after)
        scale = next(each for each in model.graph.initializer if each.name == "x_scale")
        scale.CopyFrom(numpy_helper.from_array(numpy.asarray(numpy_helper.to_array(scale) * numpy.float32(factor)), scale.name))
        onnx.save(model, after)

    result = results_of(net_with(onnx_ci.graph_pass(calibrated, lossy="int8", domains="com.microsoft")))["calibrated"]
    assert rules(result) == ([] if factor < 16 else ["numeric-drift"])


class Twice(torch.nn.Module):
    def __init__(self, *, is_shared):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        if is_shared:  # the exporter writes equal weights once
            self.second.load_state_dict(self.first.state_dict())

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_shared_weight_that_is_transposed_for_one_of_two_layers_is_found(is_shared):
    """``quantize_dynamic`` transposes the weights of Gemm where they are, before onnxruntime 1.32."""
    is_wrong = is_shared and Version(version_of("onnxruntime") or version_of("onnxruntime-gpu")) < Version("1.32")

    @onnx_ci.recipe(**BATCH, then="int8-dynamic", weights="trained")  # others would not be equal
    def twice():
        return Twice(is_shared=is_shared), (torch.randn(4, 8),)

    results = results_of(twice)
    assert rules(results[None]) == []
    assert rules(results["int8-dynamic"]) == (["numeric-drift"] if is_wrong else [])


def test_a_recurrent_layer_is_not_quantized_by_ranges():
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.LSTM(6, 8, num_layers=2)

        def forward(self, x):
            y, (h, c) = self.layer(x)
            return y, h, c

    for name in ("int8-static", "int8-dynamic"):

        @onnx_ci.recipe(input_names=["x"], output_names=["y", "h", "c"], then=name)
        def recurrent():
            return Recurrent(), (torch.randn(5, 2, 6),)

        assert rules(results_of(recurrent)[name]) == []


def test_a_gru_is_not_quantized_dynamically():
    @onnx_ci.recipe(input_names=["x"], output_names=["y", "h"], then="int8-dynamic")
    def recurrent():
        return torch.nn.GRU(6, 8), (torch.randn(5, 2, 6),)

    result = results_of(recurrent)["int8-dynamic"]
    assert rules(result) == []
    assert max(each.noise for each in result.outputs) < 1e-5  # float32's own


@pytest.mark.parametrize(("declared", "after"), [(21, keeps), (21, None), (None, None), (20, None)])
def test_a_pass_declares_the_opset_that_it_converts_files_to(declared, after):
    passes = [onnx_ci.graph_pass(raises_opset, opset=declared), *filter(None, [after])]
    recipe = recipe_of(torch.nn.Linear(4, 2), torch.randn(2, 4), **{**BATCH, "then": passes})
    own, *shipped = onnx_ci.run([recipe], effort="quick", **ONE_PROCESS).cells
    assert own.status is Status.PASSED
    if declared == 21:
        assert [each.status for each in shipped] == [Status.PASSED] * len(passes)
        return
    wrong = fault(shipped[-1])
    assert (wrong.rule, wrong.introduced_by) == ("opset-mismatch", "raises_opset")
    assert f"opset {declared or 17} was requested, but the file is written at opset 21" in wrong.message
    assert "onnx_ci.graph_pass(..., opset=21)" in wrong.remedy


def test_inputs_outside_of_the_calibrated_ranges_prove_nothing():
    result = results_of(net_with("int8-static"))["int8-static"]
    (note,) = [each for each in result.findings if each.rule == "vacuous"]
    assert note.severity == "note"
    assert "not compared on floats large and floats extreme: outside the calibrated ranges" in note.message
    assert "floats large" not in {each.probe for each in result.outputs}
    assert "floats large" in {each.probe for each in results_of(net_with("int8-dynamic"))["int8-dynamic"].outputs}


def test_an_example_of_one_value_cannot_calibrate():
    @onnx_ci.recipe(**BATCH, then="int8-static")
    def net():
        return Net(), (torch.zeros(2, 3, 8, 8),)

    found = fault(results_of(net, effort="quick")["int8-static"])
    assert found.rule == "pass-error"
    assert "cannot be calibrated" in found.message


def test_rounding_that_hides_everything_is_vacuous():
    @onnx_ci.recipe(input_names=["x"], output_names=["y"], then="int8-dynamic", weights="trained")
    def net():
        head = torch.nn.Linear(64, 10)
        with torch.no_grad():
            head.weight.normal_(0, 1e-3)
            head.weight[:, 0] = 10.0  # it decides the scale, and the others round to zero
            head.bias.zero_()
        x = torch.randn(2, 64)
        x[:, 0] = 0
        return head, (x,)

    assert "vacuous" in rules(results_of(net, effort="quick")["int8-dynamic"])


@pytest.mark.parametrize("name", ["float16", "int8-static"])
def test_the_tiny_epsilon_of_a_norm_is_not_rounded_to_zero(name):
    """A vector of zeros is divided by 1e-12: the converter to float16 makes that 1e-7, and the quantizer leaves it alone."""
    if name == "float16":
        pytest.importorskip("onnxconverter_common")

    class Cosine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.second(torch.nn.functional.normalize(self.first(x), dim=-1))

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], name="net", then=name)
    def net():
        x = torch.randn(3, 8)
        x[0] = 0
        return Cosine(), (x,)

    result = results_of(net)[name]
    assert rules(result) == []
    assert result.worst.noise > 1e-5


def test_rounding_that_cannot_be_simulated_is_vacuous():
    class Large(torch.nn.Module):
        def forward(self, x):
            return x * 1e6 / 1e6

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], name="net", then=onnx_ci.graph_pass(keeps, lossy="float16"))
    def net():
        return Large(), (torch.randn(3, 8),)

    found = results_of(net)["keeps"]
    assert "vacuous" in rules(found)
    assert any("cannot be simulated on example" in each.message for each in found.findings)


@pytest.mark.parametrize("lossy", ["float16", "int8"])
def test_rounding_is_simulated_in_the_branches_of_cond(lossy):
    class Branches(Net):
        def doubled(self, x):
            return self.head(x) * 2

        def forward(self, x):
            return torch.cond(x.sum() > 0, self.doubled, self.head, (x,))

    keywords = {"input_names": ["x"], "output_names": ["y"], "name": "net", "exporter": "dynamo"}

    @onnx_ci.recipe(**keywords, then=onnx_ci.graph_pass(keeps, lossy=lossy))
    def net():
        return Branches(), (torch.rand(2, 8 * 36),)

    result = results_of(net)["keeps"]
    assert rules(result) == []
    assert {each.reference for each in usual(result)} == {f"simulated {lossy}"}


# --- sequences


class Counter(torch.nn.Module):
    """A state that every step rounds again: after many steps it is off by more than one step explains."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(16, 16)

    def forward(self, x, h):
        h = h + torch.tanh(self.mix(x + h))
        return h * 1.0, h


def stepping(*passes):
    names = {"input_names": ["x", "h"], "output_names": ["y", "hn"]}

    @onnx_ci.recipe(**names, name="net", feedback={"hn": "h"}, steps=12, then=list(passes))
    def net():
        return Counter(), (torch.randn(2, 16), torch.randn(2, 16))

    return net


@pytest.mark.parametrize("name", ["float16", "int8-static"])
def test_the_steps_of_a_lossy_file_add_up_their_rounding(name):
    if name == "float16":
        pytest.importorskip("onnxconverter_common")
    result = results_of(stepping(name))[name]
    assert result.status is Status.PASSED, [describe_finding(each) for each in result.findings]
    noise = {each.probe: each.noise for each in result.outputs if each.name == "y"}
    assert {"example", "step=1", "step=11"} <= set(noise)
    assert noise["step=11"] > noise["step=1"]


def halves_state(model):
    """Only the state that is fed back is wrong."""
    scale = numpy_helper.from_array(numpy.float32(0.5), "half")
    model.graph.initializer.append(scale)
    (last,) = [node for node in model.graph.node if "hn" in node.output]
    last.output[list(last.output).index("hn")] = "whole"
    for node in model.graph.node:
        node.input[:] = ["whole" if each == "hn" else each for each in node.input]
    model.graph.node.append(helper.make_node("Mul", ["whole", "half"], ["hn"]))
    return model


def test_a_wrong_state_of_a_lossy_file_is_found():
    broken = results_of(stepping(onnx_ci.graph_pass(halves_state, lossy="int8")))["halves_state"]
    assert broken.status is Status.FAILED
    assert any(each.probe == "step=1" and each.output == "y" for each in broken.findings), broken.findings


# --- chains


@pytest.mark.parametrize(
    ("passes", "refused"),
    [(["float16", "int8-dynamic"], "int8-dynamic"), (["ort-optimized", "int8-static"], "int8-static")],
    ids=["after float16", "after fusions"],
)
def test_a_pass_that_cannot_convert_the_file_of_another_one_says_that_it_got_it(passes, refused):
    if "float16" in passes:
        pytest.importorskip("onnxconverter_common")
    results = results_of(net_with(*passes))
    errors = [each for each in results[refused].findings if each.severity is onnx_ci.Severity.ERROR]
    assert errors
    chain = f"The passes of then are a chain: {refused} got the file that {passes[0]} had made."
    assert all(each.remedy.startswith(chain) for each in errors)
    assert results[passes[0]].status is Status.PASSED
    assert {each.status for each in results_of(net_with(refused, passes[0])).values()} == {Status.PASSED} or "float16" in passes


def test_each_pass_can_get_the_exporters_file():
    pytest.importorskip("onnxconverter_common")

    @onnx_ci.recipe(**BATCH, each={"half": {"then": ["float16"]}, "small": {"then": ["int8-dynamic"]}})
    def net(case):
        return Net(), (torch.randn(2, 3, 8, 8),)

    cells = onnx_ci.run([*net.values()], **ONE_PROCESS).cells
    assert [each.cell.graph_pass for each in cells] == [None, "float16", None, "int8-dynamic"]
    assert {each.status for each in cells} == {Status.PASSED}


def test_a_pass_that_fails_on_the_exporters_file_is_no_matter_of_a_chain():
    def broken(model):
        raise ValueError("no")

    (error,) = results_of(net_with(broken))["broken"].findings
    assert "chain" not in error.remedy


# --- masks


class Masked(torch.nn.Module):
    """Attention that hides what is masked by adding a number; by default the smallest one of its type, as BERT does."""

    def __init__(self, hides=None):
        super().__init__()
        self.hides = hides
        self.embedding, self.qk, self.out = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 32), torch.nn.Linear(16, 8)

    def forward(self, tokens, mask):
        x = self.embedding(tokens)
        q, k = self.qk(x).chunk(2, -1)
        scores = q @ k.transpose(1, 2) / 4
        hides = torch.finfo(scores.dtype).min if self.hides is None else self.hides
        hidden = (1.0 - mask[:, None].to(scores.dtype)) * hides
        return self.out(x + (scores + hidden).softmax(-1) @ x)


def test_a_mask_of_the_smallest_number_is_rounded_to_a_number():
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    names = {"input_names": ["tokens", "mask"], "output_names": ["y"]}
    declare = onnx_ci.recipe(name="net", **names, then=["int8-static"], weights="trained")
    result = results_of(declare(lambda: (Masked(), (torch.randint(0, 50, (2, 9)), mask))))["int8-static"]
    assert rules(result) == []
    empty = [each for each in result.outputs if each.probe == "masks empty"]
    assert empty
    assert all(each.noise > 1e-3 and each.drift < 4 for each in empty)


class MaskedClasses(Masked):
    """The class of each token, too."""

    def forward(self, tokens, mask):
        y = super().forward(tokens, mask)
        return y, y.argmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 20])
def test_a_few_classes_that_are_nearly_tied_may_fall_either_way(seed):
    @onnx_ci.recipe(
        seed=seed,
        input_names=["tokens", "mask"],
        output_names=["y", "classes"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in ("tokens", "mask", "y", "classes")},
        dynamic_sizes={"length": 13},
        then=["int8-static", picks_the_least],
    )
    def net():
        mask = torch.ones(2, 9, dtype=torch.long)
        mask[1, 6:] = 0
        return MaskedClasses(-30.0), (torch.randint(0, 50, (2, 9)), mask)

    results = results_of(net)
    assert rules(results["int8-static"]) == []
    assert "numeric-drift" in rules(results["picks_the_least"])


class Encoder(torch.nn.Module):
    """Torch's encoder returns zeros at padded places, unless it is watched."""

    def __init__(self, *, hides_padded):
        super().__init__()
        self.layers = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)
        self.hides_padded = hides_padded

    def forward(self, x, padded):
        y = self.layers(x, src_key_padding_mask=padded)
        return y.masked_fill(padded[..., None], 0.0) if self.hides_padded else y


def turned(model):
    """A file whose matrices are wrong."""
    for weight in model.graph.initializer:
        if len(weight.dims) == 2:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[:, ::-1].copy(), weight.name))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float16", "int8-dynamic"])
def test_the_unit_of_a_pass_has_nothing_of_what_watching_changes(name):
    def broken(**keywords):
        padded = torch.arange(6) >= torch.tensor([[6], [4], [3]])
        names = {"input_names": ["x", "padded"], "output_names": ["y"], "then": [name, turned]}
        net = onnx_ci.recipe(name="net", opsets=18, exporter="dynamo", **names)(
            lambda: (Encoder(**keywords).eval(), (torch.randn(3, 6, 16), padded))
        )
        return {graph_pass: set(rules(result)) for graph_pass, result in results_of(net, opsets=18).items()}

    right, wrong = broken(hides_padded=True), broken(hides_padded=False)
    assert (right[None], right[name]) == (set(), set())
    assert right["turned"] & {"numeric-drift", "baked-value"}
    assert [*map(bool, wrong.values())] == [True, True, True]
    assert "numeric-drift" in wrong[name]
