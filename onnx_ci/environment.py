"""What is installed here: the versions that a report records, and what a run cannot do without. Imports none of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Sequence

from onnx_ci.errors import EnvironmentLacksError

RUNTIMES = ("onnxruntime", "reference", "openvino")
"""What can run a file; ``reference`` is ONNX's own evaluator."""

RUNTIME_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
"""The two wheels that install the one package ``onnxruntime``; together they overwrite each other's files."""

_RECORDED = ("onnx-ci", "torch", "torchvision", "onnx", *RUNTIME_DISTRIBUTIONS, "onnxscript", "openvino", "numpy", "pytest")


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, or ``None``."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """The versions of everything that can change a verdict; what is absent is left out."""
    found = {name: version for name in _RECORDED if (version := version_of(name)) is not None}
    return {"python": platform.python_version(), "platform": platform.platform(), **found}


def missing_runtime() -> tuple[str, str] | None:
    """What keeps ONNX Runtime from being used, and the remedy; ``None`` if exactly one wheel of it is there."""
    wheels = [name for name in RUNTIME_DISTRIBUTIONS if version_of(name) is not None]
    if len(wheels) > 1:
        return (
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other",
            "remove both with pip uninstall, then install onnx-ci[cpu] or onnx-ci[cuda]",
        )
    if importlib.util.find_spec("onnxruntime") is None:
        return (
            "ONNX Runtime is not installed, so no file can be run",
            "install onnx-ci[cpu], or onnx-ci[cuda] for NVIDIA GPUs",
        )
    return None


def require_runtime(runtimes: Sequence[str] | None = None) -> None:
    """Make sure that exactly one wheel of ONNX Runtime is there, and the other runtimes that the settings name.

    Raises:
        EnvironmentLacksError: none is, or both are, or one that was asked for is not.
    """
    if (missing := missing_runtime()) is not None:
        raise EnvironmentLacksError("; ".join(missing))
    if "openvino" in (runtimes or ()) and importlib.util.find_spec("openvino") is None:
        raise EnvironmentLacksError("OpenVINO is asked for and not installed; install onnx-ci[openvino]")


NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def leave_cuda_to_forks() -> None:
    """From now on, let ``torch.cuda.is_available()`` look without using CUDA, as far as torch can.

    Recipe files often ask it as they are imported, and a fork cannot use the CUDA of the process that it was forked from.
    """
    os.environ.setdefault(NVML_CHECK, "1")
