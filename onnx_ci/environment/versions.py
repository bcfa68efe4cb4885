"""The versions of installed packages that a report records, and the packages that a run requires. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Mapping, Sequence

from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.plugins import RUNTIMES, plugin_versions, variant_in_name
from onnx_ci.text import listed
from onnx_ci.version import __version__

RUNTIME_DISTRIBUTIONS = (
    "onnxruntime",
    *(f"onnxruntime-{build}" for build in ("gpu", "openvino", "directml", "webgpu", "qnn", "migraphx", "rocm", "cann")),
)
"""The wheels that provide the package ``onnxruntime``; installed together, they overwrite each other's files."""
TESTED = {"torch": "2.13.0", "onnx": "1.23.2", "onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}
"""The newest versions that onnx-ci is tested with: those in ``constraints.txt``, which is not installed."""
RECORDED = ("onnx-ci", "torch", "torchvision", "onnx", *RUNTIME_DISTRIBUTIONS, "onnxscript", "numpy", "pytest")


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, or ``None``."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def runtime_version() -> str | None:
    """The version of the installed ONNX Runtime, whichever wheel it is from, or ``None``."""
    return next(filter(None, map(version_of, RUNTIME_DISTRIBUTIONS)), None)


def has_older_runtime() -> bool:
    """Whether the installed ONNX Runtime is older than the tested one, of which no fault is known."""
    return _release(runtime_version() or "0") < _release(TESTED["onnxruntime"])


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def versions() -> dict[str, str]:
    """The versions of everything that can affect a verdict. Missing packages are left out."""
    packages = {name: version for name in RECORDED if (version := version_of(name)) is not None}
    return {"python": platform.python_version(), "platform": platform.platform(), **packages, **plugin_versions()}


def describe_version_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """``onnxruntime 1.22.0 → 1.23.0, torch 2.12.0 → 2.13.0``, or an empty string."""
    names = sorted(name for name in {**before, **now} if before.get(name) != now.get(name))
    return ", ".join(f"{name} {before.get(name, 'absent')} → {now.get(name, 'absent')}" for name in names)


def describe_untested(environment: Mapping[str, str]) -> str:
    """``newer than what onnx-ci 0.1.0 is tested with: torch 2.14.0 (tested: 2.13.0)``; empty if nothing is."""
    newer = []
    for name, tested in TESTED.items():  # of merged runs, which have several versions in one text, the newest counts
        present = max(re.findall(r"\d+(?:\.\d+)+", environment.get(name, "")), key=_release, default="0")
        newer += [f"{name} {present} (tested: {tested})"] if _release(present) > _release(tested) else []
    return f"newer than what onnx-ci {__version__} is tested with: {', '.join(newer)}" if newer else ""


def describe_bug() -> str:
    """The remedy for an error of onnx-ci itself, with the versions that a report of it needs."""
    installed = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"this is a bug in onnx-ci; please report it with the lines above, the command and these versions: {installed}"


def missing_runtime() -> tuple[str, str] | None:
    """Why ONNX Runtime cannot be used, and the remedy; ``None`` if exactly one wheel of it is installed."""
    wheels = [name for name in RUNTIME_DISTRIBUTIONS if version_of(name) is not None]
    if len(wheels) > 1:
        return (
            f"{listed(wheels)} are {'both' if len(wheels) == 2 else 'all'} installed and overwrite each other",
            "remove them with pip uninstall, then install onnx-ci[cpu] or onnx-ci[cuda]",
        )
    if importlib.util.find_spec("onnxruntime") is None:
        return (
            "ONNX Runtime is not installed, so no file can be run",
            "install onnx-ci[cpu], or onnx-ci[cuda] for NVIDIA GPUs",
        )
    return None


def lacking(distribution: str) -> tuple[str, str] | None:
    """What of a package, or of what it requires, is not installed, and the remedy; ``None`` if all of it is."""
    if (version := version_of(distribution)) is None:
        return f"{distribution} is not installed", f"pip install {distribution}"
    from packaging.requirements import Requirement  # a report is merged where nothing is installed

    for requirement in map(Requirement, importlib.metadata.requires(distribution) or ()):
        installed, needed = version_of(requirement.name), f"{requirement.name}{requirement.specifier}"
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and (installed is None or not requirement.specifier.contains(installed, prereleases=True)):
            return (
                f"{distribution} {version} requires {needed}, and {installed or 'none'} is installed",
                f"pip install '{needed}'",
            )
    return None


def require_torch() -> None:
    """Check that torch is installed, which the recipes need. Raises ``EnvironmentLacksError``."""
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentLacksError("torch is not installed; pip install torch")


def require_runtime(runtimes: Sequence[str] | None = None) -> None:
    """Check that ONNX Runtime is installed, and install other versions of it. Raises ``EnvironmentLacksError``."""
    if (missing := missing_runtime()) is not None:
        raise EnvironmentLacksError("; ".join(missing))
    for name in filter(variant_in_name, runtimes or ()):
        RUNTIMES.variant_class(name).install(variant_in_name(name)[1:])
