"""What the documentation shows for tox, run by tox: only what it would download is left out."""

from __future__ import annotations

import configparser

import pytest
from toolbox.projects import RIGHT, ROOT, on_path

PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
SHOWN = PAGE.partition('```ini title="tox.ini"\n')[2].partition("```\n")[0]


def test_every_default_opset_has_its_environment(project):
    from onnx_ci.opsets import DEFAULT_OPSETS

    project.write("tox.ini", SHOWN)
    listed = project.command("tox", "config", "--core", "-e", "opset9,opset17", "-k", "commands")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    shown = configparser.ConfigParser(interpolation=None)
    shown.read_string(listed.stdout)
    assert shown["testenv:opset9"]["commands"] == "tox run -e onnx -- '--select=*::opset9-*'"
    names = project.command("tox", "list", "--no-desc", "-q").stdout.split()
    assert set(names) >= {"onnx", *(f"opset{opset}" for opset in DEFAULT_OPSETS)}


@pytest.mark.slow
def test_one_opset_runs_in_the_environment_of_all(project):
    project.recipes(RIGHT)
    project.write("tox.ini", SHOWN)
    environment = {
        **on_path(project.root / "bin"),
        # The packages are those of this Python: onnx-ci and tox are found outside of tox's environments.
        "TOX_OVERRIDE": ";".join(
            [
                *(f"testenv:{name}.deps=" for name in ("onnx", "opset13")),
                *(f"testenv:{name}.allowlist_externals=*" for name in ("onnx", "opset13")),
                *(f"testenv:{name}.pass_env+=TOX_OVERRIDE" for name in ("onnx", "opset13")),
                "testenv:onnx.skip_install=true",
            ]
        ),
    }
    done = project.command("tox", "run", "-e", "opset13", "--", "--max-drift=8", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "onnx_recipes.py::right::opset13-cpu passed" in done.stdout
    assert "1 cell: 1 passed" in done.stdout
    failed = project.command("tox", "run", "-e", "opset13", "--", "--max-drift=1e-9", **environment)
    assert (failed.returncode, "1 cell: 1 failed" in failed.stdout) == (1, True), failed.stdout
