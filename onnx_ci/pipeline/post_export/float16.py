"""The stage ``float16``: onnxconverter-common's conversion of a file to half precision."""

from __future__ import annotations

from typing import Any

import onnx

from onnx_ci.collection.post_export import PostExportStage
from onnx_ci.pipeline.post_export.packages import import_package


def to_float16(model: onnx.ModelProto, *, keep_io_types: bool, **options: Any) -> onnx.ModelProto:
    """``onnxconverter_common.float16.convert_float_to_float16``, with the stage's options as its keywords."""
    package = import_package("onnxconverter_common.float16", package="onnxconverter-common", extra="float16")
    converted: onnx.ModelProto = package.convert_float_to_float16(model, keep_io_types=keep_io_types, **options)
    return converted


FLOAT16 = PostExportStage(name="float16", transform=to_float16, lossy="float16", keep_io_types=False)
