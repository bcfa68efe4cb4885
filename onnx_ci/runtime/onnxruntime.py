"""ONNX Runtime: the reference runtime of the ONNX standard's ecosystem. Loading a file needs no torch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnxruntime
    import torch

_BFLOAT16 = 16
"""TensorProto.BFLOAT16: ONNX Runtime takes the number of the ONNX type."""

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_FATAL_ONLY = 4  # what is an error is raised, too; its log line only repeats it, with a time


class OnnxRuntime:
    """The runtime, loaded when it is first needed.

    Args:
        optimise: run the graph as ONNX Runtime rewrites it by default, as production would; otherwise as it stands.
    """

    is_deployed = True

    def __init__(self, *, optimise: bool = True) -> None:
        self._optimise = optimise
        self.name = "onnxruntime" if optimise else "onnxruntime without its optimiser"

    def missing_device(self, device: str) -> str | None:
        """Why ONNX Runtime cannot use ``device``, or ``None`` if it can."""
        import onnxruntime

        provider = _PROVIDERS[device.partition(":")[0]]
        if provider in onnxruntime.get_available_providers():
            return None
        return f"ONNX Runtime has no {provider} here; install onnx-ci[cuda] in place of onnx-ci[cpu]"

    def load(self, path: Path, device: str) -> OnnxRuntimeSession:
        """Load the file. Raises ONNX Runtime's own exceptions."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        if not self._optimise:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        kind, _, index = device.partition(":")
        providers: list[Any] = [_PROVIDERS["cpu"]]
        if kind == "cuda":
            # TensorFloat-32 is the provider's default; it would pass for rounding and hide a wrong export.
            providers.insert(0, (_PROVIDERS["cuda"], {"device_id": int(index or 0), "use_tf32": 0}))
        return OnnxRuntimeSession(onnxruntime.InferenceSession(path, sess_options=options, providers=providers))


class OnnxRuntimeSession:
    """A session of ONNX Runtime."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session

    @property
    def provider(self) -> str:
        """The device that the session really runs on: ONNX Runtime falls back to the CPU without an error."""
        first = self._session.get_providers()[0]
        return next((device for device, provider in _PROVIDERS.items() if provider == first), first)

    def run(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order, for ``inputs`` by name."""
        import onnxruntime
        import torch

        def value(tensor: torch.Tensor) -> Any:
            if tensor.dtype != torch.bfloat16:
                return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.contiguous().numpy())
            bits = tensor.contiguous().view(torch.uint16).numpy()  # numpy has no bfloat16
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)

        feeds = {name: value(tensor) for name, tensor in inputs.items()}
        return [_tensor(output) for output in self._session.run_with_ort_values(None, feeds)]


def _tensor(value: Any) -> torch.Tensor:
    import torch

    if value.data_type() != "tensor(bfloat16)":
        return torch.as_tensor(value.numpy())
    shape, size = value.shape(), value.tensor_size_in_bytes()
    if not size:
        return torch.empty(shape, dtype=torch.bfloat16)
    return torch.frombuffer(bytearray(ctypes.string_at(value.data_ptr(), size)), dtype=torch.bfloat16).reshape(shape)
