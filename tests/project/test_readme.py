"""The README is run: its recipes as a reader would paste them, its commands, its output."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from toolbox.github_runner import ACTION, Call, Job

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [(language, text) for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]

CATCHES = [
    (command.splitlines()[-1].removeprefix("onnx-ci "), output)
    for (language, command), (_, output) in itertools.pairwise(BLOCKS)
    if language == "sh" and "recipes/models/segmentation.py" in command
]


def block_with(word, language=""):
    (text,) = [text for each, text in BLOCKS if each == language and word in text]
    return text


def shape(line):
    """A line without its numbers, which differ between processors, and without the width of their columns."""
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d.e+-]*|\[\d\]", "#", line)).strip()


def test_the_first_recipe_passes_as_it_stands(project):
    project.write("onnx_recipes.py", block_with("def lstm", "python"))
    done = project.command("pytest", "--onnx-export")
    assert done.returncode == 0, done.stdout
    assert "9 cells: 9 passed" in done.stdout


@pytest.mark.parametrize("page", ["sequences", "containers"])
def test_the_decoder_in_a_page_passes_as_it_stands(project, page):
    page = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    project.write("onnx_recipes.py", recipe)
    done = project.command("pytest", "--onnx-export", "--onnx-opsets=13")
    assert done.returncode == 0, done.stdout


def test_the_wrong_model_fails_with_the_words_that_the_readme_shows(project):
    project.write("onnx_recipes.py", block_with("class Total", "python"))
    done = project.command("pytest", "--onnx-export", "--onnx-opsets=13")
    assert done.returncode == 1
    printed = [shape(line) for line in done.stdout.splitlines()]
    shown = [shape(line) for line in block_with("baked-value").splitlines()]
    assert [line for line in shown if line not in printed] == []


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_the_library_shows_what_the_readme_says_is_caught(exporter):
    ((command, output),) = [each for each in CATCHES if ("--exporters=dynamo" in each[0]) == (exporter == "dynamo")]
    done = subprocess.run(
        # The script, not "python -m onnx_ci": that would put the checkout's onnx_ci before the installed one.
        [str(Path(sys.executable).with_name("onnx-ci")), *shlex.split(command), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == (exporter == "dynamo"), done.stdout + done.stderr
    printed = {shape(line) for line in done.stdout.splitlines()}
    assert [line for line in map(shape, output.splitlines()) if line != "…" and line not in printed] == []


def test_the_settings_are_accepted(project):
    from onnx_ci.config.settings import load_settings

    project.write("pyproject.toml", block_with("[tool.onnx-ci]", "toml"))
    assert load_settings(project.root, environment={}).max_drift == 8


def test_the_commands_are_environments_of_tox():
    commands = re.findall(r"pip install tox && tox run -e (\w+)", README)
    sections = re.findall(r"^\[testenv:(\w+)", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands == ["recipes", "tests"]
    assert set(commands) <= set(sections)


def section(title):
    """The blocks of YAML in a section, read."""
    (text,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


SCALE = ROOT / "tests" / "github" / "projects" / "passing"


@pytest.mark.slow
def test_the_workflow_to_paste_is_a_whole_gate(tmp_path):
    workflow, _ = section("In GitHub Actions")
    (job,) = workflow["jobs"].values()
    name = re.fullmatch(r"OWNER/onnx-ci/(.+)@REF", job["uses"])[1]
    assert (ROOT / name).is_file()
    assert job["permissions"] == {"contents": "read"}
    assert job["with"]["opsets"] == "9-17"
    call = Call(tmp_path, SCALE, {**job["with"], "opsets": "9,17"})  # each opset is a job of its own
    assert [*call.jobs] == ["plan", "opset9-cpu", "opset17-cpu", "report"]
    assert call.outputs == {"verdict": "passed", "failed": "0"}
    assert "2 cells: 2 passed" in call.jobs["report"].log


def test_the_step_to_paste_is_a_gate(tmp_path):
    _, steps = section("In GitHub Actions")
    step = steps[-1]
    assert step["uses"] == "OWNER/onnx-ci@REF"
    assert step["with"].keys() <= ACTION["inputs"].keys()
    job = Job(tmp_path)
    shutil.copytree(SCALE, job.checkout, dirs_exist_ok=True)
    ran = job.use(**step["with"])
    assert (ran.code, ran.outputs["verdict"]) == (0, "passed")
    assert "9 cells: 9 passed" in ran.log


def test_every_input_that_the_page_on_github_shows_is_one():
    page = (ROOT / "docs" / "github-actions.md").read_text(encoding="utf-8")
    shown = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]
    steps = [step for block in shown for job in block["jobs"].values() for step in job.get("steps", [])]
    ours = [step for step in steps if step.get("uses") == "OWNER/onnx-ci@REF"]
    assert len(ours) == 4
    for step in ours:
        assert step["with"].keys() <= ACTION["inputs"].keys()
