"""Everything on which all verdicts depend at one moment, and the changes between two moments, in words."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.cache.folder import digest_of_data
from onnx_ci.cache.places import Places
from onnx_ci.cache.variables import are_same
from onnx_ci.cache.watch import ABSENT
from onnx_ci.results.json_data import to_json


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of everything that counts for every recipe."""

    files: Mapping[str, str]
    """The states of the tracked files that are not Python, by name."""
    packages: Mapping[str, str]
    """Versions and digests of distributions, and digests of edited files, by name."""
    machine: Mapping[str, str]
    variables: Mapping[str, str]
    """Digests of the values, which may be secrets, by name."""

    @functools.cached_property
    def digest(self) -> str:
        """A short digest of everything."""
        return digest_of_data(to_json(self))


def differences(then: Snapshot, now: Snapshot) -> tuple[str, ...]:
    """The changes of files, packages, the machine and variables, in that order: ``net.yaml changed``, ``new variable FOO``."""
    return (
        *_changes(then.files, now.files, describe_file),
        *_changes(then.packages, now.packages, _describe_package),
        *_changes(then.machine, now.machine, _describe_fact),
        *_changes(then.variables, now.variables, describe_variable),
    )


def _changes(then: Mapping[str, str], now: Mapping[str, str], describe: Callable[[str, str, str], str | None]) -> Iterator[str]:
    """The changes in words. What is not there has an empty text."""
    for name in sorted(then.keys() | now.keys()):
        before, after = then.get(name, ""), now.get(name, "")
        if before != after and (text := describe(name, before, after)):
            yield text


def describe_file(name: str, before: str, after: str) -> str:
    """``model.py changed``, given the states of a file before and after."""
    if before in ("", ABSENT):
        return f"{name} is new"
    return f"{name} is gone" if after in ("", ABSENT) else f"{name} changed"


def describe_variable(name: str, before: str, after: str) -> str | None:
    """``new variable FOO``, given the digests of the values; ``None`` if only the folders of a clone and a user differ."""
    if not (before and after):
        return f"variable {name} is gone" if before else f"new variable {name}"
    return None if are_same(before, after) else f"{name} changed"


def _describe_package(name: str, before: str, after: str) -> str:
    old, new = before.partition(" "), after.partition(" ")
    if not (old[1] or new[1]):  # a file: one of a package counts by itself where it was edited
        return describe_file(name, before, after) if name.endswith(".pth") else f"{name} changed"
    if not before:
        return f"{name} {new[0]} is newly installed"
    if not after:
        return f"{name} {old[0]} is no longer installed"
    return f"{name} {old[0]} → {new[0]}" if old[0] != new[0] else f"the files of {name} changed"


def _describe_fact(name: str, before: str, after: str) -> str:
    if len(before + after) > 120:
        return f"{name} changed"
    colon = ":" if name.startswith(("the ", "sys")) else ""
    return f"{name}{colon} {before or 'none'} → {after or 'none'}"


# --- the machine --------------------------------------------------------------------------------------------------------

_FEATURES = frozenset(
    {"avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx_vnni", "amx_int8"}
    | {"amx_bf16", "amx_tile", "avx512_bf16", "avx512_fp16", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2"}
)  # fmt: skip
"""Processor features for which torch and the runtimes have kernels that round differently."""


def machine(places: Places, folder: str, path: Iterable[str]) -> dict[str, str]:
    """The facts of the machine and of Python that can change a number. The kernel, the host's name and the load cannot."""
    names = (name for name in dir(sys.flags) if not name.startswith(("_", "n_")) and name not in ("count", "index"))
    set_flags = [f"{name}={value}" for name in names if (value := int(getattr(sys.flags, name)))]
    flags = [*set_flags, *sys.warnoptions, *sorted(f"{name}={value}" for name, value in sys._xoptions.items())]
    features = next(_lines(Path("/proc/cpuinfo"), ("flags", "Features")), "")
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    facts = {
        "Python": platform.python_version(),
        "Python's build": sys.version.partition(" ")[2],
        "Python's flags": " ".join(flags),
        "the system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "sys.path": ":".join(places.normalized(place) for place in dict.fromkeys(path)),
        "the current directory": places.name(folder),
        "the time zone": _time_zone(Path("/etc/localtime")),
        "the processor's features": " ".join(sorted(_FEATURES.intersection(features.partition(":")[2].split()))),
        "the GPU's driver": "".join(_lines(Path("/proc/driver/nvidia/version"), "NVRM version")),
        "the GPUs": ", ".join(line.partition(":")[2].strip() for gpu in gpus for line in _lines(gpu, "Model")),
    }
    return {name: text for name, text in facts.items() if text}


def _lines(file: Path, start: str | tuple[str, ...]) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from (line for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith(start))


def _time_zone(file: Path) -> str:
    with contextlib.suppress(OSError):
        link = str(file.readlink()) if file.is_symlink() else ""
        return link.rpartition("zoneinfo/")[2] if link else hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return ""
