"""OpenVINO, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onnx_ci.pipeline.run.runtime import ArraySession
from onnx_ci.tools.engines.engine import Engine, session_of, signature_of


class OpenVinoRuntime(Engine):
    """OpenVINO, imported when it is first needed."""

    name = distribution = "openvino"

    def load(self, path: Path, device: str) -> ArraySession:
        """Compile the file. Raises OpenVINO's own exceptions."""
        import openvino

        # bfloat16, the default on processors that have it, would look like rounding and hide a wrong export.
        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(str(path), "CPU", exact)
        names = [value.name for value in signature_of(path).inputs]  # OpenVINO's can be that of a node without effect

        def run(feeds: dict[str, Any]) -> Iterable[Any]:
            nonlocal compiled
            try:
                results = compiled(feeds)
            except Exception:
                compiled = openvino.Core().compile_model(str(path), "CPU", exact)  # what has failed once fails always
                raise
            return map(results.__getitem__, compiled.outputs)

        return session_of(names, run)
