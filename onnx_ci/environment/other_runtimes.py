"""Other versions of ONNX Runtime, each in a folder of its own: ``onnxruntime@1.18``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from packaging.version import Version

from onnx_ci.environment import pip
from onnx_ci.environment.overlay import folder_of, overlay_of
from onnx_ci.environment.pip import ImpossibleError, Wheel
from onnx_ci.errors import EnvironmentLacksError

_FIRST_FOR_NUMPY_2 = Version("1.19")
_LAST_NUMPY_1 = Wheel(version="1.26.4")


def install_runtimes(versions: Iterable[str]) -> None:
    """Install versions of ONNX Runtime, unless they are kept from an earlier run.

    Raises:
        ConfigurationError: a version does not exist, has no wheel for this Python, or cannot be downloaded or written.
    """
    for version in versions:
        try:
            overlay_of(_wheels(version))
        except ImpossibleError as error:
            raise ImpossibleError(pip.missing(f"onnxruntime=={version}") or str(error)) from None


def folder_of_runtime(version: str) -> Path:
    """The folder with a version of ONNX Runtime.

    Raises:
        EnvironmentLacksError: it is not installed.
    """
    folder = folder_of(_wheels(version))
    if not folder.is_dir():
        raise EnvironmentLacksError(f"onnxruntime {version} is not in {folder.parent}; a run with --runtimes installs it")
    return folder


def _wheels(version: str) -> dict[str, Wheel]:
    """What it imports. Its other requirements are for its tools, such as the quantizer."""
    numpy = {"numpy": _LAST_NUMPY_1} if Version(version) < _FIRST_FOR_NUMPY_2 else {}
    return {"onnxruntime": Wheel(version=version), **numpy}
