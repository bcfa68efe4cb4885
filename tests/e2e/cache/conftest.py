"""A small project whose cells are "run" by hand, for tests of what the cache answers."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cache.watch import ReadSet, Search, state_of
from onnx_ci.config.settings import load_settings
from onnx_ci.results.records import Cell, CellEvidence

FILES = {
    "pyproject.toml": "[tool.onnx-ci]\n",
    ".gitignore": "*.bin\n.onnx-ci-cache/\nlogs/\n",
    "onnx_recipes.py": "from model import net\n",
    "model.py": "SCALE = 1\n\n\ndef net():\n    import lazy\n",
    "lazy.py": "",
    "unrelated.py": "",
    "conf/net.yaml": "scale: 1\n",
    "README.md": "hello\n",
    "docs/page.html": "",
}
SOURCE = "onnx_recipes.py"


def cell(opset: int = 13, recipe: str = "net", source: str = SOURCE) -> Cell:
    return Cell(source=source, recipe=recipe, exporter="torchscript", opset=opset, device="cpu")


@dataclasses.dataclass
class TinyProject:
    """A project in git, and runs of it."""

    root: Path

    def write(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def git(self, *words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=self.root, check=True, capture_output=True)

    def open(self, **flags: object) -> VerdictCache:
        cache = VerdictCache.open(load_settings(self.root, flags={"cache": ".onnx-ci-cache", "isolation": "fork", **flags}))
        assert cache is not None
        return cache

    def seen(self, *files: Path | str, modules: Iterable[str] = (), **more: Any) -> ReadSet:
        """What a process saw that used the recipe file, the model, and these files, and asked for these modules."""
        paths = [str(self.root / name) for name in (SOURCE, "model.py", "lazy.py", *files)]
        search = Search(folders=(str(self.root),), names=("lazy", "model", *modules))
        return ReadSet(**{"files": {path: state_of(path) for path in paths}, "searches": (search,), **more})

    def run(
        self, seen: ReadSet | None = None, cells: Iterable[Cell] = (cell(),), model: str = "", **flags: object
    ) -> list[str]:
        """Run what has to run. Returns why it did, for each cell; an empty text for one from the cache."""
        cache = self.open(**flags)
        reasons = []
        for each in cells:
            verdict = cache.verdict(each)
            reasons.append(verdict if isinstance(verdict, str) else "")
            if isinstance(verdict, str):
                cache.keep(CellEvidence(cell=each), seen or self.seen(), model)
        cache.close()
        assert cache.notes == []
        return reasons

    def asked(self, **flags: object) -> str:
        """Why the cell has to run; empty if it does not. Nothing is kept."""
        cache = self.open(**flags)
        verdict = cache.verdict(cell())
        return verdict if isinstance(verdict, str) else ""

    def cloned(self, folder: Path) -> TinyProject:
        """Another clone, with the cache of this one, as a job of a CI system has it."""
        subprocess.run(["git", "clone", "-q", str(self.root), str(folder)], check=True, capture_output=True)
        shutil.copytree(self.root / ".onnx-ci-cache", folder / ".onnx-ci-cache")
        return TinyProject(folder)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    project = TinyProject(tmp_path / "project")
    for name, text in FILES.items():
        project.write(name, text)
    project.git("init", "-q")
    project.git("add", "--all")
    project.git("commit", "-q", "-m", "a")
    monkeypatch.chdir(project.root)
    return project


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed does not count: looking at it takes most of the time, and onnx-ci itself may be edited meanwhile."""
    monkeypatch.setattr("onnx_ci.cache.packages.Packages.digests", lambda _: {"torch": "2.13.0 abc"})


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are remembered at once, however young they are."""
    monkeypatch.setattr("onnx_ci.cache.folder.RACY_NS", 0)


def newer(path: Path) -> None:
    """Let all times of a file be new, as those of a restored copy are."""
    os.utime(path)
