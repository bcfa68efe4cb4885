"""ONNX Runtime: the reference runtime of the ONNX standard's ecosystem. Loading a file needs no torch."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
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
        tf32: on CUDA, use TensorFloat-32, which is the provider's default.
    """

    is_deployed = True

    def __init__(self, *, optimise: bool = True, tf32: bool = False) -> None:
        self._optimise, self._tf32 = optimise, tf32
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
        if device == "cpu":
            return OnnxRuntimeSession(
                onnxruntime.InferenceSession(path, sess_options=options, providers=[_PROVIDERS["cpu"]]), profile=None
            )
        load_cuda_libraries(onnxruntime)
        options.use_deterministic_compute = True
        folder = Path(tempfile.mkdtemp(prefix="onnx-ci-profile-"))
        options.enable_profiling, options.profile_file_prefix = True, str(folder / "run")
        providers = [(_PROVIDERS["cuda"], cuda_options(device, tf32=self._tf32)), _PROVIDERS["cpu"]]
        try:
            # By default ONNX Runtime answers an error of the provider, now or in a run, with another session: on the CPU,
            # or with the provider's own options.
            session = onnxruntime.InferenceSession(path, sess_options=options, providers=providers, enable_fallback=0)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return OnnxRuntimeSession(session, profile=folder)


def cuda_options(device: str, *, tf32: bool) -> Mapping[str, str]:
    """The options of the CUDA provider under which it computes as exactly as it can, and the same each time."""
    return {
        "device_id": device.partition(":")[2] or "0",
        # The provider's default; it would pass for rounding and hide a wrong export.
        "use_tf32": "1" if tf32 else "0",
        # By default the provider tries all algorithms of a convolution, and takes whichever was the fastest today.
        "cudnn_conv_algo_search": "DEFAULT",
    }


def load_cuda_libraries(onnxruntime: Any) -> None:
    """Load those that pip has installed beside ONNX Runtime. Those that torch has loaded serve where their versions fit."""
    if hasattr(onnxruntime, "preload_dlls"):  # 1.21
        onnxruntime.preload_dlls()


class OnnxRuntimeSession:
    """A session of ONNX Runtime.

    Args:
        session: the session.
        profile: the folder in which it writes a profile of its first run, if it does. The session's end is the folder's, too.
    """

    left_to_the_cpu: tuple[str, ...] | None = None

    def __init__(self, session: onnxruntime.InferenceSession, *, profile: Path | None) -> None:
        self._session = session
        self._is_profiled = profile is not None
        if profile is not None:
            weakref.finalize(self, shutil.rmtree, profile, ignore_errors=True)

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
        outputs = [_tensor(output) for output in self._session.run_with_ort_values(None, feeds)]
        if self._is_profiled:
            self._is_profiled = False
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # then nobody tells
                events = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
                self.left_to_the_cpu = tuple(dict.fromkeys(_on_cpu(events)))
        return outputs


_FLOATING = ("float", "double", "bfloat16")
"""How the names of floating types begin, as a profile writes them."""
_MOST_AXES = 8
"""The longest list, one number an axis, that counts as sizes: a scale for each axis is of a floating type."""


def _on_cpu(events: list[Any]) -> Iterator[str]:
    """The nodes that ran on the CPU, by a profile, but for arithmetic on sizes, which ONNX Runtime leaves there on purpose."""
    for event in events:
        node, kind, which = event["name"].rpartition("_kernel_time")[0], event.get("cat"), event.get("args", {})
        if kind == "Node" and which.get("provider") == _PROVIDERS["cpu"] and which["op_name"] not in ("Shape", "Size"):
            tensors = [tensor for each in (*which["input_type_shape"], *which["output_type_shape"]) for tensor in each.items()]
            are_sizes = all(len(shape) <= 1 and math.prod(shape) <= _MOST_AXES for _, shape in tensors)
            if not are_sizes and any(name.startswith(_FLOATING) for name, _ in tensors):
                yield f"{which['op_name']} {node!r}"


def _tensor(value: Any) -> torch.Tensor:
    import torch

    if value.data_type() != "tensor(bfloat16)":
        return torch.as_tensor(value.numpy())
    shape, size = value.shape(), value.tensor_size_in_bytes()
    if not size:
        return torch.empty(shape, dtype=torch.bfloat16)
    return torch.frombuffer(bytearray(ctypes.string_at(value.data_ptr(), size)), dtype=torch.bfloat16).reshape(shape)
