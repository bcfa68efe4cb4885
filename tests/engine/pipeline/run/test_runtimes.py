"""Several runtimes on one file: each is compared, and a fault is laid at the door of whoever made it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from toolbox.cells import BATCH, Total, errors

import onnx_ci
from onnx_ci import Status
from onnx_ci.collection.discovery import Found
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.one_process import Engine
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.matrix.plan import plan
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.plugins import RUNTIMES
from onnx_ci.results.verdict import decide
from onnx_ci.tools.engines import engine

ALL = "onnxruntime,reference,openvino"


@onnx_ci.recipe(**BATCH)
def right():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(3, 4),)


@onnx_ci.recipe(input_names=["x"], output_names=["total"], dynamic_axes={"x": {0: "rows"}})
def wrong():
    return Total(), (torch.randn(3, 4),)


def openvino():
    return pytest.importorskip("openvino", reason="OpenVINO is not installed")


def test_each_runtime_is_compared_on_every_input():
    openvino()
    (result,) = onnx_ci.run([right], opsets=13, runtimes=ALL).cells
    assert (result.status, result.findings) == (Status.PASSED, ())
    probes = {name: [each.probe for each in result.outputs if each.runtime == name] for name in ALL.split(",")}
    assert probes["onnxruntime"] == probes["reference"] == probes["openvino"]
    assert len(probes["onnxruntime"]) > 3
    assert {each.title for each in result.outputs} == {"y", "y (reference)", "y (openvino)"}


def test_a_fault_of_the_file_is_told_once_whichever_runtimes_show_it():
    alone, together = (
        onnx_ci.run([wrong], opsets=13, runtimes=names).cells[0] for names in ("onnxruntime", "onnxruntime,reference")
    )
    assert {each.rule for each in errors(alone)} == {"baked-value", "baked-shape"}
    assert [(each.rule, each.message) for each in errors(together)] == [(each.rule, each.message) for each in errors(alone)]


@pytest.mark.parametrize("threads", [1, 3])
def test_onnx_runtime_computes_with_as_many_threads_as_torch(threads, tmp_path, monkeypatch):
    path = tmp_path / "relu.onnx"
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [value("x", 1, [2])], [value("y", 1, [2])]
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    asked_for = []
    session = onnxruntime.InferenceSession

    def watched(path, sess_options, **options):
        asked_for.append(sess_options.intra_op_num_threads)
        return session(path, sess_options=sess_options, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        OnnxRuntime().load(path, "cpu")
        OnnxRuntime(threads=2).load(path, "cpu")
    finally:
        torch.set_num_threads(before)
    assert asked_for == [threads, 2]


class Faulty(OnnxRuntime):
    """ONNX Runtime with a fault of its own, in its optimizer or without it, too."""

    def __init__(self, name="faulty", is_deployed=True, fails_on=None):
        super().__init__()
        self.name, self.is_deployed, self.fails_on = name, is_deployed, fails_on

    def load(self, path, device):
        session, fails_on = super().load(path, device), self.fails_on
        run = session.run

        def other(inputs):
            if fails_on is not None and len(inputs["x"]) == fails_on:
                raise RuntimeError("no such kernel")
            return [output + (fails_on is None) for output in run(inputs)]

        session.run = other
        return session


class Plain(OnnxRuntime):
    """A second runtime without faults."""

    def __init__(self, is_deployed=True):
        super().__init__()
        self.name, self.is_deployed = "plain", is_deployed


def judged_by(tmp_path, *runtimes, recipe=right):
    settings = load_settings(tmp_path, flags={"opsets": "13"}, environment={})
    with Engine(runtimes=runtimes) as engine:
        found = engine.run_cell(*plan([Found(recipe, "r.py")], settings).cells)
    return decide(found)


@pytest.mark.parametrize("deployed", [True, False])
def test_a_runtime_that_is_wrong_where_another_is_right_is_at_fault(tmp_path, deployed):
    result = judged_by(tmp_path, Faulty(), Plain(is_deployed=deployed))
    (fault,) = errors(result)
    assert (result.status, fault.rule) == (Status.FAILED, "runtime-disagreement")
    assert fault.message.startswith(
        "faulty is wrong where plain and onnxruntime without its optimizer are right: output 'y' at ["
    )
    assert (fault.details["runtime"], fault.details["right"][0], fault.details["breaks"]) == (
        "faulty",
        "plain",
        "numeric-drift",
    )


def test_a_fault_of_a_reference_runtime_is_a_note(tmp_path):
    result = judged_by(tmp_path, Plain(), Faulty(is_deployed=False))
    assert result.status is Status.PASSED
    assert [(each.rule, each.severity) for each in result.findings] == [("runtime-disagreement", "note")]


def test_onnx_runtime_runs_without_its_optimizer_if_it_alone_is_wrong(tmp_path):
    (fault,) = errors(judged_by(tmp_path, Faulty()))
    assert fault.rule == "runtime-disagreement"
    assert fault.message.startswith("faulty is wrong where onnxruntime without its optimizer is right: output 'y' at [")


@onnx_ci.recipe(**BATCH)
def normalized():
    return torch.nn.LayerNorm(8), (torch.randn(3, 8),)


@pytest.mark.parametrize(("exponent", "broken"), [(2.0, []), (2.2, ["nonfinite-mismatch"]), (1.0, ["numeric-drift"])])
def test_a_fault_that_only_the_optimizer_of_onnx_runtime_hides_is_the_files(exponent, broken, tmp_path):
    """It fuses a LayerNorm of several nodes without looking at the exponent (1.31)."""
    exported = onnx_ci.export(normalized, opset=13, path=tmp_path / "net.onnx")
    model = onnx.load(exported.path)
    (power,) = (node for node in model.graph.node if node.op_type == "Pow")
    model.graph.initializer.append(numpy_helper.from_array(np.array(exponent, np.float32), "exponent"))
    power.input[1] = "exponent"
    result = onnx_ci.verify(model.SerializeToString(), normalized, opset=13)
    assert sorted({each.rule for each in errors(result)}) == broken
    assert all(each.message.endswith("; the optimizer of ONNX Runtime hides it") for each in errors(result))
    assert {each.runtime for each in result.outputs} == {"onnxruntime"}


def test_a_runtime_that_fails_on_an_input_that_another_computes_is_at_fault(tmp_path):
    result = judged_by(tmp_path, Faulty(fails_on=1), Plain())
    (fault,) = errors(result)
    assert fault.rule == "runtime-disagreement"
    assert "right: faulty fails on 'batch=1': no such kernel" in fault.message


def test_a_reference_runtime_alone_decides(tmp_path):
    result = judged_by(tmp_path, Plain(is_deployed=False), recipe=wrong)
    assert {each.rule for each in errors(result)} == {"baked-value", "baked-shape"}


def test_onnx_runtimes_own_fault_is_not_laid_at_the_exporters_door(tmp_path):
    class Power(torch.autograd.Function):
        @staticmethod
        def forward(ctx, base, exponent):
            return base**exponent

        @staticmethod
        def symbolic(g, base, exponent):
            return g.op("Pow", base, exponent)

    class Model(torch.nn.Module):
        def forward(self, base, exponent):
            return Power.apply(base, exponent)

    @onnx_ci.recipe(input_names=["base", "exponent"], output_names=["power"])
    def power():
        return Model(), (torch.tensor([3, 5]), torch.tensor([39, 27]))

    usual = {"opsets": 13, "effort": "quick"}
    alone, together = (onnx_ci.run([power], runtimes=names, **usual).cells[0] for names in (None, "onnxruntime,reference"))
    assert [each.rule for each in errors(alone)] == ["numeric-drift"]  # nobody was asked who knows better
    (fault,) = errors(together)
    assert fault.rule == "runtime-disagreement"
    assert fault.message.startswith(
        "onnxruntime is wrong where reference is right: output 'power' at [0] on 'example' is 4052555153018976256 and should be "
        "4052555153018976267"
    )


def test_a_recipe_says_what_can_run_its_file():
    only = onnx_ci.recipe(name="only", runtimes="reference", **BATCH)(right.function)
    (result,) = onnx_ci.run([only], opsets=13).cells
    assert {each.runtime for each in result.outputs} == {"reference"}
    report = onnx_ci.run([only], opsets=13, runtimes="onnxruntime")
    assert [each.reason for each in report.exclusions] == ["onnxruntime: the recipe declares runtimes reference"]
    assert report.verdict == "nothing-ran"
    with pytest.raises(
        onnx_ci.RecipeError, match="runtimes names 'referense', which is not a known runtime; did you mean 'reference'"
    ):
        onnx_ci.recipe(name="x", runtimes="referense")(right.function)


def test_bfloat16_goes_through_the_reference_evaluator():
    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def half():
        return torch.nn.ReLU().bfloat16(), (torch.randn(3, 4, dtype=torch.bfloat16),)

    (result,) = onnx_ci.run([half], opsets=14, runtimes="reference").cells
    assert (result.status, {each.dtype for each in result.outputs}) == (Status.PASSED, {"bfloat16"})


def test_an_unknown_runtime_is_a_mistake_with_the_nearest_name():
    with pytest.raises(onnx_ci.ConfigurationError, match=r"unknown runtime 'openvin'; .*; did you mean 'openvino'"):
        onnx_ci.run([right], runtimes="openvin")


def test_a_runtime_that_is_asked_for_and_absent_is_told_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # no folder above has Node's packages
    words = r"the runtime onnxruntime-web cannot be used: (Node is|onnxruntime-web is) not installed; "
    with pytest.raises(EnvironmentLacksError, match=words):
        onnx_ci.run([right], opsets=13, runtimes="onnxruntime,onnxruntime-web")


@pytest.mark.parametrize("name", ["opencv", "openvino", "tract"])
def test_an_engine_that_is_absent_says_what_to_install(name, monkeypatch):
    monkeypatch.setattr(engine, "version_of", lambda distribution: None)
    runtime = RUNTIMES.load(name)
    assert (runtime.missing_device("cpu") or "").endswith(f"is not installed; install onnx-ci[{name}]")
    monkeypatch.setattr(engine, "version_of", lambda distribution: "1.0")
    assert runtime.missing_device("cpu") is None
    assert runtime.missing_device("cuda") == f"{name} computes on the CPU only"
    assert [*runtime.versions.values()] == ["1.0"]


def test_an_operator_without_an_implementation_for_its_types_is_said_to_be_that():
    @onnx_ci.recipe()
    def linear():
        return torch.nn.Linear(4, 4).bfloat16(), (torch.randn(3, 4, dtype=torch.bfloat16),)

    (result,) = onnx_ci.run([linear], opsets=17, exporters="torchscript").cells
    [fault] = [each for each in result.findings if each.rule == "load-error"]
    assert "could not find an implementation" in fault.message.lower()
    assert "such as convolutions of float64 or bfloat16 on a CPU" in fault.remedy
