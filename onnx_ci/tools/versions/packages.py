"""The packages whose versions can matter: those that take part in a cell, and those of all cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.utils import canonicalize_name

from onnx_ci.environment.versions import RUNTIME_DISTRIBUTIONS
from onnx_ci.plugins import EXPORTERS, RUNTIMES, STAGES
from onnx_ci.tools.versions.overlay import Installed

TORCH = "torch"
_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "torchscript": ("onnx",),
    "dynamo": ("onnxscript", "onnx-ir", "onnx"),
    "transformers": ("transformers", "onnxscript", "onnx-ir", "onnx"),
    "onnxruntime": RUNTIME_DISTRIBUTIONS,
    "reference": ("onnx",),
    "float16": ("onnxconverter-common",),
}
"""What exporters, runtimes and stages work with, besides torch. The others are called as their distributions are."""


def packages_of(exporter: str, runtimes: Iterable[str], stages: Iterable[str], installed: Mapping[str, Installed]) -> list[str]:
    """The distributions that a cell depends on, and of which other versions can be tried: its stages' first, torch last.

    Args:
        exporter: what exports the cell.
        runtimes: what runs its file.
        stages: its post-export stages.
        installed: what is installed.
    """
    parts = [*((STAGES, name) for name in stages), (EXPORTERS, exporter), *((RUNTIMES, name) for name in runtimes)]
    names = [each for kind, name in parts for each in (*_DISTRIBUTIONS.get(name, (name,)), kind.distribution(name)) if each]
    canonical = dict.fromkeys(canonicalize_name(name) for name in (*names, TORCH))
    return [name for name in canonical if name in installed and not installed[name].is_kept]


def all_packages(installed: Mapping[str, Installed]) -> list[str]:
    """The distributions that some cell may depend on, and of which other versions can be tried."""
    of_each = (packages_of(exporter, RUNTIMES, STAGES, installed) for exporter in EXPORTERS)
    return list(dict.fromkeys(name for names in of_each for name in names))
