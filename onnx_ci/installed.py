"""What is installed here and on what it runs, as text that is the same on every machine set up the same way."""

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

import onnx_ci
from onnx_ci import environment, sources
from onnx_ci.sources import NotCacheableError, is_installed, locate, process_started, read_source

_PREFIXES = ("TORCH", "PYTORCH_", "ORT_", "ONNX", "NVIDIA_TF32_", "CUBLAS", "CUDNN_")
_FEATURES = frozenset(
    {"avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16", "avx512_bf16", "asimddp", "i8mm", "bf16", "sve"}
)  # fmt: skip
"""What processors can do beyond torch's own levels, and for which the runtimes have kernels that round otherwise."""
_NOT_KEYED = ("ONNX_CI_", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", environment.NVML_CHECK)
"""onnx-ci's settings are looked at as settings, weights by their content, wherever they lie; torch and onnx-ci set the rest."""


def versions() -> Mapping[str, str]:
    """The versions of Python, of every distribution and of the platform, and what tells the files of libraries apart.

    Raises:
        NotCacheableError: a library's file changed since this process began.
    """
    return {**_own_versions(environment.versions), **_distributions(), **_checkouts(), **_platform()}


@functools.cache
def _own_versions(read: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    # The name of the platform tells the kernel's build, which changes no verdict and differs from runner to runner.
    return {name: version for name, version in read().items() if name != "platform"}


@functools.cache
def _platform() -> Mapping[str, str]:
    libc = " ".join(platform.libc_ver())
    named = {"system": platform.system(), "machine": platform.machine(), "libc": libc, "interpreter": sys.version}
    return {**named, **processor_features(Path("/proc/cpuinfo"))}


def processor_features(file: Path) -> Mapping[str, str]:
    """Those of the processor's features on which the choice of a kernel depends; empty where no such file tells them.

    Args:
        file: what Linux tells of the processors. The first one's features are taken.
    """
    with contextlib.suppress(OSError, UnicodeError):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, told = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return {"processor features": " ".join(sorted(_FEATURES.intersection(told.split())))}
    return {}


def _checkouts() -> Mapping[str, str]:
    """A digest of the files of each library that is used from a checkout: there it changes without a new version."""
    located = {name: locate(name) for name in sorted(sources.LIBRARIES - {"onnx_ci"})}
    found = {name: file for name, file in located.items() if file is not None and not is_installed(file)}
    return {f"checkout {name}": checked_out(name, file) for name, file in found.items()}


@functools.cache
def checked_out(name: str, file: str) -> str:
    """A digest of a library's files: the content of Python files, the size and time of compiled ones.

    Torch has so many that size and time stand for all of them.

    Args:
        name: the library.
        file: what importing it runs.

    Raises:
        NotCacheableError: one of them changed since this process began.
    """
    top = Path(file)
    files = [each for ending in ("py", "so") for each in top.parent.rglob(f"*.{ending}")] if top.stem == "__init__" else [top]
    hashed = hashlib.sha256()
    for each in sorted(files):
        try:
            status = each.stat()
            if max(status.st_mtime, status.st_ctime) >= process_started():
                raise NotCacheableError(f"{each} changed after this process began")
            by_time = name == "torch" or each.suffix != ".py"
            told = f"{status.st_size} {status.st_mtime_ns}" if by_time else hashlib.sha256(each.read_bytes()).hexdigest()
        except OSError:
            told = "gone"
        hashed.update(f"{each.relative_to(top.parent).as_posix()}\n{told}\n".encode("utf-8", "surrogateescape"))
    return hashed.hexdigest()


@functools.cache
def _distributions() -> Mapping[str, str]:
    """Each distribution's version, and a digest of its files: a project is often installed anew under an old version."""
    found: dict[str, list[str]] = {}
    for each in importlib.metadata.distributions():
        name = str(each.metadata["Name"])
        found.setdefault(name.lower(), []).append(f"{each.version} {_files(each)}")
    return {f"distribution {name}": ", ".join(sorted(installed)) for name, installed in sorted(found.items())}


def _files(distribution: importlib.metadata.Distribution) -> str:
    """A digest of the files that a distribution's installer recorded, and of those that were edited since."""
    record = distribution.read_text("RECORD") or ""
    folder = str(distribution.locate_file(""))
    kept = []
    recorded_at = _recorded_at(distribution)
    for line in record.splitlines():
        path, _, rest = line.rpartition(",")[0].rpartition(",")
        # Scripts name the interpreter, finders of editable installations the checkout, and the rest who installed it.
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
    """The digest of an installed file that is no longer what was installed."""
    try:
        modified = os.stat(file).st_mtime  # noqa: PTH116 (ten thousand files)
        if modified <= recorded_at + 2:
            return []
        if modified >= process_started():
            raise NotCacheableError(f"{file} changed after this process began")
        digest = hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return [f"{file} is gone"]
    text = "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return [] if text == recorded else [f"edited: {text}"]


def own_files() -> Mapping[str, str]:
    """The content of onnx-ci's own modules, by name: a checkout changes without a new version.

    Raises:
        NotCacheableError: one of them changed since this process began.
    """
    folder = Path(onnx_ci.__file__).parent
    files = sorted(file for file in folder.rglob("*.py") if file.relative_to(folder).parts[0] != "recipes")
    return {file.relative_to(folder).as_posix(): read_source(str(file)).digest for file in files}


def variables(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """The environment variables that torch and the runtimes listen to."""
    kept = (name for name in sorted(environment) if name.startswith(_PREFIXES) and not name.startswith(_NOT_KEYED))
    return {name: environment[name] for name in kept}
