"""The shape of the project: what must stay light."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from toolbox.projects import FROZEN, RIGHT

HEAVY = {"torch", "onnx", "onnxruntime", "numpy", "click", "torchvision", "onnxscript", "jinja2"}


@pytest.mark.parametrize(
    "module", ["onnx_ci", "onnx_ci.pytest_plugin.plugin", "onnx_ci.engine.session", "onnx_ci.github.action"]
)
def test_importing_it_imports_nothing_heavy(module):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"], capture_output=True, text=True, check=True, timeout=60
    )
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert module.split(".")[0] in imported
    assert not imported & HEAVY


def test_the_cli_lists_cells_without_loading_torch(tmp_path):
    (tmp_path / "onnx_recipes.py").write_text("import onnx_ci\n\n@onnx_ci.recipe\ndef net(): ...\n")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "onnx_ci", "list"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 9
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not imported & (HEAVY - {"click"})


_NOTES_TOOLS = """
    import sys

    class Watch:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("onnx_ci.tools"):
                with open({file!r}, "a") as file:
                    file.write(name + "\\n")

    sys.meta_path.insert(0, Watch())
"""


@pytest.mark.slow
def test_no_process_of_the_gate_imports_a_tool(project):
    """Commands that are tools import it, and what users ask for by name: another version of a runtime, ``onnx_ci.compare``."""
    project.recipes(RIGHT, FROZEN)
    file = project.root / "imported.txt"
    project.write("watch/sitecustomize.py", _NOTES_TOOLS.format(file=str(file)))
    environment = {"PYTHONPATH": os.pathsep.join([str(project.root / "watch"), os.environ.get("PYTHONPATH", "")])}
    done = project.command("pytest", "--onnx-export", "--onnx-opsets=13", is_fresh=True, **environment)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert not file.exists(), file.read_text()
    assert project.command("onnx_ci", "show", "-h", is_fresh=True, **environment).returncode == 0
    assert "onnx_ci.tools.show.command" in file.read_text().splitlines()
