"""``python -m …`` in a new process without its imports: forked from one that has imported torch and the exporters already.

Most tests of the command and the plugin start a process, and torch takes longer to import than their cells take to run. A
fork of a process that did nothing but import is such a process, ready at once: it has descriptors, a working directory, an
environment and signals of its own. What depends on a process that began after its files were written (the verdict cache),
on what is imported, or on how Python was started needs a fresh one.

The process that is forked from is ``warm_python_server.py``.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_SERVER = Path(__file__).with_name("warm_python_server.py")


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a forked process can have this environment: Python reads some variables only as it starts."""
    read_at_start = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "LD_", "TORCH", "CUDA_")
    return sys.platform == "linux" and all(
        environment.get(name) == os.environ.get(name) for name in {*environment, *os.environ} if name.startswith(read_at_start)
    )


def run(words: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """``python -m WORDS`` in a fork.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it is killed.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        files = [f"/proc/{os.getpid()}/fd/{each.fileno()}" for each in (out, err)]
        request = {"words": list(words), "cwd": str(cwd), "env": dict(environment), "files": files, "timeout": timeout}
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        texts = []
        for each in (out, err):
            each.seek(0)
            texts.append(each.read())
    if answer["code"] is None:
        raise subprocess.TimeoutExpired(list(words), timeout, *texts)
    return subprocess.CompletedProcess(["python", "-m", *words], answer["code"], *texts)


@functools.cache
def _server() -> subprocess.Popen[str]:
    started = subprocess.Popen([sys.executable, str(_SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(_stop, started)
    return started


def _stop(server: subprocess.Popen[str]) -> None:
    with server:  # closes its pipes, and waits for its end
        server.kill()
