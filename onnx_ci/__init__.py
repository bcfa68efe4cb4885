"""onnx-ci proves, on every commit, that PyTorch models still export to ONNX and still compute the same numbers.

Importing this package imports no torch: :func:`run`, :func:`export`, :func:`verify` and :func:`compare` load it
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnx_ci.collection.axis_sizes import MultipleOf, multiple_of
from onnx_ci.collection.domains import Domain, Strategy, boxes, floats, integers, lengths, mask, one_hot, one_of, permutation
from onnx_ci.collection.expectations import ExpectedFailures, known_failure, unsupported
from onnx_ci.collection.keywords import ExportOptions, RecipeKeywords
from onnx_ci.collection.post_export import GraphPass, graph_pass
from onnx_ci.collection.recipe import Cases, Recipe, recipe
from onnx_ci.errors import ConfigurationError, EnvironmentLacksError, ExitCode, OnnxCiError, RecipeError
from onnx_ci.results.records import (
    Cell,
    CellEvidence,
    CellResult,
    CpuVsGpu,
    Culprit,
    DeclaredValue,
    Exclusion,
    ExportFacts,
    Finding,
    Frozen,
    FrozenKind,
    InputDomain,
    NodeStep,
    Origin,
    OutputDrift,
    OutputValues,
    Problem,
    Revision,
    SettingSource,
    SettingValue,
    Severity,
    Similarity,
    SkipCause,
    SourceLine,
    Status,
    TensorSketch,
)
from onnx_ci.results.run_report import Part, RunReport
from onnx_ci.results.verdict import Expectation, RunVerdict
from onnx_ci.version import __version__

if TYPE_CHECKING:
    from onnx_ci.api import RunOptions, VerifyOptions, export, run, verify
    from onnx_ci.pipeline.export.export import Artifact
    from onnx_ci.pipeline.export.exporter import Exporter, ExportRequest
    from onnx_ci.pipeline.model.adapter import adapt
    from onnx_ci.pipeline.run.runtime import Runtime
    from onnx_ci.tools.two_files.compare import CompareOptions, FileComparison, compare

__all__ = [
    "Artifact",
    "Cases",
    "Cell",
    "CellEvidence",
    "CellResult",
    "CompareOptions",
    "ConfigurationError",
    "CpuVsGpu",
    "Culprit",
    "DeclaredValue",
    "Domain",
    "EnvironmentLacksError",
    "Exclusion",
    "ExitCode",
    "Expectation",
    "ExpectedFailures",
    "ExportFacts",
    "ExportOptions",
    "ExportRequest",
    "Exporter",
    "FileComparison",
    "Finding",
    "Frozen",
    "FrozenKind",
    "GraphPass",
    "InputDomain",
    "MultipleOf",
    "NodeStep",
    "OnnxCiError",
    "Origin",
    "OutputDrift",
    "OutputValues",
    "Part",
    "Problem",
    "Recipe",
    "RecipeError",
    "RecipeKeywords",
    "Revision",
    "RunOptions",
    "RunReport",
    "RunVerdict",
    "Runtime",
    "SettingSource",
    "SettingValue",
    "Severity",
    "Similarity",
    "SkipCause",
    "SourceLine",
    "Status",
    "Strategy",
    "TensorSketch",
    "VerifyOptions",
    "__version__",
    "adapt",
    "boxes",
    "compare",
    "export",
    "floats",
    "graph_pass",
    "integers",
    "known_failure",
    "lengths",
    "mask",
    "multiple_of",
    "one_hot",
    "one_of",
    "permutation",
    "recipe",
    "run",
    "unsupported",
    "verify",
]

_LAZY = {
    **dict.fromkeys(("RunOptions", "VerifyOptions", "export", "run", "verify"), "onnx_ci.api"),
    **dict.fromkeys(("CompareOptions", "FileComparison", "compare"), "onnx_ci.tools.two_files.compare"),
    "Artifact": "onnx_ci.pipeline.export.export",
    "ExportRequest": "onnx_ci.pipeline.export.exporter",
    "Exporter": "onnx_ci.pipeline.export.exporter",
    "Runtime": "onnx_ci.pipeline.run.runtime",
    "adapt": "onnx_ci.pipeline.model.adapter",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
