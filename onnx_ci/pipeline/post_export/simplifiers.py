"""Stages that keep the numbers: onnxsim, onnxslim, and ONNX Runtime's graph optimizations, saved to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from onnx_ci.collection.post_export import PostExportStage
from onnx_ci.onnx_model.files import has_external_data
from onnx_ci.pipeline.post_export.packages import import_package


def onnxsim(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """``onnxsim.simplify``, with the stage's options as its keywords."""
    package = import_package("onnxsim", package="onnxsim", extra="onnxsim")
    simplified: onnx.ModelProto
    simplified, is_valid = package.simplify(model, **options)
    if not is_valid:
        raise ValueError("onnxsim's own check of the simplified model failed")
    return simplified


def onnxslim(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """``onnxslim.slim``, with the stage's options as its keywords."""
    package = import_package("onnxslim", package="onnxslim", extra="onnxslim")
    slimmed: onnx.ModelProto = package.slim(model, **options)
    return slimmed


def ort_optimized(before: Path, after: Path, **options: Any) -> None:
    """ONNX Runtime's offline mode: the optimized graph of a session, saved with ``optimized_model_filepath``.

    The default level is ``extended``: ``all`` adds layouts for the processor at hand, so its file cannot be deployed
    elsewhere (ONNX Runtime's documentation, "Graph Optimizations").
    """
    ort: Any = import_package("onnxruntime", package="onnxruntime", extra="cpu")
    levels = {
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    level = options.get("level", "extended")
    if options.keys() - {"level"} or level not in levels:
        raise ValueError(f"ort-optimized takes level='basic', 'extended' or 'all', not {options}")
    session_options = ort.SessionOptions()
    session_options.log_severity_level = 3  # a note that the file is for this machine is no finding
    session_options.graph_optimization_level = levels[level]
    session_options.optimized_model_filepath = str(after)
    if has_external_data(before):  # otherwise the new file would refer to data that is in the folder of the old one
        entry = "session.optimized_model_external_initializers_file_name"
        session_options.add_session_config_entry(entry, f"{after.name}.data")
    ort.InferenceSession(before, sess_options=session_options, providers=["CPUExecutionProvider"])


ONNXSIM = PostExportStage(name="onnxsim", transform=onnxsim)
ONNXSLIM = PostExportStage(name="onnxslim", transform=onnxslim)
ORT_OPTIMIZED = PostExportStage(name="ort-optimized", transform=ort_optimized, domains=("com.microsoft",))
