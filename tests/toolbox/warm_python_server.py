"""A process that has imported :data:`_IMPORTED` and forks itself for each start of ``python``; see ``warm_python.py``.

It is a script: nothing imports it. Each connection is served by a process of its own, which waits for the fork that runs what
was asked for, and stops it if the client is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_IMPORTED = (
    "click",
    "onnx",
    "onnxruntime",
    "onnxscript.function_libs.torch_lib.ops",
    "onnxscript.rewriter.onnx_fusions",
    "psutil",
    "pytest",
    "sympy.tensor.tensor",
    "torch.export._trace",
    "torch.onnx._internal.exporter._core",
    "torch.onnx._internal.exporter._registration",
    "torch.onnx._internal.exporter._torchlib.ops",
    "torch.onnx._internal.torchscript_exporter.utils",
    *(f"torch.onnx._internal.torchscript_exporter.symbolic_opset{opset}" for opset in range(7, 24)),
    *(f"onnx_ci.cli.{command}" for command in ("main", "run", "list", "why", "verify", "baseline", "report", "config")),
    "onnx_ci.engine.worker",
    "onnx_ci.engine.one_process",
    "onnx_ci.engine.recipe_process",
    "onnx_ci.pipeline.export.custom",
)
"""What most processes import. Nothing of onnx-ci looks at the process when it is imported."""


def _serve(path: str, program: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _IMPORTED:
            with contextlib.suppress(ImportError):  # another version of torch has other modules
                importlib.import_module(name)
    gc.freeze()  # so that the collector of a fork does not touch, and thereby copy, what it has inherited
    os.write(1, b"ready\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that serve connections
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if 0 in readable:
            return  # the tests have ended
        connection, _ = listener.accept()
        if not _fork():
            listener.close()
            _attend(connection, program)
        connection.close()


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads
        return os.fork()


def _attend(connection: socket.socket, program: str) -> NoReturn:
    """Serve one connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as stream:
        options, words, folder, environment = marshal.loads(stream.read(int.from_bytes(size, "little")))
    child = _fork()
    if not child:
        connection.close()
        _live(options, words, folder, environment, files, program)
    for descriptor in files:
        os.close(descriptor)
    connection.sendall(child.to_bytes(4, "little"))
    process = os.pidfd_open(child)
    readable, _, _ = select.select([process, connection], [], [])
    if process not in readable:  # the client is gone
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
    os._exit(0)


def _live(
    options: Sequence[str], words: Sequence[str], folder: str, environment: dict[str, str], files: Sequence[int], program: str
) -> NoReturn:
    """Be the Python that was asked for."""
    code = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - they live as long as the process
        unbuffered = "-u" in options
        binary = open(1, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        sys.stdout = io.TextIOWrapper(binary, encoding="utf-8", write_through=unbuffered)
        sys.stderr = open(2, "w", closefd=False, encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        sys.executable = program
        sys.dont_write_bytecode |= "-B" in options
        del sys.path[0]  # the folder of this file
        _run(words, is_safe_path="-P" in options)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code & 255)


def _run(words: Sequence[str], *, is_safe_path: bool) -> None:
    """What ``python WORDS`` does."""
    kind = words[0] if words[0] in ("-m", "-c") else "script"
    if not is_safe_path:
        sys.path.insert(0, str(Path.cwd()) if kind == "-m" else "" if kind == "-c" else str(Path(words[0]).resolve().parent))
    if kind == "-c" or (kind == "-m" and words[1] == "pytest"):  # pytest and its workers warn of plugins that are imported
        for name in [name for name in sys.modules if name.partition(".")[0] == "onnx_ci"]:
            del sys.modules[name]
    if kind == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *words[2:]]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = list(words)
        main = types.ModuleType("__main__")
        main.__file__ = words[0]
        sys.modules["__main__"] = main
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), main.__dict__)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
