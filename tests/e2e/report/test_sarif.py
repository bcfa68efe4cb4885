"""A report as SARIF, written by the command."""

from __future__ import annotations

import json


def test_the_command_writes_it(project):
    project.write("onnx_recipes.py", "import nowhere")
    project.command("onnx_ci", "run", "--report=r.json")
    done = project.command("onnx_ci", "report", "r.json", "--sarif=-")
    (result,) = json.loads(done.stdout)["runs"][0]["results"]
    assert result["message"]["text"].startswith("onnx_recipes.py cannot be used")
    assert done.returncode == 2
