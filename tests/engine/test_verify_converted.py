"""Files made of a recipe's export by other tools, optimized, in float16 or in int8: compared in numbers, right and wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from toolbox.cells import rules

import onnx_ci
from onnx_ci import Severity, Status

QUICK = {"isolation": "none"}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.norm(self.first(x))))


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
def net():
    return Net(), (torch.randn(3, 8),)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return onnx_ci.export(net, opset=17, path=tmp_path_factory.mktemp("exported") / "net.onnx").path


def notes(result):
    return [each for each in result.findings if each.severity is Severity.NOTE]


def in_float16(path, *, has_casts, epsilon=None, factor=1.0):
    """The file with its weights and computations in float16, with its inputs and outputs too unless they are cast."""
    model = onnx.load(path)
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            with np.errstate(over="ignore"):
                array = (numpy_helper.to_array(tensor) * np.float32(factor)).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            factor = 1.0  # only the first one is wrong
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float16)))
            if attribute.name == "epsilon" and epsilon is not None:
                attribute.f = epsilon
        if has_casts:
            node.input[:] = ["x16" if name == "x" else name for name in node.input]
            node.output[:] = ["y16" if name == "y" else name for name in node.output]
    del graph.value_info[:]
    if has_casts:
        graph.node.insert(0, helper.make_node("Cast", ["x"], ["x16"], to=TensorProto.FLOAT16))
        graph.node.append(helper.make_node("Cast", ["y16"], ["y"], to=TensorProto.FLOAT))
    else:
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model.SerializeToString()


def test_a_right_file_in_float16_passes_with_a_note(exported):
    result = onnx_ci.verify(in_float16(exported, has_casts=True), net, **QUICK)
    assert result.status is Status.PASSED
    [note] = notes(result)
    assert note.rule == "numeric-drift"
    assert "times PyTorch's own rounding, but " in note.message
    assert "times that of float16, in which the file computes" in note.message


def test_float16_in_the_interface_is_a_finding_and_numbers_are_compared(exported):
    file = in_float16(exported, has_casts=False)
    result = onnx_ci.verify(file, net, **QUICK)
    assert (set(rules(result)), bool(result.outputs)) == ({"dtype-mismatch"}, True)
    assert onnx_ci.verify(file, net, rules="dtype-mismatch=note", **QUICK).status is Status.PASSED
    wrong = onnx_ci.verify(in_float16(exported, has_casts=False, epsilon=1.0), net, rules="dtype-mismatch=note", **QUICK)
    assert rules(wrong) == ["numeric-drift"]


def test_an_overflow_in_float16_fails(exported):
    result = onnx_ci.verify(in_float16(exported, has_casts=True, factor=1e7), net, **QUICK)
    assert "nonfinite-mismatch" in rules(result)


def test_a_float32_file_is_never_judged_by_the_rounding_of_float16(exported):
    model = onnx.load(exported)
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            node.attribute[-1].CopyFrom(helper.make_attribute("epsilon", 2e-5))
    [found] = [each for each in onnx_ci.verify(model.SerializeToString(), net, **QUICK).findings if each.output]
    assert (found.rule, "PyTorch's own rounding" in found.message) == ("numeric-drift", True)


def test_a_right_file_in_int8_passes_and_a_wrong_scale_fails_as_what_it_is(exported, tmp_path):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(exported, tmp_path / "int8.onnx", weight_type=QuantType.QInt8)
    right = onnx_ci.verify(tmp_path / "int8.onnx", net, **QUICK)
    assert (right.status, rules(right)) == (Status.PASSED, [])
    assert any("times that of int8" in each.message for each in notes(right))
    model = onnx.load(tmp_path / "int8.onnx")
    scale = [each for each in model.graph.initializer if each.name.endswith("_scale")][-1]
    scale.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(scale) * np.float32(2)), scale.name))
    wrong = onnx_ci.verify(model.SerializeToString(), net, **QUICK)
    assert rules(wrong) == ["numeric-drift"]
    assert "times the rounding of int8" in wrong.findings[0].message
    assert "a wrong scale" in wrong.findings[0].remedy
    assert all("opset" not in each.remedy for each in wrong.findings)


EXAMPLE = torch.linspace(-1, 1, 24).reshape(3, 8)


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
def calibrated():
    return Net(), (EXAMPLE,)


class Calibration:
    def __init__(self, *inputs):
        self.get_next = iter([*({"x": each.numpy()} for each in inputs), None]).__next__


@pytest.fixture(scope="module", params=["QDQ", "QOperator"])
def static(request, tmp_path_factory):
    """A file in static int8, which is calibrated on the example and numbers no larger than those in it."""
    from onnxruntime.quantization import QuantFormat, quantize_static

    folder = tmp_path_factory.mktemp("static")
    path = onnx_ci.export(calibrated, opset=17, path=folder / "calibrated.onnx").path
    calibration = Calibration(EXAMPLE, *(scale * EXAMPLE.flip(axis) for scale in (0.5, 1.0) for axis in (0, 1)))
    # Seven bits, because processors without instructions for eight saturate.
    options = {"quant_format": QuantFormat[request.param], "reduce_range": True}
    quantize_static(path, folder / "static.onnx", calibration, **options)
    return onnx.load(folder / "static.onnx")


def test_a_right_file_in_static_int8_passes_where_it_clips_what_it_was_not_calibrated_for(static):
    result = onnx_ci.verify(static.SerializeToString(), calibrated, rules="foreign-domain=note", **QUICK)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    [clipped] = [each.message for each in notes(result) if "the file clips " in each.message]
    assert " of 'x' to its range from -1" in clipped
    assert "'example'" not in clipped


@pytest.mark.parametrize(("factor", "rule"), [(0.25, "numeric-drift"), (64.0, "vacuous")])
def test_an_activation_in_static_int8_with_a_wrong_scale_fails(static, factor, rule):
    model = onnx.ModelProto()
    model.CopyFrom(static)
    scales = {each.name: each for each in model.graph.initializer}
    [name] = [name for name in scales if name.startswith("/norm/") and name.endswith("_scale") and scales[name].dims == []]
    scales[name].CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(scales[name]) * np.float32(factor)), name))
    wrong = onnx_ci.verify(model.SerializeToString(), calibrated, rules="foreign-domain=note", **QUICK)
    assert rule in rules(wrong)


@pytest.mark.parametrize("factor", [2, 24])
def test_a_scale_that_is_too_large_for_declared_inputs_is_an_error(static, tmp_path, factor):
    model = onnx.ModelProto()
    model.CopyFrom(static)
    [scale] = [each for each in model.graph.initializer if each.name == "x_scale"]
    scale.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(scale) * np.float32(factor)), scale.name))
    np.savez(tmp_path / "real.npz", x=EXAMPLE.flip(0).numpy())
    for inputs in ((), (str(tmp_path / "real.npz"),)):
        recipe = replace(calibrated, inputs=inputs)
        found = onnx_ci.verify(model.SerializeToString(), recipe, rules="foreign-domain=note", **QUICK).findings
        named = [each for each in found if "of its 256 integers" in each.message]
        assert [(each.rule, "'x'" in each.message) for each in named] == (
            [("numeric-drift", True)] if inputs and factor > 2 else []
        )


def test_an_optimized_file_passes_once_its_domain_is_allowed(exported, tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(exported, options, providers=["CPUExecutionProvider"])
    assert rules(onnx_ci.verify(tmp_path / "optimized.onnx", net, **QUICK)) == ["foreign-domain"]
    allowed = onnx_ci.verify(tmp_path / "optimized.onnx", net, rules="foreign-domain=note", **QUICK)
    assert (allowed.status, [each.rule for each in notes(allowed)]) == (Status.PASSED, ["foreign-domain"])


def test_a_recipe_can_declare_a_tolerance(exported):
    file = in_float16(exported, has_casts=True, epsilon=0.01)
    assert onnx_ci.verify(file, replace(net, atol=0.5), **QUICK).status is Status.PASSED
    assert onnx_ci.verify(file, replace(net, atol=1e-6), **QUICK).status is Status.FAILED


@pytest.mark.slow
def test_the_command_takes_the_same_and_writes_a_report(project):
    project.write("onnx_recipes.py", "import torch, onnx_ci", """
        @onnx_ci.recipe(input_names=["x"], output_names=["y"])
        def net():
            return torch.nn.Linear(4, 2), (torch.randn(3, 4),)
    """)  # fmt: skip
    made = "import onnx_ci, onnx_recipes; onnx_ci.export(onnx_recipes.net, opset=13, path='net.onnx')"
    assert project.run(sys.executable, "-c", made).returncode == 0
    model = onnx.load(project.root / "net.onnx")
    model.graph.input[0].name = "z"
    model.graph.node[0].input[0] = "z"
    onnx.save(model, project.root / "net.onnx")
    failed = project.command("onnx_ci", "verify", "net.onnx", "--recipe=net")
    assert failed.returncode == 1
    assert "onnx_recipes.py:3: name-mismatch\n" in failed.stdout
    words = ["--rules=name-mismatch=note", "--report=r.json", "--runtimes=onnxruntime,reference"]
    passed = project.command("onnx_ci", "verify", "net.onnx", "--recipe=net", *words)
    assert passed.returncode == 0
    assert "onnx_recipes.py:3: name-mismatch (note)\n" in passed.stdout
    report = json.loads((project.root / "r.json").read_text())
    [cell] = report["cells"]
    assert (cell["status"], {each["runtime"] for each in cell["outputs"]}) == ("passed", {"onnxruntime", "reference"})
    assert report["settings"]["rules"]["value"] == "name-mismatch=note"
