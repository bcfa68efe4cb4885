"""A process that has imported torch and the exporters, and forks itself for each request; see ``warm_python.py``.

It reads requests as lines of JSON and answers with exit codes. It is a script: nothing imports it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

_IMPORTED = (
    "click",
    "onnx",
    "onnxruntime",
    "onnxscript.function_libs.torch_lib.ops",
    "pytest",
    "torch.export",
    "torch.onnx._internal.exporter._core",
    "torch.onnx._internal.exporter._registration",
    "torch.onnx._internal.torchscript_exporter.utils",
    *(f"torch.onnx._internal.torchscript_exporter.symbolic_opset{opset}" for opset in range(7, 24)),
)
"""Libraries only: of onnx-ci itself every process imports its own."""


def _serve() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _IMPORTED:
            with contextlib.suppress(ImportError):  # another version of torch has other modules
                importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in sys.stdin:
        request = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of forks beside threads
            child = os.fork()
        if not child:
            _live(request)
        answers.write(json.dumps({"code": _code_of(child, request["timeout"])}) + "\n")
        answers.flush()


def _code_of(child: int, timeout: float) -> int | None:
    """The exit code of a child, as :mod:`subprocess` gives it, or ``None`` if it had to be killed."""
    end = time.monotonic() + timeout
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.005)


def _live(request: Mapping[str, Any]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, file in zip((1, 2), request["files"], strict=True):
            os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), descriptor)
        sys.stdin, sys.stdout, sys.stderr = (
            open(0, closefd=False, encoding="utf-8"),  # noqa: SIM115 - they live as long as the process
            open(1, "w", closefd=False, encoding="utf-8"),  # noqa: SIM115
            open(2, "w", closefd=False, encoding="utf-8", errors="backslashreplace"),  # noqa: SIM115
        )
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        tempfile.tempdir = None
        module, *arguments = request["words"]
        sys.argv = [module, *arguments]
        sys.path[0] = request["cwd"]  # as -m does; it was the folder of this file
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        atexit._run_exitfuncs()
        os._exit(code)


if __name__ == "__main__":
    _serve()
