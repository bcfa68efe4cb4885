"""What the tests share: recipes written into scratch projects, and pytest run in them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import onnx_ci

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent

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


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own ONNX_CI_* variables, an outer CI's files, and verdicts of other runs must not reach the tests."""
    for name in list(os.environ):
        if name.startswith(("ONNX_CI_", "GITHUB_", "INPUT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ONNX_CI_CACHE", "off")


@pytest.fixture(autouse=True)
def same_random_numbers_each_time() -> None:
    """Tests draw inputs; no test may pass or fail by chance, or by the order of the tests."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty scratch project, which is the current directory."""
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


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

    def command(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``python -m …`` in a process of its own."""
        return self.run(sys.executable, "-m", *words, **environment)

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
    """A scratch project in a git repository of its own, without the settings of whoever runs the tests."""

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
        "from onnx_ci.cli import main\nmain(prog_name='onnx-ci')\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return {"PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])}


@pytest.fixture
def run_cells(project: Project) -> Callable[..., object]:
    """Run every recipe of the project through the engine and give the report."""
    from onnx_ci.config import load_settings
    from onnx_ci.discovery import discover
    from onnx_ci.engine import Engine
    from onnx_ci.matrix import plan

    def run(**options: object) -> onnx_ci.RunReport:
        settings = load_settings(project.root, flags={"opsets": "13", **options})
        catalogue = discover(settings)
        with Engine(settings) as engine:
            cells = tuple(engine.run(plan(catalogue.recipes.values(), settings).cells))
        return onnx_ci.RunReport(environment={}, settings={}, cells=cells, problems=tuple(catalogue.problems))

    return run
