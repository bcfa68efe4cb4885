"""What ``onnx-ci init`` finds in a project, without importing any of it."""

from __future__ import annotations

import ast

import pytest

from onnx_ci.tools.init.first_files import family_of, install_command, recipe_file
from onnx_ci.tools.init.project_scan import ModelClass, ScannedProject, scan

NET = """
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            return x
"""


def model(name, *, arguments=(), inputs=("x",)):
    return ModelClass(
        name=name, module="nets", folder="", source="nets.py", line=1, arguments=arguments, inputs=inputs
    )  # fmt: skip


def names(project):
    return [(each.module, each.name, each.arguments) for each in scan(project.root).models]


def test_models_are_found_by_what_they_derive_from(project):
    project.write(
        "nets.py",
        """
        from torch import nn
        from torch.nn import Module as Base
        import flax.linen

        class Common(Base):
            def __init__(self, width, *, depth, bias=True): ...
            def forward(self, x): ...

        class Deep(Common): ...

        class Stack(nn.Sequential):
            def __init__(self): super().__init__(Part())

        class Part(nn.Module):
            def forward(self, x): ...

        class _Private(nn.Module):
            def forward(self, x): ...

        class Abstract(nn.Module): ...

        class OfAnotherLibrary(flax.linen.Module):
            def forward(self, x): ...
        """,
    )
    needed = ("width", "depth")
    assert names(project) == [("nets", "Common", needed), ("nets", "Deep", needed), ("nets", "Stack", ())]


@pytest.mark.parametrize(
    "place",
    [
        "tests/net.py",
        "checks/net.py",
        "test_net.py",
        "build/net.py",
        ".tox/net.py",
        "env/net.py",
        "a-b/net.py",
        "onnx_recipes.py",
    ],
)
def test_tests_environments_builds_and_what_cannot_be_imported_are_not_searched(project, place):
    project.write("pytest.ini", "[pytest]\ntestpaths = checks")
    project.write("env/pyvenv.cfg")
    project.write(place, NET)
    assert scan(project.root).models == ()


def test_nothing_is_imported_and_what_is_not_python_is_skipped(project):
    project.write("net.py", "raise SystemExit", NET)
    project.write("broken.py", "import torch\nclass (")
    (project.root / "binary.py").write_bytes(b"torch\x00\xff")
    project.write("lib/pyproject.toml", "not TOML")
    project.write("lib/other.py", NET)
    assert names(project) == [("lib.other", "Net", ()), ("net", "Net", ())]


def test_a_namespace_package_in_src_is_imported_from_src(project):
    project.write("src/company/shop/nets.py", NET)
    (found,) = scan(project.root).models
    assert (found.folder, found.module) == ("src", "company.shop.nets")
    assert scan(project.root).unreachable == ("src",)
    project.write("pytest.ini", "[pytest]\npythonpath = src")
    assert scan(project.root).unreachable == ()


def test_checkpoints_are_those_of_the_project(project):
    for name in ("weights/best.pt", "b.safetensors", "venv/lib/c.pt", ".cache/d.pth", "e.onnx"):
        project.write(name)
    assert scan(project.root).checkpoints == ("b.safetensors", "weights/best.pt")


@pytest.mark.parametrize(
    ("requirements", "pyproject", "command"),
    [
        ("torch\n", "[project]\nname = 'x'", "pip install -r requirements.txt ."),
        ("torch\n-e .[cpu]\n", "[project]\nname = 'x'", "pip install -r requirements.txt"),
        (None, "[tool.poetry]\nname = 'x'", "pip install ."),
        (None, "[tool.poetry]\npackage-mode = false", "pip install torch==2.13.0"),
        (None, "[project]\nname = 'x'\n[tool.uv.workspace]\nmembers = []", "pip install torch==2.13.0"),
    ],
)
def test_the_workflow_installs_what_the_project_has(project, requirements, pyproject, command):
    project.write("pyproject.toml", pyproject)
    if requirements:
        project.write("requirements.txt", requirements)
    assert install_command(scan(project.root), "2.13.0+cpu") == command


def test_a_torch_that_no_index_has_is_not_pinned():
    assert install_command(ScannedProject(), "2.14.0.dev20261101+cpu") == "pip install torch"
    assert install_command(ScannedProject(), None) == "pip install torch"


def test_a_family_is_a_group_of_models_that_one_recipe_can_declare():
    alike = [model("A"), model("B"), model("C")]
    assert family_of([*alike, model("D", inputs=("x", "state")), model("E", arguments=("width",))]) == alike
    assert family_of(alike[:2]) == []
    assert family_of([*alike, model("a")]) == []


def test_names_of_files_cannot_become_code():
    text = recipe_file(
        ScannedProject(
            models=(model("Net"),),
            checkpoints=('a"\n    import os\n#.safetensors', "b\n    import os\n\x1b[2J.pt", "\udc80.pt"),
        )
    )
    assert [each.module for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ImportFrom)] == []
    assert sum(isinstance(each, ast.Import) for each in ast.walk(ast.parse(text))) == 2
    assert "\x1b" not in text and text.encode()
