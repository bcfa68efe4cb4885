"""What the installed packages can do, by their own word: each is imported in a process of its own.

A broken package crashes or hangs whoever imports it. ``python -m onnx_ci.packages NAME`` is such a process: it imports one
and prints what it knows as a line of JSON.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ci
from onnx_ci.environment import RUNTIME_DISTRIBUTIONS, version_of
from onnx_ci.errors import EnvironmentLacksError, first_line
from onnx_ci.processes import how_it_ended

PATIENCE = 120.0
"""Seconds that an import may take: torch is gigabytes, and disks are slow at first."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """An installed package."""

    version: str
    error: str = ""
    """What importing it ended with, unless it worked."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it knows of itself."""


def _torch() -> dict[str, Any]:
    torch = importlib.import_module("torch")
    constants = importlib.import_module("torch.onnx._constants")
    newer = importlib.import_module("torch.onnx._internal.exporter._constants")
    facts: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "torchscript_opsets": [constants.ONNX_MIN_OPSET, constants.ONNX_TORCHSCRIPT_EXPORTER_MAX_OPSET],
        "dynamo_opsets_from": newer.TORCHLIB_OPSET,
        "gpus": [],
    }
    try:
        torch.cuda.init()
        facts["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except Exception as error:  # torch's own, one for each reason: no CUDA build, no driver, an old driver
        facts["cuda_error"] = first_line(error)
    if torch.version.cuda is not None:
        facts["cudnn"] = torch.backends.cudnn.version()
        driver = torch._C._cuda_getDriverVersion()  # 12080 is 12.8
        if driver:
            facts["driver_cuda"] = f"{driver // 1000}.{driver % 1000 // 10}"
    return facts


def _onnx() -> dict[str, Any]:
    onnx = importlib.import_module("onnx")
    importlib.import_module("onnx.checker")
    return {"opset": onnx.defs.onnx_opset_version(), "ir_version": int(onnx.IR_VERSION)}


def _onnxruntime() -> dict[str, Any]:
    runtime = importlib.import_module("onnxruntime")
    providers = runtime.get_available_providers()
    facts: dict[str, Any] = {"providers": providers, "opset": _highest_opset(runtime)}
    if getattr(runtime, "cuda_version", None):
        facts["cuda"] = runtime.cuda_version
    if "CUDAExecutionProvider" in providers and Path("/dev/nvidiactl").exists():
        facts |= facts_on_cuda(runtime)
    return facts


_LACKS = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


def facts_on_cuda(runtime: Any) -> dict[str, Any]:
    """Whether ONNX Runtime's CUDA provider runs, and the library that it lacks if it says so, which it does in its log only."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")  # as in every cell: its libraries serve where their versions fit
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            session = runtime.InferenceSession(_identity(1), providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        finally:
            os.dup2(kept, 2)
        log.seek(0)
        lacks = _LACKS.search(log.read().decode(errors="replace"))
    runs = session.get_providers()[0] == "CUDAExecutionProvider"
    return {"runs_on_cuda": runs, **({"cuda_lacks": lacks[1]} if lacks and not runs else {})}


def _highest_opset(runtime: Any) -> int | None:
    """The highest opset that ONNX Runtime loads a file at. It has no function that tells, so it is asked with files."""
    onnx = importlib.import_module("onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    for opset in range(onnx.defs.onnx_opset_version(), 0, -1):
        try:
            runtime.InferenceSession(_identity(opset), sess_options=options, providers=["CPUExecutionProvider"])
        except Exception:  # noqa: S112 (classes of its own, for an opset that it does not know)
            continue
        return opset
    return None


def _identity(opset: int) -> bytes:
    """The smallest file: one Identity, in an old IR version, which every runtime reads."""
    onnx = importlib.import_module("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=4)
    return bytes(model.SerializeToString())


@functools.cache
def newest_opset() -> int:
    """The newest opset that onnx and ONNX Runtime both know, by their own word.

    Raises:
        EnvironmentLacksError: neither of them can be asked.
    """
    found = look_at(("onnx", *RUNTIME_DISTRIBUTIONS))
    known = [package.facts["opset"] for package in found.values() if package.facts.get("opset")]
    if not known:
        why = "; ".join(f"{name}: {package.error}" for name, package in found.items()) or "they are not installed"
        raise EnvironmentLacksError(f"onnx and ONNX Runtime do not tell which opset is the newest ({why}); name an opset")
    return int(min(known))


def _importing(*modules: str) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        for module in modules:
            importlib.import_module(module)
        return {}

    return run


PROBES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "torch": _torch,
    "onnx": _onnx,
    "onnxruntime": _onnxruntime,
    "onnxruntime-gpu": _onnxruntime,
    "onnxscript": _importing("onnxscript"),
    "torchvision": _importing("torch", "torchvision"),
    "pytest": _importing("pytest"),
    "github-action-toolkit": _importing("github_action_toolkit"),
}
"""The distributions that are looked at, and how."""


def look_at(names: Iterable[str] = tuple(PROBES), *, patience: float = PATIENCE) -> dict[str, Package]:
    """The packages that are installed, imported all at once, each in a process of its own."""
    installed = {name: version for name in names if (version := version_of(name)) is not None}
    with ThreadPoolExecutor(max_workers=len(PROBES)) as pool:
        looked = pool.map(lambda name: _look_at(name, installed[name], patience), installed)
        return dict(zip(installed, looked, strict=True))


def _look_at(name: str, version: str, patience: float) -> Package:
    # As the command does and unlike `python -m`, look for no package in the current directory.
    where = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(onnx_ci.__file__).parent.parent)]))
    command = [sys.executable, "-P", "-m", "onnx_ci.packages", name]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": where},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Package(version=version, error=f"the process that imports it did not end within {patience:g} s")
    try:
        said = json.loads(done.stdout.splitlines()[-1])
        return Package(version=version, error=said["error"], facts=said["facts"])
    except (IndexError, ValueError, TypeError, KeyError):
        last = next((f": {line.strip()}" for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        return Package(version=version, error=f"the process that imports it {how_it_ended(done.returncode)}{last}")


def main() -> None:
    """Import the package that the command line names, and print what it knows."""
    error, facts = "", {}
    try:
        facts = PROBES[sys.argv[1]]()
    except BaseException as raised:  # whatever a broken package raises
        error = f"{type(raised).__name__}: {first_line(raised)}"
    sys.stdout.write("\n" + json.dumps({"error": error, "facts": facts}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what the package does at the end of a process is not asked for


if __name__ == "__main__":
    main()
