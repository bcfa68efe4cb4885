"""What the installed packages can do, as they report it. Each is imported in a process of its own.

A broken package can crash or hang the process that imports it. ``python -m onnx_ci.environment.packages NAME`` imports one
package, or the plug-in ``GROUP:NAME``, and prints what it reports as a line of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
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

from onnx_ci.environment.versions import RUNTIME_DISTRIBUTIONS, version_of
from onnx_ci.errors import EnvironmentLacksError, OnnxCiError, first_line, message_of
from onnx_ci.plugins import EXPORTERS, OF_CELLS, RUNTIMES, check_names
from onnx_ci.processes.supervisor import how_it_ended

IMPORT_TIMEOUT = 120.0
"""The time limit of an import in seconds. The first one is slow: torch has several gigabytes."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """An installed package."""

    version: str
    error: str = ""
    """Why it cannot be imported; empty if it can."""
    facts: Mapping[str, Any] = field(default_factory=dict)


def _torch() -> dict[str, Any]:
    torch = importlib.import_module("torch")
    facts: dict[str, Any] = {"cuda": torch.version.cuda, "gpus": []}
    try:
        torch.cuda.init()
        facts["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except Exception as error:  # the class depends on the reason: no CUDA build, no driver, an old driver
        facts["cuda_error"] = first_line(error)
    return facts


def newest_cuda() -> str | None:
    """The newest CUDA that NVIDIA's driver supports, such as ``13.0``; ``None`` without a driver. torch cannot tell."""
    version = ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        error = driver.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if error else f"{version.value // 1000}.{version.value % 1000 // 10}"  # 13000 is 13.0


