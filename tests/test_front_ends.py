"""Three doors, one gate: pytest, the command and the action report the same of one project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from github_runner import ROOT, Job

ELSEWHERE = ("report", "artifacts", "cache")
"""Settings that say where things go, which each front-end sets for itself."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The JSON reports of one project, by front-end."""
    job = Job(tmp_path_factory.mktemp("front-ends"))
    shutil.copytree(ROOT / "tests" / "action" / "failing", job.checkout, dirs_exist_ok=True)
    (job.checkout / "broken").mkdir()
    (job.checkout / "broken" / "onnx_recipes.py").write_text("import onnx_ci\n\nundefined\n")
    found = {}
    for name, words in {
        "pytest": ("pytest", "--onnx-export", "--onnx-opsets=13,18", "--onnx-drift=8", "--onnx-report=pytest.json"),
        "command": ("onnx_ci", "run", "--opsets=13,18", "--drift=8", "--report=command.json"),
    }.items():
        environment = {key: text for key, text in os.environ.items() if not key.startswith("ONNX_CI_")} | {
            "ONNX_CI_CACHE": "off"
        }
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=job.checkout, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stdout + done.stderr
        found[name] = json.loads((job.checkout / f"{name}.json").read_text())
    ran = job.use(opsets="13,18", args="--drift=8", cache="false")
    assert ran.code == 1
    found["action"] = json.loads(Path(ran.outputs["report"]).read_text())
    return found


def told(report):
    """A report without what may differ: times, where files lie, and by which flag a setting was given."""
    for each in report["cells"]:
        del each["timings"], each["artifact"]
    del report["summary"]["seconds"]
    report["settings"] = {
        name: {"value": each["value"], "from": each["from"].replace("--onnx-", "--")}
        for name, each in report["settings"].items()
        if name not in ELSEWHERE
    }
    return report


def test_they_report_the_same(reports):
    usual = told(reports["command"])
    assert {each["status"] for each in usual["cells"]} == {"passed", "failed"}
    assert len(usual["cells"]) == 4
    assert len(usual["problems"]) == 1
    assert told(reports["pytest"]) == usual
    assert told(reports["action"]) == usual
