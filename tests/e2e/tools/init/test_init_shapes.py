"""``onnx-ci init`` in projects of four shapes: what it writes runs, with the name of a model of the project, too."""

from __future__ import annotations

import re
import sys

import pytest
import yaml

NET = """
    import torch.nn as nn

    class Block(nn.Module):
        def forward(self, x):
            return x.relu()

    class {name}(nn.Module):
        def __init__(self, scores=10):
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, scores, 3), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

        def forward(self, image):
            return self.layers(image)
"""
PACKAGE = "[project]\nname = {name!r}\nversion = '1'\n"
FAMILIES = ("Alex", "Dense", "Efficient", "Google", "Inception", "Mobile", "Mnas", "Reg", "Res", "Shuffle", "Squeeze", "Vgg")


def flat(project):
    project.write("requirements.txt", "torch")
    project.write("flat_nets.py", NET.format(name="Net"))


def src(project):
    project.write("pyproject.toml", PACKAGE.format(name="in_src"))
    project.write("src/in_src/__init__.py")
    project.write("src/in_src/nets.py", NET.format(name="Net"))
    project.write("tests/test_nets.py", NET.format(name="OfTests"))


def monorepo(project):
    for name in ("mono_a", "mono_b"):
        project.write(f"packages/{name}/pyproject.toml", PACKAGE.format(name=name))
        project.write(f"packages/{name}/src/{name}/__init__.py")
        project.write(f"packages/{name}/src/{name}/nets.py", NET.format(name="Net"))


def library(project):
    project.write("pyproject.toml", PACKAGE.format(name="many_families"))
    project.write("many_families/__init__.py")
    for name in FAMILIES:
        project.write(f"many_families/{name.lower()}.py", NET.format(name=name))


SHAPES = {
    flat: ("pip install -r requirements.txt", None),
    src: ("pip install .", "src"),
    monorepo: ("pip install ./packages/mono_a ./packages/mono_b", "packages/mono_a/src packages/mono_b/src"),
    library: ("pip install .", None),
}
"""How the workflow installs each, and what recipes import from besides the project's folder."""


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.__name__)
def shape(request, project):
    request.param(project)
    return request.param


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_each_shape_is_green_with_only_the_name_of_its_model(project, shape):
    before = contents(project.root)
    assert project.command("onnx_ci", "init").returncode == 0
    first = contents(project.root)
    assert before.items() <= first.items()
    again = project.command("onnx_ci", "init")
    assert (again.returncode, contents(project.root)) == (0, first)
    assert "\nnothing was written: all of it exists\n" in again.stdout

    install, pythonpath = SHAPES[shape]
    workflow = yaml.safe_load(first[".github/workflows/onnx-export.yml"])
    assert workflow["jobs"]["onnx-export"]["steps"][2]["run"] == install
    assert ("pytest.ini" in first) == (pythonpath is not None)
    if pythonpath is not None:
        assert first["pytest.ini"].decode() == f"[pytest]\npythonpath = {pythonpath}\n"

    assert project.command("onnx_ci", "config", "--check").returncode == 0
    assert_passes(project, 1)
    recipes = project.root / "onnx_recipes.py"
    text = recipes.read_text(encoding="utf-8")
    assert "OfTests" not in text and "Block" not in text
    recipes.write_text(with_own_models(text), encoding="utf-8")
    assert_passes(project, 13 if shape is library else 1)


def with_own_models(text):
    """The recipe file with the models of the project that it names in comments."""
    imports = re.findall(r"^# (from .* import \w+)  # .*$", text, re.MULTILINE)
    if "MODELS" in text:
        text = re.sub(r"^# (from .* import )", r"\1", text, flags=re.MULTILINE)
        return re.sub(r'^    # ("\w+": )', r"    \1", text, flags=re.MULTILINE)
    (call,) = re.findall(r"model = small_network\(\)  # replace this with your own model: (.*)", text)
    return text.replace("import torch\n", f"import torch\n{imports[0]}\n", 1).replace(
        "model = small_network()", f"model = {call}"
    )


def assert_passes(project, cells):
    # Not through `python -m`, which could import from the current directory.
    words = "import sys; sys.path.remove(''); from onnx_ci.cli.main import main; main(prog_name='onnx-ci')"
    ran = project.run(sys.executable, "-c", words, "run", "--isolation=none", "--opsets=17")
    assert (ran.returncode, f": {cells} passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["onnx_recipes.py", "pytest.ini", ".github/workflows/onnx-verdict.yml"])
def test_a_file_that_was_deleted_is_written_again_and_no_other(project, name):
    src(project)
    project.command("onnx_ci", "init")
    first = contents(project.root)
    (project.root / name).unlink()
    done = project.command("onnx_ci", "init")
    assert re.findall(r"^wrote (.*?):", done.stdout, re.MULTILINE) == [name]
    assert contents(project.root) == first


def test_a_project_that_configures_pytest_is_told_what_its_recipes_need(project):
    src(project)
    project.write("pyproject.toml", PACKAGE.format(name="in_src"), "[tool.pytest.ini_options]\ntestpaths = ['checks']")
    project.write("checks/nets.py", NET.format(name="OfTests"))
    done = project.command("onnx_ci", "init", "--no-github")
    assert "let recipes import your models: install them, or add src to pythonpath in pyproject.toml\n" in done.stdout
    assert not (project.root / "pytest.ini").exists()
    assert "OfTests" not in (project.root / "onnx_recipes.py").read_text(encoding="utf-8")
