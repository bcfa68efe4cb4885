"""Which files belong to libraries, which count by version, and which to the project, which count by content."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnx_ci

FILES = {
    "helpers/__init__.py": True,
    "helpers/inner/more.py": True,
    "alone.py": True,
    "own.py": False,
    "helpers_of_mine/__init__.py": False,
}
"""Modules, and whether they were installed."""
ASK = "import sys; from onnx_ci.owners import is_installed; print(*map(is_installed, sys.argv[1:]))"


@pytest.fixture
def folder(tmp_path):
    """A folder on the path into which a distribution was installed, beside a module of the project."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    (tmp_path / "helpers-1.0.dist-info").mkdir()
    record = "helpers/__init__.py,sha256=x,0\nhelpers/inner/more.py,,\nalone.py,,\n../bin/helper,,\n__pycache__/alone.pyc,,\n"
    (tmp_path / "helpers-1.0.dist-info" / "RECORD").write_text(record)
    return tmp_path


@pytest.mark.parametrize("is_current", [False, True], ids=["on the path", "the current folder"])
def test_what_was_installed_into_a_folder_on_the_path_is_a_library(folder, is_current):
    path = os.pathsep.join([str(Path(onnx_ci.__file__).parents[1]), *([] if is_current else [str(folder)])])
    done = subprocess.run(
        [sys.executable, "-c", ASK, *(str(folder / file) for file in FILES)], cwd=folder if is_current else None,
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(installed) for installed in FILES.values()]