def _onnx() -> dict[str, Any]:
    onnx = importlib.import_module("onnx")
    importlib.import_module("onnx.checker")
    return {"opset": onnx.defs.onnx_opset_version()}


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
    """Whether ONNX Runtime's CUDA provider works, and which library it lacks according to its log."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")  # as in every cell: its CUDA libraries are used if the versions match
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    with tempfile.TemporaryFile() as log:
        standard_error = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            session = runtime.InferenceSession(_identity(1), providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        finally:
            os.dup2(standard_error, 2)
        log.seek(0)
        lacks = _LACKS.search(log.read().decode(errors="replace"))
    runs = session.get_providers()[0] == "CUDAExecutionProvider"
    return {"runs_on_cuda": runs, **({"cuda_lacks": lacks[1]} if lacks and not runs else {})}


def _highest_opset(runtime: Any) -> int | None:
    """The highest opset of the files that ONNX Runtime loads. No function returns it, so files are loaded."""
    onnx = importlib.import_module("onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    for opset in range(onnx.defs.onnx_opset_version(), 0, -1):
        try:
            runtime.InferenceSession(_identity(opset), sess_options=options, providers=["CPUExecutionProvider"])
        except Exception:  # noqa: S112 (its own exception classes, if it does not support the opset)
            continue
        return opset
    return None


def _identity(opset: int) -> bytes:
    """A minimal model: one Identity, in an old IR version that every runtime reads."""
    onnx = importlib.import_module("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=4)
    return bytes(model.SerializeToString())


@functools.cache
def newest_opset() -> int:
    """The newest opset that both onnx and ONNX Runtime support. Raises ``EnvironmentLacksError`` if neither can be imported."""
    packages = inspect_packages(("onnx", *RUNTIME_DISTRIBUTIONS))
    opsets = [package.facts["opset"] for package in packages.values() if package.facts.get("opset")]
    if not opsets:
        reason = "; ".join(f"{name}: {package.error}" for name, package in packages.items()) or "they are not installed"
        raise EnvironmentLacksError(f"neither onnx nor ONNX Runtime reports its newest opset ({reason}); specify an opset")
    return int(min(opsets))


@functools.cache
def newest_opset_of_onnx() -> int | None:
    """The newest opset that onnx knows, whatever can run it; ``None`` if onnx cannot be imported."""
    opset: int | None = inspect_packages(("onnx",))["onnx"].facts.get("opset")
    return opset


def _imported(*modules: str) -> dict[str, Any]:
    for module in modules:
        importlib.import_module(module)
    return {}


PROBES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "torch": _torch,
    "onnx": _onnx,
    **dict.fromkeys(RUNTIME_DISTRIBUTIONS, _onnxruntime),
    "onnxscript": functools.partial(_imported, "onnxscript"),
    "torchvision": functools.partial(_imported, "torch", "torchvision"),
}
"""What each distribution reports about itself, once it is imported."""


def inspect_packages(names: Iterable[str] = tuple(PROBES), *, timeout: float = IMPORT_TIMEOUT) -> dict[str, Package]:
    """The installed ones of the packages, imported concurrently, each in a process of its own."""
    installed = {name: version for name in names if (version := version_of(name)) is not None}
    with ThreadPoolExecutor(max_workers=len(PROBES)) as pool:
        packages = pool.map(lambda name: _inspect(name, installed[name], timeout), installed)
        return dict(zip(installed, packages, strict=True))


def _inspect(name: str, version: str, timeout: float, path: Iterable[str] = ()) -> Package:
    """Inspect a package, or load a plug-in, ``GROUP:NAME``, in a new process with ``path`` besides ``PYTHONPATH``."""
    # Like the command `onnx-ci`, and unlike `python -m`, do not import packages from the current directory.
    search_path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2]), *path]))
    command = [sys.executable, "-P", "-m", "onnx_ci.environment.packages", name]
    try:
        process = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": search_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Package(version=version, error=f"the process that imports it did not end within {timeout:g} s")
    last_line = next((f": {line.strip()}" for line in reversed(process.stderr.splitlines()) if line.strip()), "")
    try:
        output = json.loads(process.stdout.splitlines()[-1])
        has_message = ":" in output["error"]  # numpy prints what is wrong, and its error says nothing
        error = output["error"] + (last_line if output["error"] and not has_message else "")
        return Package(version=version, error=error, facts=output["facts"])
    except (IndexError, ValueError, TypeError, KeyError):
        return Package(version=version, error=f"the process that imports it {how_it_ended(process.returncode)}{last_line}")


def require_plugins(exporters: Iterable[str], runtimes: Iterable[str]) -> dict[str, str]:
    """Check the names of plug-ins, and that these can be loaded, before anything runs.

    Returns the versions of what runtimes compute with. Raises ``EnvironmentLacksError``, also if a runtime lacks something.
    """
    check_names()
    versions: dict[str, str] = {}
    for kind, names in ((EXPORTERS, exporters), (RUNTIMES, runtimes)):
        for name in kind.added(names):
            loaded = _inspect(f"{kind.group}:{name}", "", IMPORT_TIMEOUT, sys.path)
            if loaded.error:
                raise kind.load_error(name, loaded.error)
            if "problem" in loaded.facts:
                raise EnvironmentLacksError(loaded.facts["problem"])
            versions |= loaded.facts.get("versions", {})
    return versions


def _plugin(group: str, name: str) -> dict[str, Any]:
    try:
        plugin = OF_CELLS[group].load(name)
    except OnnxCiError as error:
        return {"problem": str(error)}
    if group != RUNTIMES.group:
        return {}
    missing = [plugin.missing_device(device) for device in ("cpu", "cuda")]
    if all(missing):
        return {"problem": f"the runtime {name} cannot be used: {missing[0]}"}
    return {"versions": dict(getattr(plugin, "versions", {}))}


def main() -> None:
    """Import what the command line names, and print what it reports."""
    error, facts = "", {}
    try:
        group, colon, name = sys.argv[1].partition(":")
        facts = _plugin(group, name) if colon else PROBES[sys.argv[1]]()
    except BaseException as raised:  # a broken package may raise anything
        error = ": ".join(filter(None, (type(raised).__name__, first_line(raised) if message_of(raised) else "")))
    sys.stdout.write("\n" + json.dumps({"error": error, "facts": facts}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # skip the package's exit handlers


if __name__ == "__main__":
    main()
