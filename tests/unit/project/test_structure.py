"""The shape of the project: what must be installed. Lint holds who may import whom."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from onnx_ci.plugins import RUNTIMES

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "onnx_ci"
ROOMS = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


def test_every_room_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    installed = {name for name in project["tool"]["setuptools"]["packages"] if not name.startswith("onnx_ci.recipes")}
    files = {"onnx_ci.rule_pages", "onnx_ci.templates"}
    assert installed == {".".join(room.relative_to(ROOT).parts) for room in ROOMS} | files


def test_every_file_beside_the_modules_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]
    for file in PACKAGE.rglob("*"):
        if file.is_file() and file.suffix not in (".py", ".pyc"):
            room = ".".join(file.parent.relative_to(ROOT).parts)
            assert any(map(file.match, [*patterns["*"], *patterns.get(room, ())])), file


@pytest.mark.parametrize("room", ROOMS[1:], ids=lambda room: room.relative_to(PACKAGE).as_posix())
def test_every_room_says_what_it_is_for(room):
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))


def test_the_gate_names_tools_in_two_places_only():
    """Another version of a runtime is versions' work, and ``onnx_ci.compare`` is a tool; lint sees no import in a text."""
    texts = {
        (path.relative_to(PACKAGE).as_posix(), node.value)
        for path in PACKAGE.rglob("*.py")
        if not path.is_relative_to(PACKAGE / "tools")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("onnx_ci.tools")
    }
    assert texts == {
        *(("plugins.py", target) for target in RUNTIMES.versioned.values()),
        ("__init__.py", "onnx_ci.tools.two_files.compare"),
    }
