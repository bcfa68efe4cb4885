"""OpenVINO, on the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_ci.pipeline.model.arrays import as_array, as_tensor

if TYPE_CHECKING:
    import torch


class OpenVinoRuntime:
    """OpenVINO, imported when it is first needed."""

    name = "openvino"
    is_deployed = True

    def missing_device(self, device: str) -> str | None:
        """Why OpenVINO cannot use ``device``, or ``None`` if it can."""
        if importlib.util.find_spec("openvino") is None:
            return "OpenVINO is not installed; install onnx-ci[openvino]"
        return None if device == "cpu" else "OpenVINO has no CUDA device"

    def load(self, path: Path, device: str) -> OpenVinoSession:
        """Compile the file. Raises OpenVINO's own exceptions."""
        import openvino

        # bfloat16, the default on processors that have it, would look like rounding and hide a wrong export.
        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        return OpenVinoSession(openvino.Core().compile_model(str(path), "CPU", exact))


class OpenVinoSession:
    """A compiled file."""

    provider = "cpu"
    nodes_on_cpu = None

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order, for ``inputs`` by name. It cannot be seeded."""
        outputs = self._compiled({name: as_array(tensor) for name, tensor in inputs.items()})
        return [as_tensor(outputs[output]) for output in self._compiled.outputs]
