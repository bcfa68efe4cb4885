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

from onnx_ci.tools.init.command import ADDRESS, REF, template

PASSED, USAGE = 0, 2
WORKFLOW = ".github/workflows/onnx-export.yml"
VERDICT = ".github/workflows/onnx-verdict.yml"


@pytest.fixture
def init(project):
    return lambda *arguments, **environment: project.in_process("init", *arguments, **environment)


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.slow
def test_the_recipe_is_well_formed_and_passes_as_it_is_written(project, init):
    done = init("--no-github")
    assert (done.returncode, files(project.root)) == (PASSED, ["onnx_recipes.py"])
    assert done.stdout.startswith(
        "wrote onnx_recipes.py: a recipe that runs as it is\n\nnext:\n  - run the example: onnx-ci run\n"
    )
    assert project.command("onnx_ci", "config", "--check").returncode == PASSED
    ran = project.command("onnx_ci", "run")
    assert (ran.returncode, "10 cells: 10 passed" in ran.stdout) == (PASSED, True), ran.stdout


def test_the_recipe_of_a_model_builds_it_and_shows_how_a_checkpoint_is_loaded(project, init):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 10, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    torch.save(model.state_dict(), project.root / "checkpoint.pt")
    project.write(
        "shop/nets.py",
        "import torch",
        "def SmallNet(): return torch.nn.Sequential(torch.nn.Conv2d(3, 10, 3),",
        "    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())",
    )
    done = init("--no-github", "--model=shop.nets:SmallNet")
    assert (done.returncode, done.stdout.splitlines()) == (
        PASSED,
        [
            "wrote onnx_recipes.py: a recipe for SmallNet",
            "",
            "next:",
            "  - write the arguments of SmallNet, and its inputs and outputs, into onnx_recipes.py",
            "  - run the recipe: onnx-ci run",
        ],
    )
    recipe = project.root / "onnx_recipes.py"
    text = recipe.read_text()
    (shown,) = [line.strip().removeprefix("#     ") for line in text.splitlines() if line.lstrip().startswith("#     model.")]
    assert shown == 'model.load_state_dict(torch.load("checkpoint.pt", map_location="cpu"))'
    recipe.write_text(text.replace("model = SmallNet()", f"model = SmallNet(); {shown}"))
    ran = project.command("onnx_ci", "run", "-v", "--opsets=17", "--artifacts=kept")
    assert (ran.returncode, "loaded-weights (note)" in ran.stdout) == (PASSED, True), ran.stdout + ran.stderr
    kept = onnx.load(project.root / "kept" / "small_net" / "opset17-cpu.onnx").graph.initializer
    (weight,) = [numpy_helper.to_array(tensor) for tensor in kept if tensor.name == "0.weight"]
    assert np.array_equal(weight, model[0].weight.detach().numpy())
    again = init("--no-github", "--model=shop.nets:Lambda")
    assert "\nadd to your recipes:\n\n" in again.stdout
    assert "def lambda_model():\n    from shop.nets import Lambda\n\n    model = Lambda()\n" in again.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model=shop.nets.Ranker"], "--model must be MODULE:CLASS, such as shop.nets:Ranker, not 'shop.nets.Ranker'"),
        (["--model=a-b:Net"], "--model must be MODULE:CLASS, such as shop.nets:Ranker, not 'a-b:Net'"),
        (["--model=nets:Net", "--observe=python serve.py"], "--model and --observe both say what the recipe is for: give one of them"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_named_well_is_told_and_nothing_is_written(project, init, flags, said):
    done = init(*flags)
    assert (done.returncode, done.stdout, done.stderr) == (USAGE, "", f"onnx-ci: {said}\n")
    assert files(project.root) == []


@pytest.mark.slow
def test_the_example_includes_the_opset_that_torch_writes_by_default(project, init):
    init("--no-github")
    project.write("default.py", "import torch\ntorch.onnx.export(torch.nn.ReLU().eval(), (torch.randn(2),), 'default.onnx')")
    assert project.command("default").returncode == 0
    (written,) = [each.version for each in onnx.load(project.root / "default.onnx").opset_import if not each.domain]
    listed = project.command("onnx_ci", "list").stdout.splitlines()
    assert f"onnx_recipes.py::example::opset{written}-cpu" in listed


def test_everything_is_written_and_told(project, init):
    done = init()
    names = ["onnx_recipes.py", WORKFLOW, VERDICT]
    assert files(project.root) == sorted(names)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[:3]] == [f"wrote {name}" for name in names]
    assert f"replace {ADDRESS} and {REF} with your onnx-ci repository and commit in {WORKFLOW} and {VERDICT}\n" in done.stdout
    mask = os.umask(0)
    os.umask(mask)
    assert (project.root / WORKFLOW).stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("name", ["onnx_recipes.py", WORKFLOW, VERDICT])
def test_a_file_that_was_deleted_is_written_again_and_no_other(project, init, name):
    init()
    first = {file: (project.root / file).read_bytes() for file in files(project.root)}
    (project.root / name).unlink()
    done = init()
    assert re.findall(r"^wrote (.*?):", done.stdout, re.MULTILINE) == [name]
    assert {file: (project.root / file).read_bytes() for file in files(project.root)} == first


