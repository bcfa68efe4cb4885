"""What the gate needs of Unix it does without elsewhere: without forks, everything runs in one process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from toolbox.projects import RIGHT

SCRIPT = Path(__file__).with_name("without_unix.py")
COMMANDS = [
    "run --opsets=13 --report=r.json --artifacts=kept",
    "list",
    "show right::opset13-cpu",
    "check kept/right/opset13-cpu.onnx",
    "compare kept/right/opset13-cpu.onnx kept/right/opset13-cpu.onnx",
    "verify kept/right/opset13-cpu.onnx --recipe=right",
    "why right::opset13-cpu",
    "report r.json --html=page.html",
    "baseline update --opsets=13",
    "run --opsets=13 --baseline=check",
    "matrix --opsets=13",
    "init",
]


def test_the_commands_work_without_what_only_unix_has(project):
    project.recipes(RIGHT)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *COMMANDS], cwd=project.root, capture_output=True, text=True, timeout=300, check=False
    )
    codes = re.findall(r"^exit code of (\w+): (\d+)$", done.stdout, flags=re.MULTILINE)
    assert codes == [(each.split()[0], "0") for each in COMMANDS], done.stdout + done.stderr
    assert json.loads((project.root / "r.json").read_text())["summary"]["verdict"] == "passed"
