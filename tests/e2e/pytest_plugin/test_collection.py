"""What ``pytest --onnx-export`` collects where the project configures pytest, and how its coverage is measured."""

from __future__ import annotations

import re

import pytest
from toolbox.projects import RIGHT

MANUAL = RIGHT.replace("def right", "def on_request").replace("@onnx_ci.recipe(", "@onnx_ci.recipe(manual='slow', ")
TEST = "\n\ndef test_in_a_recipe_file():\n    raise AssertionError\n"


@pytest.fixture
def run(project):
    def run(*arguments, **how):
        return project.command("pytest", "-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=13", *arguments, **how)

    return run


def summary(done):
    return re.findall(r"(\d+) (passed|failed|skipped)", done.stdout.splitlines()[-1])


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one-process", "workers"])
def test_recipe_files_outside_of_testpaths_are_found(project, run, workers):
    project.write("pyproject.toml", '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    project.recipes(RIGHT, MANUAL, TEST)
    project.recipes(RIGHT.replace("right", "inside"), name="tests/onnx_recipes.py")
    project.write("tests/test_own.py", "def test_own(): ...")
    done = run("-v", *workers)
    assert (done.returncode, summary(done)) == (0, [("3", "passed")]), done.stdout
    assert {"right", "inside"} == set(re.findall(r"onnx_recipes\.py::(\w+)::opset13", done.stdout))


def test_a_folder_on_the_command_line_is_the_only_one(project, run):
    project.write("pyproject.toml", '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    project.recipes(RIGHT)
    project.write("tests/test_own.py", "def test_own(): ...")
    assert summary(run("tests")) == [("1", "passed")]


def test_without_a_recipe_the_command_that_writes_one_is_named(project, run):
    project.write("tests/test_own.py", "def test_own(): ...")
    done = run()
    assert f"no recipe was found below {project.root}" in done.stdout
    assert "onnx-ci init writes a first one" in done.stdout
    project.recipes(RIGHT)
    assert "no recipe was found in tests; " in run("tests").stdout


NET = """
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            return y + 1
"""
RECIPE = """
    import torch, onnx_ci
    from net import Net

    @onnx_ci.recipe(input_names=["x"])
    def net():
        return Net(), (torch.randn(3),)
"""
ADVICE = "coverage does not include the cells"


@pytest.mark.slow
def test_coverage_of_the_cells_is_measured_as_the_advice_says(project, run):
    project.write("net.py", NET)
    project.write("onnx_recipes.py", RECIPE)
    measured = "--cov=.", "--cov-report=term"

    def covered(done):
        return int(re.search(r"^net\.py .* (\d+)%$", done.stdout, re.MULTILINE)[1])

    done = run(*measured, is_fresh=True)
    (advice,) = [line for line in done.stdout.splitlines() if ADVICE in line]
    assert covered(done) < 100
    setting, table = re.search(r"set (.*) in (\[.*\])$", advice).groups()
    project.write("pyproject.toml", table, setting)
    done = run(*measured, "--onnx-cache=verdicts", is_fresh=True)
    assert (covered(done), "does not include" in done.stdout) == (100, False)
    done = run(*measured, "--onnx-cache=verdicts", is_fresh=True)
    assert "coverage does not include 1 cell from the cache: add --no-onnx-cache" in done.stdout
    assert "coverage does" not in run().stdout
    done = run(*measured, "--onnx-isolation=spawn", is_fresh=True)
    (advice,) = [line for line in done.stdout.splitlines() if ADVICE in line]
    flag = advice.partition(": add ")[2]
    assert covered(run(*measured, flag, is_fresh=True)) == 100
