"""Install onnx-ci into the caller's Python. The installed torch and ONNX Runtime are never replaced."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from onnx_ci.environment.versions import RUNTIME_DISTRIBUTIONS
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.github import runner
from onnx_ci.github.inputs import Inputs, project

_ORDINARY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")
"""A package name and version that pip accepts as a constraint."""
_NOT_PINNED = frozenset({"onnx-ci", "pip", "setuptools", "wheel"})
_NEEDED_TO_MERGE = ("click", "jinja2", "psutil")
"""The dependencies that merging reports needs."""
_NEVER_CHANGED = frozenset({"torch", *RUNTIME_DISTRIBUTIONS})


def install(inputs: Inputs) -> None:
    """Install onnx-ci according to the input ``install``. Raises :class:`EnvironmentLacksError` if it cannot run."""
    if not inputs.install:
        with runner.group("Look for onnx-ci"):
            trial = runner.run([sys.executable, "-P", "-c", "import onnx_ci.cli.main"])
        if trial.code:
            raise EnvironmentLacksError(
                f"onnx-ci cannot be imported ({trial.message}), and the input 'install' is false; set it to true"
            )
        return
    pins = installed()
    with runner.group("Install onnx-ci"):
        if _pip(pins, _requirements(inputs)):
            # The caller's packages may already conflict with each other; let pip resolve that.
            if _pip([pin for pin in pins if pin.partition("==")[0] in _NEVER_CHANGED], _requirements(inputs)):
                raise EnvironmentLacksError(
                    "pip cannot install onnx-ci alongside the installed torch and ONNX Runtime; the log shows why. "
                    "Install onnx-ci in your own step and set the input 'install' to false"
                )
            if changed := set(pins) - set(installed()):
                runner.annotate("warning", f"To install onnx-ci, pip replaced {', '.join(sorted(changed))}")
        # It only formats messages to GitHub, so the gate works without it if it conflicts with the caller's packages.
        if inputs.mode != "report" and _pip(installed(), project(os.environ)["optional-dependencies"]["github"]):
            print("github-action-toolkit is not used: it cannot be installed alongside the installed packages")


def installed() -> list[str]:
    """The version of every installed package as a constraint for pip, without onnx-ci and the packaging tools."""
    pins: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.name).lower()
        pin = f"{name}=={distribution.version}"
        if name not in _NOT_PINNED and _ORDINARY.fullmatch(pin):
            pins.setdefault(name, pin)
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
        dependencies = [each for each in project(os.environ)["dependencies"] if each.startswith(_NEEDED_TO_MERGE)]
        return ["--no-deps", f"onnx-ci @ {action}", *dependencies, "markupsafe"]  # jinja2 needs markupsafe
    extras = inputs.extras
    if not extras and importlib.util.find_spec("onnxruntime") is None:
        extras = ("cuda" if any("cuda" in flag for flag in inputs.settings) else "cpu",)
    brackets = f"[{','.join(extras)}]" if extras else ""
    return [f"onnx-ci{brackets} @ {action}"]
