"""onnx-ci works without the modules and functions that exist on Unix only; where it cannot fork, it spawns processes."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from toolbox.projects import RIGHT

FOLDER = Path(__file__).with_name("without_unix")
COMMANDS = [
    "run --opsets=13 --report=r.json --artifacts=kept",
    "list",
    "show right::opset13-cpu",
    "verify kept/right/opset13-cpu.onnx",
    "compare kept/right/opset13-cpu.onnx kept/right/opset13-cpu.onnx",
    "verify kept/right/opset13-cpu.onnx --recipe=right",
    "why right::opset13-cpu",
    "report r.json --html=page.html",
    "baseline update --opsets=13",
    "run --opsets=13 --baseline=check",
    "matrix --opsets=13",
    "init",
    "doctor",
]
CRASHES = """
    import os

    class Crashing(torch.nn.Module):
        def forward(self, x):
            if torch.jit.is_tracing():
                print("last words", flush=True)
                os._exit(3)
            return torch.relu(x)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def crashes():
        return Crashing(), (torch.randn(3, 4),)
"""


@pytest.fixture
def without_unix(project):
    """Runs commands, and gives their exit codes and what they print."""

    def run(*commands):
        path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
        temporary = project.root / "temporary"  # other runs know locks, and would remove the folders of these
        temporary.mkdir()
        done = project.run(sys.executable, str(FOLDER / "commands.py"), *commands, PYTHONPATH=path, TMPDIR=str(temporary))
        return re.findall(r"^exit code of (\w+): (\d+)$", done.stdout, flags=re.MULTILINE), done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_the_commands_work_without_what_only_unix_has(project, without_unix):
    project.recipes(RIGHT)
    codes, said = without_unix(*COMMANDS)
    assert codes == [(each.split()[0], "0") for each in COMMANDS], said
    report = json.loads((project.root / "r.json").read_text())
    assert report["summary"]["verdict"] == "passed"


@pytest.mark.slow
def test_a_crash_costs_its_own_cell_without_what_only_unix_has(project, without_unix):
    project.recipes(CRASHES, RIGHT)
    codes, said = without_unix("run --opsets=13 --report=r.json")
    assert codes == [("run", "1")], said
    cells = {each["recipe"]: each for each in json.loads((project.root / "r.json").read_text())["cells"]}
    assert cells["right"]["status"] == "passed"
    (found,) = cells["crashes"]["findings"]
    assert (found["rule"], found["message"]) == ("crash", "the process ended by itself with exit code 3 while exporting")
    assert "last words" in cells["crashes"]["log"]
