"""A report as SARIF, written by the command."""

from __future__ import annotations

import json

import pytest
from toolbox.projects import FROZEN, TINY


def test_the_command_writes_it(project):
    project.write("onnx_recipes.py", "import nowhere")
    project.command("onnx_ci", "run", "--report=r.json")
    done = project.command("onnx_ci", "report", "r.json", "--sarif=-")
    (result,) = json.loads(done.stdout)["runs"][0]["results"]
    assert result["message"]["text"].startswith("onnx_recipes.py cannot be used")
    assert done.returncode == 2


@pytest.mark.parametrize("edit", ["", "# another line\n"], ids=["copy", "another"])
def test_the_line_of_an_installed_copy_is_that_of_the_source(project, tmp_path_factory, edit):
    packages = tmp_path_factory.mktemp("environment") / "site-packages"
    model, recipe = FROZEN.split("    @", maxsplit=1)
    copied = project.write("src/zoo/net.py", TINY, model)
    (packages / "zoo").mkdir(parents=True)
    (packages / "zoo" / "net.py").write_text(edit + copied.read_text())
    project.write("onnx_recipes.py", "import onnx_ci, torch\nfrom zoo.net import Total\n", f"    @{recipe}")
    project.command("onnx_ci", "run", "--opsets=17", "--report=r.json", PYTHONPATH=str(packages))
    done = project.command("onnx_ci", "report", "r.json", "--sarif=-")
    (result,) = json.loads(done.stdout)["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert (result["ruleId"], place) == ("baked-value", "onnx_recipes.py" if edit else "src/zoo/net.py")
