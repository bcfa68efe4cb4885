"""What is installed on this machine, as text that is the same on every machine with the same setup."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from onnx_ci.cache.import_closure import NotCacheableError, file_digest, locate, process_started
from onnx_ci.environment import versions as environment
from onnx_ci.environment.libraries import LIBRARIES, is_installed
from onnx_ci.environment.torch_variables import NVML_CHECK

_PREFIXES = ("TORCH", "PYTORCH_", "ORT_", "ONNX", "NVIDIA_TF32_", "CUBLAS", "CUDNN_")
_FEATURES = frozenset(
    {"avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16", "avx512_bf16", "asimddp", "i8mm", "bf16", "sve"}
)  # fmt: skip
"""Processor features beyond torch's own levels for which the runtimes have kernels that round differently."""
_EXCLUDED_PREFIXES = ("ONNX_CI_", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", NVML_CHECK)
"""onnx-ci's settings are keyed as settings, weights by their content; torch and onnx-ci set the other variables."""


def versions() -> Mapping[str, str]:
    """The versions of Python, of every distribution and of the platform, with digests of the libraries' files.

    Raises:
        NotCacheableError: a library's file changed since this process started.
    """
    return {**_own_versions(environment.versions), **_distributions(), **_checkouts(), **_platform()}


@functools.cache
def _own_versions(read: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    # The platform's name contains the kernel's build, which affects no verdict and differs between runners.
    return {name: version for name, version in read().items() if name != "platform"}


@functools.cache
def _platform() -> Mapping[str, str]:
    libc = " ".join(platform.libc_ver())
    named = {"system": platform.system(), "machine": platform.machine(), "libc": libc, "interpreter": sys.version}
    return {**named, **processor_features(Path("/proc/cpuinfo"))}


def processor_features(file: Path) -> Mapping[str, str]:
    """The processor features that affect the choice of a kernel; empty if ``file`` does not list any.

    Args:
        file: ``/proc/cpuinfo`` or a file like it. Only the first processor is read.
    """
    with contextlib.suppress(OSError, UnicodeError):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, features = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return {"processor features": " ".join(sorted(_FEATURES.intersection(features.split())))}
    return {}


def _checkouts() -> Mapping[str, str]:
    """A digest of each library that is used from a checkout, where files change without a new version."""
    located = {name: locate(name) for name in sorted(LIBRARIES - {"onnx_ci"})}
    found = {name: file for name, file in located.items() if file is not None and not is_installed(file)}
    return {f"checkout {name}": checkout_digest(name, file) for name, file in found.items()}


@functools.cache
def checkout_digest(name: str, file: str) -> str:
    """A digest of a library's files: Python files by content, compiled ones by size and modification time.

    Torch has so many files that all of them count by size and modification time.

    Args:
        name: the library.
        file: the file that importing it runs.

    Raises:
        NotCacheableError: one of them changed since this process started.
    """
    top = Path(file)
    files = [each for ending in ("py", "so") for each in top.parent.rglob(f"*.{ending}")] if top.stem == "__init__" else [top]
    hashed = hashlib.sha256()
    for each in sorted(files):
        try:
            status = each.stat()
            if max(status.st_mtime, status.st_ctime) >= process_started():
                raise NotCacheableError(f"{each} changed after this process started")
            by_time = name == "torch" or each.suffix != ".py"
            state = f"{status.st_size} {status.st_mtime_ns}" if by_time else hashlib.sha256(each.read_bytes()).hexdigest()
        except OSError:
            state = "gone"
        hashed.update(f"{each.relative_to(top.parent).as_posix()}\n{state}\n".encode("utf-8", "surrogateescape"))
    return hashed.hexdigest()


@functools.cache
def _distributions() -> Mapping[str, str]:
    """Each distribution's version and a digest of its files: a project is often reinstalled under the same version."""
    found: dict[str, list[str]] = {}
    for each in importlib.metadata.distributions():
        name = str(each.metadata["Name"])
        found.setdefault(name.lower(), []).append(f"{each.version} {_files(each)}")
    return {f"distribution {name}": ", ".join(sorted(installed)) for name, installed in sorted(found.items())}


def _files(distribution: importlib.metadata.Distribution) -> str:
    """A digest of the files that a distribution's installer recorded, and of those edited since."""
    record = distribution.read_text("RECORD") or ""
    folder = str(distribution.locate_file(""))
    kept = []
    recorded_at = _recorded_at(distribution)
    for line in record.splitlines():
        path, _, rest = line.rpartition(",")[0].rpartition(",")
        # Scripts contain the interpreter's path, finders of editable installations that of the checkout, and the metadata
        # the installer.
        if not rest or path.startswith(("..", "__editable__")) or ".dist-info/" in path:
            continue
        kept.append(f"{path} {rest}")
        if path.endswith(".py") and recorded_at is not None:
            kept += _edited(os.path.join(folder, path), rest, recorded_at)  # noqa: PTH118 (ten thousand paths)
    return hashlib.sha256("\n".join(sorted(kept)).encode()).hexdigest()


def _recorded_at(distribution: importlib.metadata.Distribution) -> float | None:
    own = getattr(distribution, "_path", None)
    try:
        return None if own is None else Path(own, "RECORD").stat().st_mtime
    except OSError:
        return None


def _edited(file: str, recorded: str, recorded_at: float) -> list[str]:
    """The digest of an installed file, if it is no longer what was installed."""
    try:
        modified = os.stat(file).st_mtime  # noqa: PTH116 (ten thousand files)
        if modified <= recorded_at + 2:
            return []
        if modified >= process_started():
            raise NotCacheableError(f"{file} changed after this process started")
        digest = hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return [f"{file} is gone"]
    text = "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return [] if text == recorded else [f"edited: {text}"]


def own_files() -> Mapping[str, str]:
    """Digests of onnx-ci's own modules, by path: in a checkout they change without a new version.

    Raises:
        NotCacheableError: one of them changed since this process started.
    """
    return {name: file_digest(file) for name, file in _own_modules().items()}


@functools.cache
def _own_modules() -> Mapping[str, str]:
    """The files of onnx-ci's own modules, by path below its folder."""
    folder = Path(__file__).parents[1]
    files = {file.relative_to(folder): str(file) for file in sorted(folder.rglob("*.py"))}
    return {name.as_posix(): file for name, file in files.items() if name.parts[0] != "recipes"}


def variables(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """The environment variables that torch and the runtimes read."""
    kept = (name for name in sorted(environment) if name.startswith(_PREFIXES) and not name.startswith(_EXCLUDED_PREFIXES))
    return {name: environment[name] for name in kept}
