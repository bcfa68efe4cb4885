"""What ``pytest --onnx-export`` collects where the project configures pytest, and how its coverage is measured."""

from __future__ import annotations

import re
import shlex

import pytest
from toolbox import warm_python
from toolbox.projects import FROZEN, RIGHT

MANUAL = RIGHT.replace("def right", "def on_request").replace("@onnx_ci.recipe(", "@onnx_ci.recipe(manual='slow', ")
TEST = "\n\ndef test_in_a_recipe_file():\n    raise AssertionError\n"


@pytest.fixture
def run(project):
    def run(*arguments, **how):
        return project.command("pytest", "-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=13", *arguments, **how)

    return run


def summary(done):
    return re.findall(r"(\d+) (passed|failed|skipped)", done.stdout.splitlines()[-1])


@pytest.mark.parametrize("workers", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)], ids=["one-process", "workers"])
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


@pytest.mark.parametrize("workers", [[], pytest.param(["-n", "1"], marks=pytest.mark.slow)], ids=["one-process", "workers"])
def test_a_folder_with_neither_recipes_nor_tests_is_an_error_beside_others(project, run, workers):
    project.recipes(RIGHT, name="with/onnx_recipes.py")
    project.write("without/notes.txt", "")
    project.write("tests/test_own.py", "import pytest\npytest.skip('on a GPU only', allow_module_level=True)")
    assert (done := run("with", "tests", "-k", "right", *workers)).returncode == 0, done.stdout
    done = run("with", "without", *workers)
    assert (done.returncode, summary(done)) == (1, [("1", "failed"), ("1", "passed")])
    assert "without: no recipe was found there" in done.stdout
    project.write("without/onnx_recipes.py", "")
    assert run("with", "without").returncode == 1


def test_a_pattern_that_matches_nothing_is_an_error_where_the_whole_project_is_collected(project, run):
    project.recipes(RIGHT, name="with/onnx_recipes.py")
    chosen = '[tool.onnx-ci]\nrecipe-files = ["onnx_recipes.py", "export_*.py"]\n'
    project.write("pyproject.toml", f"{chosen}[tool.pytest.ini_options]\n")
    done = run()
    assert (done.returncode, summary(done)) == (1, [("1", "failed"), ("1", "passed")])
    assert "--recipe-files: 'export_*.py' matches no file with a recipe" in done.stdout
    assert run("with").returncode == 0
    words = shlex.join(
        [warm_python.executable(), "-m", "pytest", "-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=13"]
    )
    assert (done := project.run("sh", "-c", f"cd with && {words}")).returncode == 0, done.stdout
    project.recipes(RIGHT.replace("right", "other"), name="export_more.py")
    assert (done := run()).returncode == 0, done.stdout
    assert run("--ignore=export_more.py").returncode == 0


@pytest.mark.slow
def test_what_failed_last_is_checked_for_globs_that_name_nothing_too(project):
    project.recipes(RIGHT, name="with/onnx_recipes.py")
    project.recipes(FROZEN, name="other/onnx_recipes.py")
    command = ("pytest", "--onnx-export", "--onnx-opsets=13", "--lf")
    for _ in range(2):
        done = project.command(*command, "--onnx-select=right,misspelt")
        assert (done.returncode, "no cell matches 'misspelt'" in done.stdout) == (1, True), done.stdout
    assert project.command(*command, "--onnx-select=right,total").returncode == 1
    done = project.command(*command, "--onnx-select=right,total")
    assert (done.returncode, summary(done), "no cell matches" in done.stdout) == (1, [("1", "failed")], False), done.stdout


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
