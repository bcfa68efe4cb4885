"""The README is run: its recipes as a reader would paste them, its commands, its output."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [(language, text) for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]


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


def test_the_wrong_model_fails_with_the_words_that_the_readme_shows(project):
    project.write("onnx_recipes.py", block_with("class Total", "python"))
    done = project.command("pytest", "--onnx-export", "--onnx-opsets=13")
    assert done.returncode == 1
    printed = [shape(line) for line in done.stdout.splitlines()]
    shown = [shape(line) for line in block_with("baked-value").splitlines()]
    assert [line for line in shown if line not in printed] == []


def test_the_settings_are_accepted(project):
    from onnx_ci.config import load_settings

    project.write("pyproject.toml", block_with("[tool.onnx-ci]", "toml"))
    assert load_settings(project.root, environment={}).drift == 8


def test_the_commands_are_environments_of_tox():
    commands = re.findall(r"pip install tox && tox run -e (\w+)", README)
    sections = re.findall(r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands == ["recipes", "tests"]
    assert set(commands) <= set(sections)
