"""``onnx-ci run --watch``: run again whenever a Python file of the project changes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from onnx_ci.text import count, one_line

FLAG = "--watch"
_SECONDS = 0.5
"""Between two looks at the files."""
_NOT_OF_A_PROJECT = frozenset({"__pycache__", "node_modules", "site-packages"})


def watch(root: Path) -> int:
    """Run this command without ``--watch``, and again after each edit, until Ctrl-C.

    Each run is a process of its own: Python keeps modules that it has imported, and the cache takes only what is newer than
    the code of the process. What an edit does not touch comes from the cache.

    Args:
        root: the project's root.

    Returns:
        The exit code of the last run.
    """
    command = [sys.executable, *(word for word in sys.orig_argv[1:] if word != FLAG)]
    while True:
        before = edited(root)
        with subprocess.Popen(command) as process:
            try:
                process.wait()
                click.echo(one_line(f"onnx-ci: watching {count(len(before), 'file')} below {root}; Ctrl-C ends"), err=True)
                changed = _next_change(root, before)
            except KeyboardInterrupt:
                return process.wait()  # the run receives Ctrl-C, too, and still writes its report
        for path in changed:
            click.echo(one_line(f"onnx-ci: {path} changed"), err=True)


def _next_change(root: Path, before: Mapping[Path, float]) -> list[Path]:
    """Wait until files differ from ``before`` and no more change, and return them, relative to ``root``."""
    now = edited(root)
    while now == before:
        time.sleep(_SECONDS)
        now = edited(root)
    while True:  # editors and git write several files, one after another
        time.sleep(_SECONDS)
        then, now = now, edited(root)
        if then == now:
            break
    return sorted(path.relative_to(root) for path in before.keys() | now.keys() if before.get(path) != now.get(path))


def edited(root: Path) -> dict[Path, float]:
    """When each Python file of a project, and its ``pyproject.toml``, was last edited."""
    found = {}
    for path in _files(root):
        with contextlib.suppress(OSError):  # removed meanwhile
            found[path] = path.stat().st_mtime
    return found


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _NOT_OF_A_PROJECT and not Path(folder, name, "pyvenv.cfg").is_file()
        ]
        yield from (Path(folder, name) for name in files if name.endswith(".py") or name == "pyproject.toml")
