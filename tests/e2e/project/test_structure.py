"""The shape of the project: what must stay light, and what must be installed. Lint holds who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "onnx_ci"
ROOMS = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))
HEAVY = {"torch", "onnx", "onnxruntime", "numpy", "click", "torchvision", "onnxscript", "jinja2"}


def test_every_room_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    installed = {name for name in project["tool"]["setuptools"]["packages"] if not name.startswith("onnx_ci.recipes")}
    files = {"onnx_ci.rule_pages", "onnx_ci.templates"}
    assert installed == {".".join(room.relative_to(ROOT).parts) for room in ROOMS} | files


@pytest.mark.parametrize("room", ROOMS[1:], ids=lambda room: room.relative_to(PACKAGE).as_posix())
def test_every_room_says_what_it_is_for(room):
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))


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
