"""OpenCV's module for neural networks, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from onnx_ci.pipeline.run.runtime import ArraySession
from onnx_ci.tools.engines.engine import Engine, session_of, signature_of


class OpenCvRuntime(Engine):
    """OpenCV, imported when it is first needed."""

    name = "opencv"
    distribution = "opencv-python-headless"
    other_types: ClassVar[Mapping[str, str]] = {"float16": "float"}  # it computes such files in float32

    def load(self, path: Path, device: str) -> ArraySession:
        """Load the file. Raises OpenCV's own exceptions."""
        import cv2

        net, signature = cv2.dnn.readNetFromONNX(str(path)), signature_of(path)
        outputs = [value.name for value in signature.outputs]

        def run(feeds: dict[str, Any]) -> Iterable[Any]:
            for name, array in feeds.items():
                net.setInput(array, name)
            arrays: Sequence[Any] = net.forward(outputs)
            if any(array is None for array in arrays):
                raise ValueError("OpenCV returns None for an output without elements")
            return arrays

        return session_of([value.name for value in signature.inputs], run)
