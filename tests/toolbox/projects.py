"""Scratch projects with recipes of their own, and the git repositories around them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from click.testing import CliRunner
from toolbox import warm_python

import onnx_ci
from onnx_ci.cli.main import main

ROOT = Path(__file__).parent.parent.parent

TINY = """
    import torch
    import onnx_ci

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))

        def forward(self, x):
            return torch.relu(x * self.weight)
"""
"""The head of a recipe file with a model that exports in milliseconds."""

RIGHT = """
    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
    def right():
        return Scale(), (torch.randn(3, 4),)
"""
"""A recipe that passes everywhere."""

FROZEN = """
    class Total(torch.nn.Module):
        def forward(self, x):
            total = torch.zeros(4)
            for i in range(x.shape[0]):
                total = total + x[i]
            return total

    @onnx_ci.recipe(input_names=["x"], output_names=["total"], dynamic_axes={"x": {0: "rows"}})
    def total():
        return Total(), (torch.randn(3, 4),)
"""
"""A recipe that is right on its example and wrong at any other number of rows."""


class Project:
    """A scratch project with recipes of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, *parts: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(textwrap.dedent(part) for part in parts), encoding="utf-8")
        return path

    def recipes(self, *parts: str, name: str = "onnx_recipes.py") -> Path:
        """A recipe file that begins with :data:`TINY`."""
        return self.write(name, TINY, *parts)

    def command(self, *words: str, is_fresh: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``python -m …`` in a process of its own.

        Args:
            is_fresh: start Python itself, instead of forking a process that has imported torch; see
                :mod:`toolbox.warm_python`.
        """
        return self.run(sys.executable if is_fresh else warm_python.executable(), "-m", *words, **environment)

    def in_process(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``onnx-ci`` in this process: for what imports no recipe file."""
        with contextlib.chdir(self.root):
            done = CliRunner().invoke(main, words, env=environment)
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program in a process of its own."""
        return subprocess.run(
            words,
            cwd=self.root,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


class Repository:
    """A scratch project in a git repository of its own, without the settings of the user who runs the tests."""

    def __init__(self, project: Project, home: Path) -> None:
        self.project = project
        self.environment = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
        for role in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{role}_NAME": "a@b.c", f"GIT_{role}_EMAIL": "a@b.c"}
            self.environment[f"GIT_{role}_DATE"] = "2026-01-02T03:04:05Z"
        self.git("init", "--quiet", "--initial-branch=trunk")

    def git(self, *words: str) -> str:
        """What ``git WORDS`` prints."""
        done = self.project.run("git", *words, **self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit_all(self, subject: str) -> None:
        """Commit all files, even if none has changed."""
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", f"--message={subject}")


def on_path(folder: Path) -> dict[str, str]:
    """A PATH on which ``onnx-ci`` is the one under test, wherever a tool's own environment would look for another."""
    script = folder / "onnx-ci"
    folder.mkdir(parents=True, exist_ok=True)
    package = Path(onnx_ci.__file__).parent.parent
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(package)!r})\n"
        "from onnx_ci.cli.main import main\nmain(prog_name='onnx-ci')\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return {"PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])}
