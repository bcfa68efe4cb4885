"""The facts of the machine and of Python that can change a number. The kernel, the host's name and the load cannot."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx_ci.cache.places import Places

_FEATURES = frozenset(
    {"avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx_vnni", "amx_int8"}
    | {"amx_bf16", "amx_tile", "avx512_bf16", "avx512_fp16", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2"}
)  # fmt: skip
"""Processor features for which torch and the runtimes have kernels that round differently."""


def machine(places: Places, folder: str, path: Iterable[str]) -> dict[str, str]:
    """The facts, by their names in words.

    Args:
        places: the project's root.
        folder: the current directory.
        path: ``sys.path``.
    """
    names = (name for name in dir(sys.flags) if not name.startswith(("_", "n_")) and name not in ("count", "index"))
    set_flags = [f"{name}={value}" for name in names if (value := int(getattr(sys.flags, name)))]
    flags = [*set_flags, *sys.warnoptions, *sorted(f"{name}={value}" for name, value in sys._xoptions.items())]
    facts = {
        "Python": platform.python_version(),
        "Python's build": sys.version.partition(" ")[2],
        "Python's flags": " ".join(flags),
        "the system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "sys.path": ":".join(places.normalized(place) for place in dict.fromkeys(path)),
        "the current directory": places.name(folder),
        "the time zone": _time_zone(Path("/etc/localtime")),
        "the processor's features": _processor_features(Path("/proc/cpuinfo")),
        "the GPU's driver": "".join(_lines(Path("/proc/driver/nvidia/version"), "NVRM version")),
        "the GPUs": ", ".join(_gpus(Path("/proc/driver/nvidia/gpus"))),
    }
    return {name: text for name, text in facts.items() if text}


def _processor_features(file: Path) -> str:
    for name in ("flags", "Features"):
        for line in _lines(file, name):
            return " ".join(sorted(_FEATURES.intersection(line.partition(":")[2].split())))
    return ""


def _gpus(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for gpu in sorted(folder.iterdir()):
            yield from (line.partition(":")[2].strip() for line in _lines(gpu / "information", "Model"))


def _lines(file: Path, start: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from (line for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith(start))


def _time_zone(file: Path) -> str:
    try:
        if file.is_symlink():
            return str(file.readlink()).rpartition("zoneinfo/")[2]
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""
