"""``onnx-ci init``: what it writes works as it stands, and what is there is never touched."""

from __future__ import annotations

import os
import re
import subprocess

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import numpy_helper
from toolbox.github_runner import installed_tool
from toolbox.projects import ROOT

from onnx_ci.cli.init import ADDRESS, REF, template

PASSED, USAGE, NOTHING_RAN = 0, 2, 5
WORKFLOW = ".github/workflows/onnx-export.yml"


@pytest.fixture
def init(project):
    return lambda *arguments, **environment: project.command("onnx_ci", "init", *arguments, **environment)


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_the_recipe_is_well_formed_and_passes_as_it_is_written(project, init):
    done = init("--no-github")
    assert (done.returncode, files(project.root)) == (PASSED, ["onnx_recipes.py"])
    assert done.stdout.startswith("wrote onnx_recipes.py\n\nnext:\n")
    assert project.command("onnx_ci", "config", "--check").returncode == PASSED
    ran = project.command("onnx_ci", "run")
    assert (ran.returncode, "10 cells: 10 passed" in ran.stdout) == (PASSED, True), ran.stdout


def test_the_checkpoint_that_the_recipe_shows_is_exported_and_kept(project, init):
    init("--no-github")
    recipe = project.root / "onnx_recipes.py"
    text = recipe.read_text()
    shown = [line.strip().removeprefix("#     ") for line in text.splitlines() if line.lstrip().startswith("#     model")]
    assert len(shown) == 2
    project.write(
        "my_package.py",
        "import torch",
        "def Net(): return torch.nn.Sequential(torch.nn.Conv2d(3, 10, 3),",
        "    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())",
    )
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 10, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    torch.save(model.state_dict(), project.root / "checkpoint.pt")
    head, _, rest = text.partition("    model = torch.nn.Sequential(")
    recipe.write_text(
        head.replace("import onnx_ci", "import my_package, onnx_ci")
        + "".join(f"    {line}\n" for line in shown)
        + "    return model"
        + rest.partition("    return model")[2]
    )
    ran = project.command("onnx_ci", "run", "-v", "--opsets=17", "--artifacts=kept")
    assert (ran.returncode, "loaded-weights (note)" in ran.stdout) == (PASSED, True), ran.stdout + ran.stderr
    kept = onnx.load(project.root / "kept" / "example" / "opset17-cpu.onnx").graph.initializer
    (weight,) = [numpy_helper.to_array(tensor) for tensor in kept if tensor.name == "0.weight"]
    assert np.array_equal(weight, model[0].weight.detach().numpy())


def test_the_example_includes_the_opset_that_torch_writes_by_default(project, init):
    init("--no-github", "--tox")
    project.write("default.py", "import torch\ntorch.onnx.export(torch.nn.ReLU().eval(), (torch.randn(2),), 'default.onnx')")
    assert project.command("default").returncode == 0
    (written,) = [each.version for each in onnx.load(project.root / "default.onnx").opset_import if not each.domain]
    listed = project.command("onnx_ci", "list").stdout.splitlines()
    assert f"onnx_recipes.py::example::opset{written}-cpu" in listed
    environments = re.search(r"testenv:opset{(.*?)}", (project.root / "tox.ini").read_text())[1].split(",")
    assert listed == [f"onnx_recipes.py::example::opset{opset}-cpu" for opset in environments]


def test_everything_is_written_and_told(project, init):
    done = init("--pre-commit", "--tox")
    names = ["onnx_recipes.py", WORKFLOW, ".pre-commit-config.yaml", "tox.ini"]
    assert files(project.root) == sorted(names)
    assert done.stdout.splitlines()[:4] == [f"wrote {name}" for name in names]
    assert f"replace {ADDRESS} and {REF} with your onnx-ci repository and commit in {WORKFLOW} and .pre-commit" in done.stdout
    mask = os.umask(0)
    os.umask(mask)
    assert (project.root / "tox.ini").stat().st_mode & 0o777 == 0o666 & ~mask


