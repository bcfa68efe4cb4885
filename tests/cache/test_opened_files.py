"""Files that are opened only while cells are judged: their contents count like everything else that a verdict depends on."""

from __future__ import annotations

import json
import sys
import tempfile

import pytest
from toolbox.projects import RIGHT

from onnx_ci.processes.scratch import scratch_folder

RECIPES = """
    import json
    import pathlib
    import tempfile

    FOLDER = pathlib.Path(__file__).parent / "data"

    class Exported(torch.nn.Module):
        def forward(self, x):
            if torch.onnx.is_in_onnx_export():
                return x * json.loads((FOLDER / "factor.json").read_text())
            return x * 2

    class Optional(torch.nn.Module):
        def forward(self, x):
            if torch.onnx.is_in_onnx_export():
                try:
                    return x * json.loads((FOLDER / "optional.json").read_text())
                except FileNotFoundError:
                    pass
            return x * 2

    @onnx_ci.recipe(input_names=["x"])
    def exported():
        return Exported(), (torch.randn(3),)

    @onnx_ci.recipe(input_names=["x"])
    def optional():
        return Optional(), (torch.randn(3),)

    def branded(model):
        model.producer_name = (FOLDER / "name.txt").read_text()
        return model

    @onnx_ci.recipe(input_names=["x"], then=[branded])
    def shipped():
        return torch.nn.ReLU(), (torch.randn(3),)

    class Scribbles(torch.nn.Module):
        def forward(self, x):
            for name in ("factor.json", "name.txt"):
                with tempfile.TemporaryDirectory() as folder:
                    copy = pathlib.Path(folder, name)
                    copy.write_text("2")
                    x = x * int(copy.read_text())
            return x

    @onnx_ci.recipe(input_names=["x"])
    def scribbles():
        return Scribbles(), (torch.randn(3),)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "isolation",
    ["none", pytest.param("fork", marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")), "spawn"],
)
def test_what_only_an_export_or_a_stage_opens_is_part_of_the_verdict(project, isolation):
    project.recipes(RECIPES)
    project.write("data/factor.json", "2")
    project.write("data/name.txt", "mine")

    def cells():
        """Of each recipe's last cell, its status and whether it ran."""
        words = ["onnx_ci", "run", "--opsets=17", "--cache=cache", f"--isolation={isolation}", "--report=r.json"]
        done = project.command(*words)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        report = json.loads((project.root / "r.json").read_text())
        return {each["recipe"]: (each["status"], not each["cached"]) for each in report["cells"]}

    names = ("exported", "optional", "scribbles", "shipped")
    assert cells() == dict.fromkeys(names, ("passed", True))
    assert cells() == dict.fromkeys(names, ("passed", False))
    project.write("data/factor.json", "3")
    project.write("data/optional.json", "3")
    project.write("data/name.txt", "yours")
    assert cells() == {
        "exported": ("failed", True),
        "optional": ("failed", True),
        "scribbles": ("passed", False),
        "shipped": ("passed", True),
    }
    (project.root / "data" / "optional.json").unlink()
    assert cells() == {
        "exported": ("failed", False),
        "optional": ("passed", True),
        "scribbles": ("passed", False),
        "shipped": ("passed", False),
    }


@pytest.mark.slow
def test_the_temporary_files_of_another_run_are_no_part_of_a_verdict(project, monkeypatch):
    """A run looks whether their process lives."""
    project.recipes(RIGHT)
    words = ["onnx_ci", "run", "--opsets=13", "--cache=cache", "--isolation=none"]
    monkeypatch.setattr(tempfile, "tempdir", str(project.root))
    with scratch_folder():
        first = project.command(*words, TMPDIR=str(project.root))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "1 passed, 1 of them cached" in project.command(*words, TMPDIR=str(project.root)).stdout
