"""onnx-ci proves, on every commit, that PyTorch models still export to ONNX and still compute the same numbers.

Importing this package imports no torch: :func:`run`, :func:`export` and :func:`verify` load it when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnx_ci.errors import (
    ConfigurationError,
    EnvironmentLacksError,
    ExitCode,
    OnnxCiError,
    RecipeError,
)
from onnx_ci.recipe import Expectation, Recipe, fails, recipe, unsupported
from onnx_ci.records import Cell, CellResult, Finding, OutputDrift, Problem, RunReport, Severity, Status

if TYPE_CHECKING:
    from onnx_ci.api import export, run, verify
    from onnx_ci.exporting import Artifact

__version__ = "0.1.0"

__all__ = [
    "Artifact",
    "Cell",
    "CellResult",
    "ConfigurationError",
    "EnvironmentLacksError",
    "ExitCode",
    "Expectation",
    "Finding",
    "OnnxCiError",
    "OutputDrift",
    "Problem",
    "Recipe",
    "RecipeError",
    "RunReport",
    "Severity",
    "Status",
    "export",
    "fails",
    "recipe",
    "run",
    "unsupported",
    "verify",
]

_LAZY = {"run": "onnx_ci.api", "export": "onnx_ci.api", "verify": "onnx_ci.api", "Artifact": "onnx_ci.exporting"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
