"""What counts as a library, of which the version is enough, and what as a part of the project, of which every file counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnx_ci

ASK = "import sys; from onnx_ci.environment.libraries import is_installed; print(is_installed(sys.argv[1]))"


@pytest.mark.parametrize(
    ("beside", "installed"),
    [
        pytest.param(["helpers-1.0.dist-info"], True, id="pip install --target"),
        pytest.param([], False, id="a folder of modules"),
        pytest.param(["helpers.egg-info"], False, id="an editable installation"),
        pytest.param(["helpers-1.0.dist-info", "pyproject.toml"], False, id="a project that libraries are installed into"),
    ],
)
def test_a_folder_of_distributions_on_the_path_is_one_of_libraries(tmp_path, beside, installed):
    for name in ("helpers", *beside):
        (tmp_path / name).mkdir()
    path = os.pathsep.join([str(Path(onnx_ci.__file__).parents[1]), str(tmp_path)])
    command = [sys.executable, "-c", ASK, str(tmp_path / "helpers" / "__init__.py")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(installed)
