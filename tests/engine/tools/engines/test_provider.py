"""ONNX Runtime with a provider: which one it is, what it does not take, and what is said where it is missing."""

from __future__ import annotations

import json

import onnxruntime
import pytest
import torch
from toolbox.cells import BATCH

import onnx_ci
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.pipeline.run.runtime import BrokenRuntimeError
from onnx_ci.tools.engines.provider import OnnxRuntimeWithProvider, ProviderSession

HAS_OPENVINO = "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()


@onnx_ci.recipe(**BATCH)
def right():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(3, 4),)


@pytest.mark.parametrize(
    ("short", "words"),
    [
        ("CoreML", r"has no provider 'CoreML', but .*cpu.*; install onnxruntime on macOS in its place"),
        ("dml", "install onnxruntime-directml on Windows in its place"),
        ("nonsense", r"has no provider 'nonsense', but [^;]*cpu[^;]*$"),
    ],
)
def test_a_provider_that_is_missing_is_told_with_those_that_are_there(short, words):
    with pytest.raises(EnvironmentLacksError, match=words):
        onnx_ci.run([right], opsets=13, runtimes=f"onnxruntime,onnxruntime:{short}")


def test_a_provider_is_a_setting_and_nothing_that_a_recipe_names():
    with pytest.raises(onnx_ci.RecipeError, match="'onnxruntime:cpu', a provider, is a setting: --runtimes"):
        onnx_ci.recipe(name="x", runtimes="onnxruntime:cpu")(right.function)
    with pytest.raises(onnx_ci.ConfigurationError, match="unknown runtime 'reference:cpu'"):
        onnx_ci.run([right], runtimes="reference:cpu")


@pytest.mark.skipif("AzureExecutionProvider" not in onnxruntime.get_available_providers(), reason="another wheel")
def test_a_provider_that_takes_no_node_proves_nothing():
    """That of Azure is in the usual wheel, and takes no operator of ONNX."""
    [cell] = onnx_ci.run([right], opsets=13, runtimes="onnxruntime,onnxruntime:azure").cells
    [fault] = cell.findings
    assert (fault.rule, fault.severity) == ("provider-mismatch", "error")
    assert fault.message == (
        "on 'example', onnxruntime:azure ran no node with AzureExecutionProvider, and all on the CPU (onnxruntime is right)"
    )
    assert {output.runtime for output in cell.outputs} == {"onnxruntime"}


class FakeSession:
    """A session of ONNX Runtime, with the profile of a run."""

    def __init__(self, folder, providers):
        self.profile = folder / "profile.json"
        floats = [{"float": [3, 4]}]
        self.profile.write_text(
            json.dumps(
                [
                    {
                        "cat": "Node",
                        "name": f"node{number}_kernel_time",
                        "args": {
                            "provider": f"{provider}ExecutionProvider",
                            "op_name": "Add",
                            "input_type_shape": floats,
                            "output_type_shape": floats,
                        },
                    }
                    for number, provider in enumerate(providers)
                ]
            )
        )

    def run_with_ort_values(self, names, feeds):
        self.outputs = [onnxruntime.OrtValue.ortvalue_from_numpy(feed.numpy().copy()) for feed in feeds.values()]
        return self.outputs

    def end_profiling(self):
        return str(self.profile)


@pytest.mark.parametrize(
    ("providers", "on_cpu"), [(["Acme"], ()), (["Acme", "CPU"], ("Add 'node1'",)), (["CPU", "CPU"], None), ([], ())]
)
def test_a_session_says_which_nodes_its_provider_left_to_the_cpu(tmp_path, providers, on_cpu):
    session = ProviderSession(FakeSession(tmp_path, providers), profile=tmp_path, wanted="AcmeExecutionProvider")
    if on_cpu is None:
        with pytest.raises(BrokenRuntimeError, match="ran no node with AcmeExecutionProvider, and all on the CPU"):
            session.run({"x": torch.ones(3, 4)})
        return
    [y] = session.run({"x": torch.ones(3, 4)})
    assert (y.tolist(), session.nodes_on_cpu, session.provider) == (torch.ones(3, 4).tolist(), on_cpu, "cpu")


class WithoutRelu(OnnxRuntimeWithProvider):
    """A provider that leaves one node to the CPU."""

    def load(self, path, device):
        session = super().load(path, device)
        session._wanted, run = "CPUExecutionProvider", session.run

        def other(inputs, *, seed=None):
            outputs = run(inputs, seed=seed)
            session.nodes_on_cpu = ("Relu '/1/Relu'",)
            return outputs

        session.run = other
        return session


@pytest.mark.parametrize(("must", "severity"), [(False, "note"), (True, "error")])
def test_nodes_that_fall_back_are_told(must, severity, tmp_path):
    from onnx_ci.collection.discovery import Found
    from onnx_ci.config.settings import load_settings
    from onnx_ci.engine.one_process import Engine
    from onnx_ci.matrix.plan import plan

    recipe = onnx_ci.recipe(name="net", all_on_device=must, **BATCH)(right.function)
    settings = load_settings(tmp_path, flags={"opsets": "13"}, environment={})
    with Engine(runtimes=[WithoutRelu("cpu")]) as engine:
        evidence = engine.run_cell(*plan([Found(recipe, "r.py")], settings).cells)
    [fallback] = evidence.findings
    assert (fallback.rule, fallback.severity) == ("provider-mismatch", severity)
    assert fallback.message == "onnxruntime:cpu ran 1 node on cpu, not with its provider: Relu '/1/Relu'"


@pytest.mark.skipif(not HAS_OPENVINO, reason="onnxruntime-openvino is not installed")
@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_openvino_runs_in_onnx_runtime(isolation):
    [cell] = onnx_ci.run([right], opsets=13, runtimes="onnxruntime,onnxruntime:openvino", isolation=isolation).cells
    assert (cell.status, cell.findings) == (onnx_ci.Status.PASSED, ())
    assert {output.runtime for output in cell.outputs} == {"onnxruntime", "onnxruntime:openvino"}
