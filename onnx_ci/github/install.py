"""Put onnx-ci into the caller's Python, beside what is there: nothing that is installed is replaced, torch least of all."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from onnx_ci.github import runner
from onnx_ci.github.inputs import Inputs, project

_ORDINARY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")
"""What pip takes for the name and version of a package."""


def install(inputs: Inputs) -> str | None:
    """Install onnx-ci as the input ``install`` says.

    Returns:
        What is wrong and what to do, if there is no onnx-ci to run now.
    """
    if not inputs.install:
        with runner.group("Look for onnx-ci"):
            found = runner.run([sys.executable, "-P", "-c", "import onnx_ci.cli"])
        why = f"onnx-ci cannot be imported ({found.message}), and the input 'install' is false; set it to true"
        return why if found.code else None
    with runner.group("Install onnx-ci"), tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("".join(f"{each}\n" for each in installed()), encoding="utf-8")
        pip = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--constraint", str(constraints)]
        ended = runner.run([*pip, *_requirements(inputs)])
        if ended.code:
            return (
                "pip cannot install onnx-ci beside what is installed here, none of which it may change; the log says why. "
                "Install onnx-ci in a step of your own and set the input 'install' to false"
            )
        # It only words what is said to GitHub, so the gate does without it where it does not fit the caller's packages.
        if runner.run([*pip, *project(os.environ)["optional-dependencies"]["github"]]).code:
            print("github-action-toolkit is left out: it cannot be installed beside what is installed here")
    return None


def installed() -> list[str]:
    """Every package that is installed, but onnx-ci, as a constraint that keeps it as it is."""
    pins: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        pin = f"{each.name}=={each.version}"
        if _ORDINARY.fullmatch(pin):
            pins.setdefault(re.sub(r"[-_.]+", "-", each.name).lower(), pin)
    pins.pop("onnx-ci", None)
    return sorted(pins.values())


def _requirements(inputs: Inputs) -> Sequence[str]:
    action = Path(os.environ["GITHUB_ACTION_PATH"]).absolute().as_uri()
    if inputs.mode == "report":  # merging reports needs neither torch nor a runtime
        return ["--no-deps", f"onnx-ci @ {action}", *(each for each in project(os.environ)["dependencies"] if "click" in each)]
    extras = inputs.extras
    if not extras and importlib.util.find_spec("onnxruntime") is None:
        extras = ("cuda" if any("cuda" in flag for flag in inputs.settings) else "cpu",)
    return [f"onnx-ci[{','.join(extras)}] @ {action}"]
