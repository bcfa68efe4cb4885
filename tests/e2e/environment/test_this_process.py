"""What torch is told by variables."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
from toolbox.projects import RIGHT

import onnx_ci
from onnx_ci.environment.this_process import NVML_CHECK

COMMANDS = (["onnx_ci", "list"], ["pytest", "-p", "no:cacheprovider", "--onnx-export", "--collect-only", "-s"])
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", NVML_CHECK)


@pytest.fixture
def started(project):
    """What a command, in a Python of its own, prints on standard error, and with which variables it has torch imported."""

    def started(command, **variables):
        inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=project.root, env={**inherited, **variables},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    told = "import os, sys\nprint('spins:', os.environ.get('GOMP_SPINCOUNT'), file=sys.stderr)"
    project.recipes(RIGHT, told)  # imported in a process whose parent has imported torch with these variables
    project.write("conftest.py", "import torch\n")  # before the plugin knows of any recipe
    return started


@pytest.mark.skipif(sys.platform != "linux", reason="torch for other systems brings another OpenMP")
@pytest.mark.parametrize("command", [COMMANDS[0], pytest.param(COMMANDS[1], marks=pytest.mark.slow)], ids=["list", "pytest"])
@pytest.mark.parametrize(
    ("own", "spins"),
    [
        pytest.param({}, "1000", id="by default"),
        pytest.param({"GOMP_SPINCOUNT": "77"}, "77", id="with a number of the user's", marks=pytest.mark.slow),
        pytest.param({"OMP_WAIT_POLICY": "passive"}, "None", id="with a policy of the user's", marks=pytest.mark.slow),
    ],
)
def test_threads_of_torch_soon_sleep_unless_the_user_decides_otherwise(started, command, own, spins):
    assert re.findall(r"spins: (\w+)", started(command, **own)) == [spins]


def test_the_python_interface_sets_what_keeps_torchs_own_modules_from_using_a_gpu(monkeypatch):
    monkeypatch.delenv(NVML_CHECK, raising=False)

    @onnx_ci.recipe(input_names=["x"])
    def net():
        assert os.environ[NVML_CHECK] == "1"
        return torch.nn.ReLU(), (torch.randn(3),)

    (result,) = onnx_ci.run([net], opsets=13).cells
    assert (result.status, result.findings) == (onnx_ci.Status.PASSED, ())


@pytest.mark.slow
def test_recipe_files_may_ask_for_cuda_without_using_it(project):
    project.recipes(
        "import os\nASKED = os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK')",
        "@onnx_ci.recipe(name=f'asked_{ASKED}')\ndef net():\n    return torch.nn.ReLU(), (torch.randn(3),)",
    )
    for words in (("pytest", "-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=13"), ("onnx_ci", "run", "--opsets=13")):
        done = project.command(*words)
        assert (done.returncode, "asked_1 cpu" in done.stdout) == (0, True), done.stdout
        done = project.command(*words, PYTORCH_NVML_BASED_CUDA_CHECK="0")  # the user's own choice stands
        assert (done.returncode, "asked_0 cpu" in done.stdout) == (0, True), done.stdout
