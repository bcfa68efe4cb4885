"""A ``python`` that is ready at once: each start is a fork of a process that has imported torch, the exporters and onnx-ci.

Most tests of the front-ends start processes, and imports take longer there than cells take to run. A fork of a
process that did nothing but import is such a process: it has descriptors, a working directory, an environment and signals of
its own. What depends on a process that began after its files were written (the verdict cache), on what is imported, or on how
Python was started needs ``sys.executable`` itself.

The program that :func:`executable` returns is ``warm_python_client.py``; ``warm_python_server.py`` is what is forked.
"""

from __future__ import annotations

import atexit
import functools
import marshal
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent
_READ_AT_START = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "LD_", "TORCH", "CUDA_")
"""Variables that Python or its libraries read only when they start: with another value, a fork would not do."""


@functools.cache
def executable() -> str:
    """The path of the program, which takes the arguments of ``python``; other systems than Linux get Python itself."""
    if sys.platform != "linux":
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="warm-"))  # short: the path of a socket has at most 107 bytes
    program, socket = folder / "python", folder / "socket"
    kept = {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)}
    (folder / "values").write_bytes(marshal.dumps((sys.executable, str(socket), kept, _READ_AT_START)))
    program.write_text(
        f"#!{sys.executable} -IS\n" + (_HERE / "warm_python_client.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    program.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, str(_HERE / "warm_python_server.py"), str(socket), str(program)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(_stop, server, folder)
    return str(program)


def _stop(server: subprocess.Popen[bytes], folder: Path) -> None:
    with server:  # closes its pipes, and waits for its end
        server.kill()
    shutil.rmtree(folder, ignore_errors=True)
