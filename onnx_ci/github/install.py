"""Put onnx-ci into the caller's Python, beside what is there. Torch and ONNX Runtime are never replaced."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from onnx_ci.environment import RUNTIME_DISTRIBUTIONS
from onnx_ci.github import runner
from onnx_ci.github.inputs import Inputs, project

_ORDINARY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")
"""What pip takes for the name and version of a package."""
_NOT_KEPT = frozenset({"onnx-ci", "pip", "setuptools", "wheel"})
_NEVER_CHANGED = frozenset({"torch", *RUNTIME_DISTRIBUTIONS})


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
    here = installed()
    with runner.group("Install onnx-ci"):
        if _pip(here, _requirements(inputs)):
            # Packages that do not fit each other can be an old quarrel of the caller's, which pip settles as it can.
            if _pip([pin for pin in here if pin.partition("==")[0] in _NEVER_CHANGED], _requirements(inputs)):
                return (
                    "pip cannot install onnx-ci beside the torch and the ONNX Runtime that are here; the log says why. "
                    "Install onnx-ci in a step of your own and set the input 'install' to false"
                )
            if changed := set(here) - set(installed()):
                runner.annotate("warning", f"To install onnx-ci, pip has replaced {', '.join(sorted(changed))}")
        # It only words what is said to GitHub, so the gate does without it where it does not fit the caller's packages.
        if inputs.mode != "report" and _pip(installed(), project(os.environ)["optional-dependencies"]["github"]):
            print("github-action-toolkit is left out: it cannot be installed beside what is installed here")
    return None


def installed() -> list[str]:
    """Every package that is installed, but onnx-ci and what installs packages, as a constraint that keeps it as it is."""
    pins: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", each.name).lower()
        if name not in _NOT_KEPT and _ORDINARY.fullmatch(f"{name}=={each.version}"):
            pins.setdefault(name, f"{name}=={each.version}")
    return sorted(pins.values())


def _pip(pins: Iterable[str], requirements: Iterable[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
        pip = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--constraint", str(constraints)]
        return runner.run([*pip, *requirements]).code


def _requirements(inputs: Inputs) -> list[str]:
    action = Path(os.environ["GITHUB_ACTION_PATH"]).absolute().as_uri()
    if inputs.mode == "report":  # merging reports needs neither torch nor a runtime
        return ["--no-deps", f"onnx-ci @ {action}", *(each for each in project(os.environ)["dependencies"] if "click" in each)]
    extras = inputs.extras
    if not extras and importlib.util.find_spec("onnxruntime") is None:
        extras = ("cuda" if any("cuda" in flag for flag in inputs.settings) else "cpu",)
    named = f"[{','.join(extras)}]" if extras else ""
    return [f"onnx-ci{named} @ {action}"]
