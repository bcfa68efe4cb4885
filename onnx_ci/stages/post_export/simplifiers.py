"""Stages that keep the numbers: onnxsim, onnxslim, and ONNX Runtime's graph optimizations, saved to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from onnx_ci.collection.post_export import PostExportStage
from onnx_ci.stages.post_export.files import has_external_data, save
from onnx_ci.stages.post_export.packages import import_package


def onnxsim(before: Path, path: Path, stage: PostExportStage, feeds: object) -> None:
    """``onnxsim.simplify``, with the stage's options as its keywords."""
    package = import_package("onnxsim", package="onnxsim", extra="onnxsim")
    simplified, is_valid = package.simplify(onnx.load(before), **stage.options)
    if not is_valid:
        raise ValueError("onnxsim's own check of the simplified model failed")
    save(simplified, path)


def onnxslim(before: Path, path: Path, stage: PostExportStage, feeds: object) -> None:
    """``onnxslim.slim``, with the stage's options as its keywords."""
    package = import_package("onnxslim", package="onnxslim", extra="onnxslim")
    save(package.slim(onnx.load(before), **stage.options), path)


def ort_optimized(before: Path, path: Path, stage: PostExportStage, feeds: object) -> None:
    """ONNX Runtime's offline mode: the optimized graph of a session, saved with ``optimized_model_filepath``.

    The default level is ``extended``: ``all`` adds layouts for the processor at hand, so its file cannot be deployed
    elsewhere (ONNX Runtime's documentation, "Graph Optimizations").
    """
    ort: Any = import_package("onnxruntime", package="onnxruntime", extra="cpu")
    given = dict(stage.options)
    level = given.pop("level", "extended")
    levels = {
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    if given or level not in levels:
        raise ValueError(f"ort-optimized takes level='basic', 'extended' or 'all', not {dict(stage.options)}")
    options = ort.SessionOptions()
    options.log_severity_level = 3  # a note that the file is for this machine is no finding
    options.graph_optimization_level = levels[level]
    options.optimized_model_filepath = str(path)
    if has_external_data(before):  # otherwise the new file would refer to data that is in the folder of the old one
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{path.name}.data")
    ort.InferenceSession(before, sess_options=options, providers=["CPUExecutionProvider"])
