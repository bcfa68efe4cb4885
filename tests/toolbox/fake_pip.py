"""The inputs of the action, and a pip that its installation starts."""

from __future__ import annotations

import sys
from pathlib import Path

from toolbox.github_runner import ROOT

from onnx_ci.github import runner
from onnx_ci.github.inputs import read_inputs


def inputs(**given):
    environment = {f"INPUT_{name.upper()}": text for name, text in given.items()}
    return read_inputs({"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_WORKSPACE": str(ROOT), **environment})


def replace_pip(monkeypatch):
    """pip, which fails as often as it is told; gives what it was asked for, and the names of what it was to keep."""
    asked = []

    def run(command, **more):
        assert command[:5] == [sys.executable, "-P", "-m", "pip", "install"]
        pins = Path(command[command.index("--constraint") + 1]).read_text().splitlines()
        asked.append((command[command.index("--constraint") + 2 :], {pin.partition("==")[0] for pin in pins}))
        return runner.Ended(code=int(len(asked) <= run.failures), last_lines=())

    run.failures = 0
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setenv("GITHUB_ACTION_PATH", str(ROOT))
    return run, asked