def test_what_is_there_stays_as_it_is(project, init):
    project.write("onnx_recipes.py", "mine")
    done = init()
    assert done.returncode == PASSED
    assert (project.root / "onnx_recipes.py").read_text() == "mine"
    assert "left alone onnx_recipes.py, which exists\n" in done.stdout
    assert files(project.root) == sorted(["onnx_recipes.py", WORKFLOW, VERDICT])
    again = init()
    assert (again.returncode, "wrote" in again.stdout) == (PASSED, False)
    assert "\nnothing was written: all of it exists\n\nnext:\n  - run the recipes: onnx-ci run\n" in again.stdout


def test_links_are_not_followed(project, init, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (project.root / ".github").symlink_to(outside)
    done = init()
    assert (done.returncode, ".github is a symbolic link" in done.stderr) == (USAGE, True)
    (project.root / "onnx_recipes.py").symlink_to(outside / "onnx_recipes.py")
    init("--no-github")
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


RELEASE = torch.__version__.partition("+")[0]


@pytest.mark.parametrize(
    ("contents", "command"),
    [
        ({"requirements.txt": "torch\n"}, "pip install -r requirements.txt"),
        ({"pyproject.toml": "[project]\nname = 'x'\n"}, "pip install ."),
        ({"setup.py": ""}, "pip install ."),
        ({"requirements.txt": "torch\n", "setup.py": ""}, "pip install -r requirements.txt ."),
        ({"requirements.txt": "torch\n-e .[cpu]\n", "setup.py": ""}, "pip install -r requirements.txt"),
        ({}, f"pip install torch=={RELEASE}"),
    ],
)
def test_the_workflow_installs_the_project(project, init, contents, command):
    for name, content in contents.items():
        project.write(name, content)
    init("--github")
    steps = yaml.safe_load((project.root / WORKFLOW).read_text())["jobs"]["onnx-export"]["steps"]
    assert steps[2]["run"] == command
    assert steps[3]["uses"] == f"{ADDRESS}@{REF}"


def test_the_workflows_are_clean(project, init):
    init()
    steps = yaml.safe_load((project.root / WORKFLOW).read_text())["jobs"]["onnx-export"]["steps"]
    for name in (WORKFLOW, VERDICT):
        assert_clean(project.root / name, pinned_as=steps[0]["uses"].partition("@")[2])


def assert_clean(path, pinned_as):
    """Neither zizmor nor GitHub's schema finds anything in a workflow once the commit of onnx-ci is filled in."""
    path.write_text(path.read_text().replace(f"@{REF}", f"@{pinned_as}"))
    for tool in (
        ["zizmor", "--offline", "--quiet", str(path)],
        ["check-jsonschema", "--builtin-schema", "github-workflows", str(path)],
        ["check-jsonschema", "--builtin-schema", "github-workflows-require-timeout", str(path)],
    ):
        done = subprocess.run([installed_tool(tool[0]), *tool[1:]], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_comment_is_about_the_workflow_and_the_upload_that_are_written(project, init):
    init()
    gate, verdict = (yaml.safe_load((project.root / name).read_text()) for name in (WORKFLOW, VERDICT))
    assert verdict[True]["workflow_run"] == {"workflows": [gate["name"]], "types": ["completed"]}
    given = gate["jobs"]["onnx-export"]["steps"][3]["with"]
    published = yaml.safe_load((ROOT / "publish" / "action.yml").read_text(encoding="utf-8"))["inputs"]["artifact-name"]
    assert given == {"upload": "always", "artifact-name": published["default"]}
    (job,) = verdict["jobs"].values()
    assert (verdict["permissions"], job["permissions"]) == ({}, {"actions": "read", "pull-requests": "write"})
    (step,) = job["steps"]
    assert (step["uses"], step["with"]) == (f"{ADDRESS}/publish@{REF}", {"comment": True})


def test_a_workflow_of_the_project_that_runs_the_gate_already_takes_the_place_of_both(project, init):
    project.write(".github/workflows/other.yml", "# uses: me/onnx-ci@main", "jobs: {}")
    project.write(".github/workflows/tests.yaml", "run: pytest --onnx-export")
    done = init()
    assert (
        "left alone .github/workflows/tests.yaml, which takes the place of .github/workflows/onnx-export.yml\n" in done.stdout
    )
    assert not {WORKFLOW, VERDICT} & set(files(project.root))


def test_recipes_that_exist_take_the_place_of_the_first_one(project, init):
    project.write("tests/onnx_recipes.py", "mine")
    done = init("--no-github")
    assert (done.returncode, files(project.root)) == (PASSED, ["tests/onnx_recipes.py"])
    assert "left alone tests/onnx_recipes.py, which takes the place of onnx_recipes.py\n" in done.stdout


def test_the_workflow_pins_what_the_projects_own_workflow_pins():
    pinned = re.compile(r"uses: (actions/\S+ # \S+)")
    ours = set(pinned.findall((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")))
    written = pinned.findall(template("onnx-export.yml"))
    assert len(written) == 2
    assert set(written) <= ours
