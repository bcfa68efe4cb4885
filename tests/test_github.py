"""``action.yml`` as GitHub runs it: its steps, in order, in bash, with GitHub's environment files."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import RIGHT, TINY
from test_pytest_plugin import WRONG

from onnx_ci.github import SUMMARY_LIMIT, _shortened

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOSTILE = """'; touch owned; echo "$(touch owned)" `touch owned`\n::error::owned 🦊"""


def installed_tool(name):
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name) or name


@pytest.fixture
def github(project):
    """Runs the action's steps and gives what GitHub would see."""
    files = {name: project.root / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    (project.root / "checkout").mkdir()

    def run(python=sys.executable, steps=("run",), **inputs):
        for file in files.values():
            file.write_text("")
        bin_folder = project.root / "bin"
        bin_folder.mkdir(exist_ok=True)
        (bin_folder / "python").unlink(missing_ok=True)
        (bin_folder / "python").symlink_to(python)
        done = None
        for step in ACTION["runs"]["steps"]:
            if "run" not in step or step["run"].split()[-1] not in steps:
                continue
            environment = {
                **os.environ,
                **{name: str(file) for name, file in files.items()},
                "GITHUB_ACTION_PATH": str(ROOT),
                "RUNNER_TEMP": str(project.root / "temp"),
                "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
                **{name: evaluated(value, inputs) for name, value in step["env"].items()},
            }
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=project.root / "checkout", env=environment, capture_output=True, text=True, timeout=600, check=False,
            )  # fmt: skip
            if done.returncode:
                break
        return done, outputs_of(files["GITHUB_OUTPUT"].read_text()), files["GITHUB_STEP_SUMMARY"].read_text()

    return run


def evaluated(value, inputs):
    """The only expressions that the action's env blocks hold."""
    if value == "${{ github.action_path }}":
        return str(ROOT)
    name = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)[1]
    return inputs.get(name, ACTION["inputs"][name]["default"])


def outputs_of(text):
    """GITHUB_OUTPUT as the runner reads it: name<<delimiter, lines, delimiter."""
    outputs, lines = {}, iter(text.splitlines())
    for line in lines:
        name, delimiter = line.split("<<", 1)
        outputs[name] = "\n".join(iter(lambda end=delimiter: next(lines), delimiter)) if delimiter else ""
    return outputs


def test_a_passing_project(project, github):
    project.recipes(RIGHT, name="checkout/onnx_recipes.py")
    done, outputs, summary = github(opsets="12-13")
    assert done.returncode == 0, done.stderr
    assert outputs["verdict"] == "passed"
    assert '"verdict": "passed"' in Path(outputs["report"]).read_text()
    assert summary.startswith("## ONNX export: ✅ passed")
    assert "| right cpu |" in summary


def test_a_failing_project_ends_with_the_gates_own_code_and_still_reports(project, github):
    project.recipes(RIGHT, WRONG, name="checkout/sub/nets.py")
    done, outputs, summary = github(paths="sub/nets.py\n", opsets="13", devices="cpu", args="--drift=16 --select='wrong'")
    assert (done.returncode, outputs["verdict"]) == (1, "failed")
    assert Path(outputs["report"]).is_file()
    assert "### wrong opset13-cpu: failed" in summary
    assert "onnx-ci run --opsets=13 --drift=16 --no-cache --select=wrong::opset13-cpu sub/nets.py" in summary


def test_nothing_changed_is_known_from_the_last_run_unless_that_is_turned_off(project, github):
    project.recipes(RIGHT, name="checkout/onnx_recipes.py")
    first, again, hostile, off = (
        github(opsets="13", **more)[0].stdout for more in ({}, {}, {"cache": HOSTILE}, {"cache": "false"})
    )
    assert "passed (drift" in first
    assert "known from earlier runs" in again
    for each in (first, hostile, off):
        assert "known from earlier runs" not in each


