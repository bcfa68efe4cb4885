"""The README is run: its recipes as a reader would paste them, its commands, its output."""

from __future__ import annotations

import html
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from faults.test_faults import FAULTS
from toolbox.github_runner import ACTION, Job
from toolbox.projects import RIGHT

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [(language, text) for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]


def block_with(word, language=""):
    (text,) = [text for each, text in BLOCKS if each == language and word in text]
    return text


def shape(line):
    """A line without its numbers, which differ between processors, and without the width of their columns."""
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d.e+-]*|\[\d\]", "#", line)).strip()


MODELS = """
    import torch


    class Classifier(torch.nn.Sequential):
        def __init__(self):
            super().__init__(
                torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10),
            )


    if __name__ == "__main__":
        torch.save(Classifier().state_dict(), "classifier.pt")
"""


def test_it_is_short():
    assert len(README.split()) <= 900


def test_the_first_recipe_passes_as_it_stands(project):
    project.write("shop/models.py", MODELS)
    project.write("onnx_recipes.py", block_with("def classifier", "python"))
    assert project.command("shop.models").returncode == 0
    done = project.command("onnx_ci", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 cells: 5 passed" in done.stdout


def test_the_commands_for_pytest_are_accepted(project):
    project.recipes(RIGHT)
    for command in block_with("pytest --onnx-export", "sh").splitlines():
        words = shlex.split(command.replace("classifier", "right"), comments=True)
        done = project.command(*words, "--co", "-q")
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_pictures_show_what_a_run_prints(project):
    namespace = runpy.run_path(str(ROOT / "docs" / "failing_cell.py"), run_name="failing_cell")
    project.write("onnx_recipes.py", namespace["RECIPE"])
    done = project.command("onnx_ci", *namespace["COMMAND"], "-q")
    assert done.returncode == 1
    printed = [shape(line) for line in done.stdout.splitlines() if line.strip()]
    for theme in ("light", "dark"):
        picture = (ROOT / "docs" / "images" / f"failing-cell-{theme}.svg").read_text(encoding="utf-8")
        drawn = html.unescape(re.sub(r"<[^>]+>", "", picture[picture.index("</defs>") :])).replace("\xa0", " ")
        missing = [line for line in printed if shape(line).replace(" ", "") not in shape(drawn).replace(" ", "")]
        assert [line for line in missing if not line.startswith(("repeat with", "try remedies"))] == []


def test_the_table_counts_the_faults_of_the_tests():
    rows = re.findall(r"^\| ([^|*]+?) \| (\d+) \| .* \| (\d+) \|$", README, re.MULTILINE)
    assert sum(int(count) for _, count, _ in rows) == len(FAULTS)
    assert [found for _, _, found in rows] == [count for _, count, _ in rows]


def test_the_commands_are_environments_of_tox():
    commands = re.findall(r"pip install tox && tox run -e (\w+)", README)
    sections = re.findall(r"^\[testenv:(\w+)", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands == ["recipes", "tests"]
    assert set(commands) <= set(sections)


def section(title):
    """The blocks of YAML in a section, read."""
    (text,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


SCALE = ROOT / "tests" / "e2e" / "github" / "projects" / "passing"


@pytest.mark.slow
def test_the_step_to_paste_is_a_gate(tmp_path):
    (steps,) = section("In GitHub Actions")
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
