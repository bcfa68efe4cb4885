"""``onnx-ci why`` shows where a failure begins, and how the error grows from there."""

from __future__ import annotations

import pytest
from toolbox.projects import FROZEN, RIGHT

HALVES = """
    class Halves(torch.nn.Module):
        def forward(self, x):
            positive = x.abs() + x
            return positive + x // 2

    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def halves():
        return Halves(), (torch.tensor([[1, 2], [3, 4]]),)
"""
"""A recipe whose file divides negative integers in another way; no number was frozen."""


@pytest.fixture
def cli(project):
    return lambda *arguments: project.command("onnx_ci", *arguments)


@pytest.mark.slow
def test_a_cell_is_explained_with_its_code_and_the_nodes_around_the_fault(project, cli):
    project.recipes(HALVES, RIGHT)
    done = cli("why", "halves::opset13-cpu")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("onnx_recipes.py::halves::opset13-cpu failed (baked-value at onnx_recipes.py:")
    assert any(line.startswith("onnx_recipes.py:") and line.endswith(": baked-value") for line in lines)
    assert any(line.startswith("    >  ") for line in lines)
    assert any(line.split()[:2] == ["node", "line"] for line in lines)
    passing = cli("why", "onnx_recipes.py::right::opset13-cpu")
    assert (passing.returncode, passing.stdout.count("\n")) == (0, 1)


KNOWN = """
    @onnx_ci.recipe(
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "rows"}},
        expect={"torchscript": onnx_ci.known_failure("baked-value", "the loop"), "13": onnx_ci.known_failure("baked-shape", "it")},
    )
    def known():
        return Total(), (torch.randn(3, 4),)
"""


def test_a_known_failure_is_explained_too(project, cli):
    project.recipes(FROZEN, KNOWN)
    done = cli("why", "known::opset13-cpu")
    assert done.returncode == 1
    assert "known::opset13-cpu failed (baked-value at onnx_recipes.py:" in done.stdout
    assert ">       for i in range(x.shape[0]):" in done.stdout


@pytest.mark.slow
def test_a_file_is_explained_as_an_export_of_its_recipe(project, cli):
    project.recipes(HALVES, RIGHT)
    cli("run", "--opsets=13", "--artifacts=kept", "--select=halves")
    (file,) = (project.root / "kept").rglob("*.onnx")
    done = cli("why", str(file), "--recipe=halves")
    assert (done.returncode, "node by node:" in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["totl::opset13-cpu"], "there is no recipe 'totl'; did you mean 'total'?"),
        (
            ["total::opset13-cpu-dynam"],
            "total has no exporter 'dynam'; use torchscript, dynamo, transformers; did you mean 'dynamo'?",
        ),
        (["total::opset13-cpu+onnxslim"], "total has no pass 'onnxslim'"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_the_remedy(project, cli, arguments, said):
    project.recipes(FROZEN)
    done = cli("why", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
