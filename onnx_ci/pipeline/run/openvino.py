"""OpenVINO, on the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from onnx_ci.pipeline.run.runtime import ArraySession


class OpenVinoRuntime:
    """OpenVINO, imported when it is first needed."""

    name = "openvino"
    is_deployed = True

    def missing_device(self, device: str) -> str | None:
        """Why OpenVINO cannot use ``device``, or ``None`` if it can."""
        if importlib.util.find_spec("openvino") is None:
            return "OpenVINO is not installed; install onnx-ci[openvino]"
        return None if device == "cpu" else "OpenVINO has no CUDA device"

    def load(self, path: Path, device: str) -> ArraySession:
        """Compile the file. Raises OpenVINO's own exceptions."""
        import openvino

        # bfloat16, the default on processors that have it, would look like rounding and hide a wrong export.
        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(str(path), "CPU", exact)
        return ArraySession(lambda feeds: map(compiled(feeds).__getitem__, compiled.outputs))