def test_an_empty_project_is_no_success(project, github):
    done, outputs, summary = github()
    assert (done.returncode, outputs["verdict"]) == (5, "nothing-ran")
    assert summary.startswith("## ONNX export: ⚠️ nothing ran")


@pytest.mark.parametrize(("name", "code"), [("opsets", 2), ("devices", 2), ("paths", 2), ("args", 2)])
def test_a_hostile_input_is_text_and_nothing_else(project, github, name, code):
    project.recipes(RIGHT, name="checkout/onnx_recipes.py")
    done, outputs, summary = github(**{name: HOSTILE})
    assert (done.returncode, outputs["verdict"], outputs["report"]) == (code, "error", "")
    assert "no report" in summary
    assert not list(project.root.rglob("owned*"))
    lines = (done.stdout + done.stderr).splitlines()
    assert not [line for line in lines if line.startswith("::")]


def test_a_path_that_looks_like_a_flag_is_a_path(project, github):
    done, outputs, _ = github(paths="--help")
    assert (done.returncode, outputs["verdict"]) == (2, "error")
    assert "there is no --help" in done.stderr


def test_a_summary_beyond_githubs_limit_is_cut_at_a_line():
    text = "".join(f"| line {number} | {'x' * 100} |\n" for number in range(20_000))
    cut = _shortened(text)
    assert len(cut.encode()) < SUMMARY_LIMIT
    assert cut.endswith(f"{'x' * 100} |\n\n… the rest is in the JSON report.\n")
    assert _shortened("short\n") == "short\n"


@pytest.mark.slow
def test_the_install_step_keeps_the_callers_torch(project, github):
    """A virtual environment that sees this one's packages: pip finds torch and ONNX Runtime and adds onnx-ci alone."""
    python = scratch_environment(project.root / "venv")
    project.write("checkout/onnx_recipes.py", TINY, RIGHT)
    done, outputs, _ = github(python=python, steps=("install", "run"), opsets="13")
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs["verdict"] == "passed"
    where = subprocess.run([python, "-c", "import onnx_ci, torch; print(onnx_ci.__file__, torch.__file__)"], capture_output=True, text=True, check=True)  # fmt: skip
    ours, torchs = where.stdout.split()
    assert Path(ours).is_relative_to(project.root / "venv")
    assert not Path(torchs).is_relative_to(project.root / "venv")


@pytest.mark.slow
def test_a_project_that_installs_the_wheel_needs_no_other_setup(project):
    python = scratch_environment(project.root / "venv")
    subprocess.run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(project.root / "dist"), str(ROOT)], check=True)
    (wheel,) = (project.root / "dist").glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
    project.recipes(RIGHT, name="work/onnx_recipes.py")
    work = project.root / "work"
    done = subprocess.run([python, "-m", "pytest", "--onnx-export"], cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 cells: 9 passed" in done.stdout
    listed = subprocess.run(
        [python, "-m", "onnx_ci", "list", "--packages=onnx_ci.recipes", "--opsets=9"], cwd=work, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert len(listed.stdout.splitlines()) == 1 + 4


def scratch_environment(folder):
    """A virtual environment whose own packages come first and which sees those of the running one, but not onnx-ci."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    ).stdout.strip()  # fmt: skip
    Path(purelib, "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return str(python)


@pytest.mark.parametrize(
    "command",
    [
        ["zizmor", "--offline", "--quiet", "action.yml", ".github"],
        ["check-jsonschema", "--builtin-schema", "github-actions", "action.yml"],
        ["check-jsonschema", "--builtin-schema", "github-workflows", ".github/workflows/ci.yml"],
        ["check-jsonschema", "--builtin-schema", "github-workflows-require-timeout", ".github/workflows/ci.yml"],
        ["check-jsonschema", "--builtin-schema", "dependabot", ".github/dependabot.yml"],
    ],
    ids=lambda command: f"{command[0]} {command[-1]} {command[2]}",
)
def test_action_and_workflows_are_clean(command):
    done = subprocess.run(
        [installed_tool(command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_expression_stands_in_a_script():
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
