"""The shape of the project: what must be installed, and how large it may be. Lint holds who may import whom."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from onnx_ci.plugins import RUNTIMES, TOOLS

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


def test_the_gate_names_tools_in_three_places_only():
    """Runtimes that are not the gate's are tools, what more is said of a failure is a tool's, and so is ``onnx_ci.compare``.

    Lint sees no import in a text.
    """
    texts = {
        (path.relative_to(PACKAGE).as_posix(), node.value)
        for path in PACKAGE.rglob("*.py")
        if not path.is_relative_to(PACKAGE / "tools")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("onnx_ci.tools")
    }
    assert texts == {
        *(("plugins.py", target) for target in (*RUNTIMES.variants.values(), RUNTIMES.guard, *TOOLS.values())),
        ("__init__.py", "onnx_ci.tools.two_files.compare"),
    }


def test_two_modes_of_torch_come_between_a_model_and_torch():
    """The base of interventions, and the recorder's functions. Under a mode for functions, some models compute something else."""
    modes = {
        (path.relative_to(PACKAGE).as_posix(), node.name)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name in ("__torch_dispatch__", "__torch_function__")
    }
    assert modes == {
        ("pipeline/model/operators.py", "__torch_dispatch__"),
        ("pipeline/trace/recorder.py", "__torch_function__"),
    }


def lines_of(*files: Path) -> int:
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def test_the_gate_and_its_tools_keep_to_their_limits_of_lines():
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["brake"]
    tools = lines_of(*(PACKAGE / "tools").rglob("*.py"))
    gate = lines_of(*PACKAGE.rglob("*.py")) - tools
    assert 0 < gate <= limits["gate"], f"the gate has {gate} lines: remove some, or raise [tool.brake] in pyproject.toml"
    assert 0 < tools <= limits["tools"], f"the tools have {tools} lines: remove some, or raise [tool.brake] in pyproject.toml"


def test_each_place_that_architecture_names_exists():
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Where to change what")[2].partition("\n## ")[0]
    places = re.findall(r"`((?:[a-z_]+/)*[\w-]+\.(?:py|toml|html\.jinja))`", table)
    assert len(places) > 20
    for place in places:
        assert (PACKAGE / place).is_file() or (ROOT / place).is_file(), place


def test_the_table_in_architecture_has_the_order_that_lint_checks():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = {contract["containers"][0]: contract["layers"] for contract in contracts}
    order = []
    for layer in reversed(layers["onnx_ci"]):
        if layer == "pipeline":
            order += [{f"pipeline/{room}" for room in rooms.split(" | ")} for rooms in reversed(layers["onnx_ci.pipeline"])]
        elif layer != "__main__":  # what starts the command
            order.append(set(layer.split(" | ")))
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = [
        room.rstrip("/") for line in re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE) for room in re.findall(r"`(.*?)`", line)
    ]
    assert set(rooms) == set().union(*order)
    places = [next(place for place, names in enumerate(order) if room in names) for room in rooms]
    assert places == sorted(places)
