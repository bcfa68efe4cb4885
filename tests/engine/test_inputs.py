"""Real inputs: judged beside the probes, named after their files, saved where a file fails, and read back."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import torch
from toolbox.cells import rules
from toolbox.files import mlp, save
from toolbox.projects import FROZEN

import onnx_ci
from onnx_ci import ConfigurationError, RecipeError, Status

QUICK = {"isolation": "none", "opsets": "13", "cache": "off"}

RARE = """
    import torch
    import onnx_ci

    class Rare(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x, y):
            return torch.where(x > 1000, x * self.factor, x) + y
"""
"""A model of which the usual inputs show only a part."""

RECIPE = """
    @onnx_ci.recipe(input_names=["x", "y"], output_names=["z"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}, "z": {0: "n"}}, MORE)
    def rare():
        return Rare(2.0), (torch.randn(3), torch.randn(3))

    @onnx_ci.recipe(input_names=["x", "y"], output_names=["z"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}, "z": {0: "n"}})
    def wrong():
        return Rare(3.0), (torch.randn(3), torch.randn(3))
"""


@pytest.fixture
def recipes(project, monkeypatch):
    """The recipes of a project, by name, with keywords for the first one."""
    from toolbox.discovered import discover

    from onnx_ci.config.settings import load_settings

    monkeypatch.chdir(project.root)

    def make(more=""):
        project.write("nets/onnx_recipes.py", RARE, RECIPE.replace("MORE", more))
        found = discover(load_settings(project.root), (project.root / "nets",)).recipes
        return {name: each.recipe for name, each in found.items()}

    return make


def save_arrays(path, size=3, scale=2000.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=np.full(size, scale, np.float32), y=np.zeros(size, np.float32))


def run(recipe, **options):
    [cell] = onnx_ci.run([recipe], **{**QUICK, **options}).cells
    return cell


def probes(result):
    return [each.probe for each in result.outputs]


def test_a_recipes_files_are_probes_named_after_them(project, recipes):
    for name, size in (("b", 5), ("a", 3)):
        save_arrays(project.root / "nets" / "data" / f"{name}.npz", size)
    result = run(recipes('inputs="data/*.npz"')["rare"])
    assert result.status is Status.PASSED
    assert probes(result)[:3] == ["example", "data/a.npz", "data/b.npz"]
    assert {"random values", "n=4", "floats zero"} <= set(probes(result))


def test_a_fault_that_only_real_inputs_show_is_found_by_them(project, recipes):
    """The wrong file is right wherever x is not large."""
    both = recipes()
    file = onnx_ci.export(both["wrong"], opset=13, path=project.root / "wrong.onnx")
    save_arrays(project.root / "real.npz")
    quick = {"isolation": "none"}
    assert onnx_ci.verify(file, both["rare"], **quick).status is Status.PASSED
    result = onnx_ci.verify(file, both["rare"], inputs="real.npz", **quick)
    assert (result.status, rules(result)) == (Status.FAILED, ["baked-value"])
    assert result.findings[0].probe == "real.npz"


def test_inputs_are_looked_for_where_the_command_was_started(project):
    moved = RECIPE.replace("def rare():", "def rare():\n        import os; os.chdir('/')", 1)
    project.write("onnx_recipes.py", RARE, moved.replace("MORE", ""))
    save_arrays(project.root / "real.npz")
    flags = ("--select=rare", "--opsets=13", "--no-cache", "--inputs=real.npz", "--report=report.json")
    done = project.command("onnx_ci", "run", *flags)
    assert done.returncode == 0, done.stdout
    (cell,) = json.loads((project.root / "report.json").read_text())["cells"]
    assert "real.npz" in [each["probe"] for each in cell["outputs"]]


def test_failing_inputs_are_saved_and_reproduce_the_failure(project, recipes):
    both = recipes()
    file = onnx_ci.export(both["wrong"], opset=13, path=project.root / "wrong.onnx")
    save_arrays(project.root / "real.npz")
    quick = {"isolation": "none"}
    first = onnx_ci.verify(file, both["rare"], inputs=["real.npz"], save_inputs="failing", **quick)
    [saved] = (project.root / "failing").rglob("*.npz")
    assert saved.relative_to(project.root).as_posix() == "failing/rare/opset13-cpu/real.npz"
    again = onnx_ci.verify(file, both["rare"], inputs=saved, **quick)
    assert [each.drift for each in again.findings] == [each.drift for each in first.findings]
    assert again.findings[0].probe == "failing/rare/opset13-cpu/real.npz"


def test_a_run_saves_the_inputs_of_failing_cells_only(project, recipes):
    project.recipes(
        FROZEN,
        """
        @onnx_ci.recipe(input_names=["x"], output_names=["y"])
        def scale():
            return Scale(), (torch.randn(3, 4),)
    """,
    )
    done = project.command("onnx_ci", "run", "--opsets=13", "--cache=off", "--save-inputs=failing", "onnx_recipes.py")
    assert done.returncode == 1, done.stderr
    saved = {path.relative_to(project.root / "failing").as_posix() for path in (project.root / "failing").rglob("*.npz")}
    assert "total/opset13-cpu/rows=4.npz" in saved
    assert all(name.startswith("total/") for name in saved)
    assert "total/opset13-cpu/example.npz" not in saved
    with np.load(project.root / "failing/total/opset13-cpu/rows=4.npz") as arrays:
        assert {name: array.shape for name, array in arrays.items()} == {"x": (4, 4)}


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ('inputs="none.npz"', "inputs: there is no file none.npz in "),
        ('inputs=["good.npz", "other.npz"]', "other.npz: the array 'x' is int64[3] and should be float32[?]"),
        ('inputs="uneven.npz"', "the model raised RuntimeError: The size of tensor a (2) must match"),
    ],
)
def test_inputs_that_cannot_be_used_are_an_error_of_the_recipe(project, recipes, keyword, said):
    folder = project.root / "nets"
    save_arrays(folder / "good.npz")
    np.savez(folder / "other.npz", x=np.arange(3), y=np.zeros(3, np.float32))
    np.savez(folder / "uneven.npz", x=np.ones(2, np.float32), y=np.zeros(3, np.float32))
    result = run(recipes(keyword)["rare"])
    assert (result.status, rules(result)) == (Status.ERROR, ["recipe-error"])
    assert said in result.findings[0].message


def test_a_keyword_that_names_no_files_is_refused():
    for wrong in ([1], [""], ["a.npz", "a.npz"]):
        with pytest.raises(RecipeError, match="inputs"):
            onnx_ci.recipe(inputs=wrong)(lambda: None)


@pytest.mark.slow  # three runs; the rows of tests/e2e/cache have files that are read
def test_a_verdict_is_kept_only_as_long_as_the_files_stay_the_same(project, recipes):
    def is_cached():
        project.command("onnx_ci", "run", "nets", "--select=rare*", "--opsets=13", "--cache=v", "--report=r.json")
        (cell,) = json.loads((project.root / "r.json").read_text())["cells"]
        assert cell["status"] == "passed"
        return cell["cached"]

    file = project.root / "nets" / "a.npz"
    save_arrays(file)
    recipes('inputs="*.npz"')
    assert [is_cached() for _ in range(2)] == [False, True]
    save_arrays(file, scale=5.0)
    assert not is_cached()
    save_arrays(file.with_name("b.npz"))
    assert not is_cached()


# --- two files


def test_two_files_are_compared_on_given_inputs_and_others_like_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = save(mlp(), tmp_path / "a.onnx"), save(mlp(epsilon=1e-3), tmp_path / "b.onnx")
    np.savez(tmp_path / "real.npz", x=np.ones((7, 8), np.float32))
    same = onnx_ci.compare(a, a, inputs="real.npz", isolation="none")
    assert same.status is Status.PASSED
    assert {"real.npz", "random values", "batch=8", "floats zero"} <= set(probes(same))
    different = onnx_ci.compare(a, b, inputs=tmp_path / "real.npz", isolation="none")
    assert different.findings[0].probe == "real.npz"
    onnx_ci.compare(a, b, save_inputs=tmp_path / "failing", sizes={"batch": 2}, isolation="none")
    saved = tmp_path / "failing" / "batch=2.npz"
    assert onnx_ci.compare(a, a, inputs=saved, isolation="none").status is Status.PASSED
    assert onnx_ci.compare(a, b, inputs=saved, isolation="none").findings[0].probe == "failing/batch=2.npz"
    np.savez(tmp_path / "wrong.npz", x=np.ones((7, 9), np.float32))
    with pytest.raises(
        ConfigurationError, match=r"wrong\.npz: the array 'x' is float32\[7, 9\] and should be float32\[\?, 8\]"
    ):
        onnx_ci.compare(a, b, inputs=["real.npz", "wrong.npz"], isolation="none")


def test_given_inputs_that_both_files_reject_are_left_out(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[2, m] y) <int64[2] s = {2, -1}> { y = Reshape (x, s) }'
    )
    file = save(model, tmp_path / "a.onnx")
    for size in (3, 4):
        np.savez(tmp_path / f"{size}.npz", x=np.ones(size, np.float32))
    result = onnx_ci.compare(file, file, inputs=[tmp_path / "3.npz", tmp_path / "4.npz"], isolation="none")
    assert result.status is Status.PASSED
    assert any(each.endswith("3.npz") for each in result.left_out)
    only = onnx_ci.compare(file, file, inputs=tmp_path / "3.npz", isolation="none")
    assert rules(only) == ["vacuous"]


def test_inputs_that_cannot_be_made_can_be_given(tmp_path):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Relu (x) }')
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    file = save(model, tmp_path / "a.onnx")
    with pytest.raises(ConfigurationError, match="has no declared rank, so none can be made; give inputs: --inputs"):
        onnx_ci.compare(file, file, isolation="none")
    np.savez(tmp_path / "x.npz", x=torch.randn(2, 3).numpy())
    assert onnx_ci.compare(file, file, inputs=tmp_path / "x.npz", isolation="none").status is Status.PASSED
