"""The stage ``float16``: onnxconverter-common's conversion of a file to half precision."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnx_ci.collection.post_export import PostExportStage
from onnx_ci.stages.post_export.files import save
from onnx_ci.stages.post_export.packages import import_package


def to_float16(before: Path, path: Path, stage: PostExportStage, feeds: object) -> None:
    """``onnxconverter_common.float16.convert_float_to_float16``, with the stage's options as its keywords."""
    package = import_package("onnxconverter_common.float16", package="onnxconverter-common", extra="float16")
    model = package.convert_float_to_float16(onnx.load(before), keep_io_types=stage.keep_io_types, **stage.options)
    save(model, path)
