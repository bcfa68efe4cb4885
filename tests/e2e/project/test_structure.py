"""The shape of the project: what must stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
