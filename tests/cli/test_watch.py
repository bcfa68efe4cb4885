"""``onnx-ci run --watch``: an edit runs the cells again that it touches, Ctrl-C ends with the exit code of the last run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from toolbox.projects import RIGHT, TINY

from onnx_ci.cli.watch import edited

SLOW_MACHINE = 240


def test_the_python_files_of_a_project_are_watched(project):
    for name in (
        "a.py",
        "sub/b.py",
        "pyproject.toml",
        "notes.md",
        ".hidden/c.py",
        "venv/pyvenv.cfg",
        "venv/d.py",
        "__pycache__/e.py",
    ):
        project.write(name, "")
    names = {path.relative_to(project.root).as_posix() for path in edited(project.root)}
    assert names == {"a.py", "sub/b.py", "pyproject.toml"}


class Watching:
    """A process that watches, with the lines that it has printed."""

    def __init__(self, project, *flags):
        command = [sys.executable, "-m", "onnx_ci", "run", "--watch", *flags]
        self.lines = []
        self.process = subprocess.Popen(
            command, cwd=project.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self._reader.start()

    def until_watching(self):
        """The lines of the next run, once it has ended."""
        end = time.monotonic() + SLOW_MACHINE
        while not any("Ctrl-C ends" in line for line in self.lines):
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < end, self.lines
            time.sleep(0.05)
        lines, self.lines[:] = list(self.lines), []
        return "".join(lines)

    def interrupt(self):
        """Its exit code on Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(SLOW_MACHINE)
        self._reader.join()
        self.process.stdout.close()
        return code


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process")
def test_an_edit_runs_what_it_touches_again(project):
    project.recipes(RIGHT, name="exports/right.py")
    other = project.recipes(RIGHT.replace("def right", "def other"), name="exports/other.py")
    watching = Watching(project, "--opsets=13", "--cache=verdicts", "--recipe-files=exports/*.py")
    try:
        first = watching.until_watching()
        assert "2 cells: 2 passed in" in first
        assert "onnx-ci: watching 2 files below " in first
        project.write("notes.md", "not Python")
        other.write_text(
            other.read_text().replace("torch.relu(x * self.weight)", "torch.relu(x * self.weight.abs().max().item())")
        )
        second = watching.until_watching()
        assert second.startswith("onnx-ci: exports/other.py changed\n")
        assert re.search(r"right::opset13-cpu passed \(drift .*; cached\)", second)
        assert not re.search(r"other::opset13-cpu .*cached", second)
        other.write_text(TINY + "\nraise ValueError\n")
        assert "exports/other.py: cannot be imported" in watching.until_watching()
    finally:
        code = watching.interrupt()
    assert code == 2