def test_what_is_there_stays_as_it_is(project, init):
    project.write("onnx_recipes.py", "mine")
    project.write(".pre-commit-config.yaml", "repos: []")
    done = init("--pre-commit")
    assert done.returncode == PASSED
    assert (project.root / "onnx_recipes.py").read_text() == "mine"
    assert (project.root / ".pre-commit-config.yaml").read_text() == "repos: []"
    assert "skipped onnx_recipes.py, which exists\n" in done.stdout
    assert "skipped .pre-commit-config.yaml, which exists; a new .pre-commit-config.yaml would contain:" in done.stdout
    assert "          - id: onnx-ci-config" in done.stdout
    assert files(project.root) == sorted(["onnx_recipes.py", ".pre-commit-config.yaml", WORKFLOW])
    again = init("--pre-commit")
    assert (again.returncode, "wrote" in again.stdout) == (NOTHING_RAN, False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tox.toml", ""),
        ("pyproject.toml", "[tool.tox]\nenv_list = []\n"),
        ("setup.cfg", "[tox:tox]\nenvlist = py\n"),
    ],
)
def test_a_new_tox_ini_would_hide_where_tox_is_set_up_already(project, init, name, content):
    project.write(name, content)
    done = init("--tox")
    assert f"skipped {name}, which exists; a new tox.ini would contain:" in done.stdout
    assert not (project.root / "tox.ini").exists()


def test_links_are_not_followed(project, init, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (project.root / ".github").symlink_to(outside)
    done = init()
    assert (done.returncode, ".github is a symbolic link" in done.stderr) == (USAGE, True)
    (project.root / "tox.ini").symlink_to(outside / "tox.ini")
    init("--no-github", "--tox")
    assert files(outside) == []


def test_a_place_that_cannot_be_written_is_told_and_nothing_is_half_done(project, init):
    project.write(".github", "a file where a folder should be")
    done = init()
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert f"{WORKFLOW} cannot be written: " in done.stderr
    assert files(project.root) == [".github"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write into any folder")
def test_a_read_only_folder_is_told(project, init):
    project.root.chmod(0o555)
    done = init("--no-github")
    project.root.chmod(0o755)
    assert (done.returncode, "onnx_recipes.py cannot be written: Permission denied" in done.stderr) == (USAGE, True)


def test_a_workflow_belongs_at_the_top_of_the_repository(project, init):
    (project.root / ".git").mkdir()
    (project.root / "sub").mkdir()
    done = init("sub")
    assert (done.returncode, f"which is {project.root.resolve()}; run onnx-ci init there" in done.stderr) == (USAGE, True)
    assert init("sub", "--no-github").returncode == PASSED
    assert init("nowhere").returncode == USAGE


def test_settings_that_do_not_name_the_recipe_file_are_told(project, init):
    project.write("pyproject.toml", "[tool.onnx-ci]\nrecipe-files = ['exports/*.py']\n")
    assert "add onnx_recipes.py to recipe-files in [tool.onnx-ci] of pyproject.toml" in init().stdout


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("requirements.txt", "torch\n", "pip install -r requirements.txt"),
        ("pyproject.toml", "[project]\nname = 'x'\n", "pip install ."),
        ("setup.py", "", "pip install ."),
        ("README.md", "", "pip install torch"),
    ],
)
def test_the_workflow_installs_the_project_and_is_clean(project, init, name, content, command):
    project.write(name, content)
    init()
    path = project.root / WORKFLOW
    steps = yaml.safe_load(path.read_text())["jobs"]["onnx-export"]["steps"]
    assert steps[2]["run"] == command
    assert steps[3]["uses"] == f"{ADDRESS}@{REF}"
    sha = steps[0]["uses"].partition("@")[2]
    path.write_text(path.read_text().replace(f"{ADDRESS}@{REF}", f"{ADDRESS}@{sha}"))
    for tool in (
        ["zizmor", "--offline", "--quiet", str(path)],
        ["check-jsonschema", "--builtin-schema", "github-workflows", str(path)],
        ["check-jsonschema", "--builtin-schema", "github-workflows-require-timeout", str(path)],
    ):
        done = subprocess.run([installed_tool(tool[0]), *tool[1:]], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_pins_what_the_projects_own_workflow_pins():
    pinned = re.compile(r"uses: (actions/\S+ # \S+)")
    ours = set(pinned.findall((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")))
    written = pinned.findall(template("onnx-export.yml"))
    assert len(written) == 2
    assert set(written) <= ours
