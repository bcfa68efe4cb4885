"""The folders that recipe files import the project's modules from."""

from __future__ import annotations

import sys

import pytest
from toolbox.discovered import discover

from onnx_ci.config.settings import load_settings

RECIPE = """
import onnx_ci
import ours_in_src

@onnx_ci.recipe
def net(): ...
"""
CONFIGURATIONS = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]',
    "pytest.ini": "[pytest]\npythonpath = src",
    "tox.ini": "[tox]\n[pytest]\npythonpath =\n  lib\n  src",
    "setup.cfg": "[tool:pytest]\npythonpath = src",
    "pytest.toml": '[pytest]\npythonpath = ["src"]',
}


@pytest.fixture
def find(project, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    project.write("src/ours_in_src/__init__.py", "")
    project.write("onnx_recipes.py", RECIPE)
    yield lambda: discover(load_settings(project.root, environment={}))
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("file", CONFIGURATIONS)
def test_the_folders_that_pytest_is_configured_to_use_are_on_the_path(find, project, file):
    project.write(file, CONFIGURATIONS[file])
    found = find()
    assert (list(found.recipes), found.problems) == (["net"], [])


@pytest.mark.parametrize("content", ["", "[tool.pytest.ini_options]\npythonpath = 3", "[tool.black]"])
def test_without_them_the_message_says_how_to_install_the_project(find, project, content):
    project.write("pyproject.toml", content)
    (problem,) = find().problems
    assert problem.message.startswith("cannot be imported: ModuleNotFoundError: No module named 'ours_in_src'")
    assert 'src/ours_in_src is not installed: run pip install -e ., or set pythonpath = ["src"]' in problem.message


def test_the_first_file_with_a_configuration_counts(find, project):
    project.write("pytest.ini", "[pytest]")
    project.write("tox.ini", "[pytest]\npythonpath = src")
    assert len(find().problems) == 1
