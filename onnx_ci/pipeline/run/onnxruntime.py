"""ONNX Runtime: its sessions on the CPU and on CUDA, and what its optimizer changes. Loading a file does not import torch."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_ci.errors import EnvironmentLacksError, describe_exception
from onnx_ci.processes.capture import captured

if TYPE_CHECKING:
    import onnxruntime
    import torch

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_EVERYTHING, _FATAL_ONLY = 0, 4  # errors are raised as well as logged
_SEED = 1_234_567_891  # far from 0: the generator's first numbers are in proportion to the seed


class OnnxRuntime:
    """ONNX Runtime, imported when it is first needed.

    Args:
        optimize: whether ONNX Runtime optimizes the graph, as it does by default.
        tf32: on CUDA, use TensorFloat-32, which is the provider's default.
        disabled: the names of passes that the optimizer leaves out.
        exact_int8: whether sums of products of int8 weights are exact. By default, ONNX Runtime adds two such products in 16
            bits on x86-64 without VNNI, and a sum that does not fit becomes the nearest 16-bit number.
        threads: how many threads a session computes with. Default: as many as torch, or what ONNX Runtime chooses if torch is
            not loaded.
    """

    is_deployed = True

    def __init__(
        self,
        *,
        optimize: bool = True,
        tf32: bool = False,
        disabled: Sequence[str] = (),
        exact_int8: bool = False,
        threads: int | None = None,
    ) -> None:
        self._optimize, self._tf32, self._disabled, self._threads = optimize, tf32, disabled, threads
        self._exact_int8 = exact_int8
        self.name = "onnxruntime" if optimize else "onnxruntime without its optimizer"

    def missing_device(self, device: str) -> str | None:
        """Why ONNX Runtime cannot use ``device``, or ``None`` if it can.

        Raises:
            EnvironmentLacksError: it cannot be imported: it does not fit numpy, the system or its libraries.
        """
        try:
            import onnxruntime
        except Exception as error:  # a package raises anything on import
            raise EnvironmentLacksError(f"ONNX Runtime cannot be imported: {describe_exception(error)}") from error

        provider = _PROVIDERS[device.partition(":")[0]]
        if provider in onnxruntime.get_available_providers():
            return None
        return f"ONNX Runtime has no {provider} here; install onnx-ci[cuda] instead of onnx-ci[cpu]"

    def load(self, path: Path | bytes, device: str) -> OnnxRuntimeSession:
        """Load the file at ``path``, or the content of one. Raises ONNX Runtime's own exceptions."""
        import onnxruntime

        options = self.session_options()
        if device == "cpu":
            providers_on_cpu = [_PROVIDERS["cpu"]]
            disabled = {"disabled_optimizers": [*self._disabled]} if self._disabled else {}
            return OnnxRuntimeSession(
                onnxruntime.InferenceSession(path, sess_options=options, providers=providers_on_cpu, **disabled), profile=None
            )
        onnxruntime.preload_dlls()  # CUDA's libraries from pip; those that torch has loaded are used if their versions match
        options.use_deterministic_compute = True
        folder = Path(tempfile.mkdtemp(prefix="onnx-ci-profile-"))
        options.enable_profiling, options.profile_file_prefix = True, str(folder / "run")
        providers = [(_PROVIDERS["cuda"], cuda_options(device, tf32=self._tf32)), _PROVIDERS["cpu"]]
        try:
            # By default, ONNX Runtime goes on with another session if the provider fails: on the CPU, or with the provider's
            # default options.
            session = onnxruntime.InferenceSession(path, sess_options=options, providers=providers, enable_fallback=0)
            session.disable_fallback()  # 1.22 does not know the keyword
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return OnnxRuntimeSession(session, profile=folder)

    def session_options(self) -> onnxruntime.SessionOptions:
        """The options of a session, on any device. Seeds ONNX Runtime's generator, too."""
        import onnxruntime

        onnxruntime.set_seed(_SEED)  # the default is the time
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        # As many as torch uses here, which is this process's share of the cores; 0 if torch is not loaded.
        torch = sys.modules.get("torch")
        threads_of_torch = 0 if torch is None else torch.get_num_threads()
        options.intra_op_num_threads = threads_of_torch if self._threads is None else self._threads
        # By default, idle threads wait for work in a loop and take the cores of other cells.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._exact_int8:
            options.add_session_config_entry("session.x64quantprecision", "1")
        if not self._optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return options


def passes_that_change(path: Path) -> list[str]:
    """The passes of the optimizer that change a file on the CPU, in the order of their first changes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _EVERYTHING  # only the log names them
    with captured(limit=_LONGEST_LOG) as log:
        onnxruntime.InferenceSession(path, sess_options=options, providers=[_PROVIDERS["cpu"]])
    return list(dict.fromkeys(_PASS.findall(log.text)))


_PASS = re.compile(r"GraphTransformer (\S+) modified: 1\b")
_LONGEST_LOG = 2**26


def cuda_options(device: str, *, tf32: bool) -> Mapping[str, str]:
    """Options that make the CUDA provider as exact as possible, and deterministic."""
    return {
        "device_id": device.partition(":")[2] or "0",
        # On by default; its error would look like rounding and hide a wrong export.
        "use_tf32": "1" if tf32 else "0",
        # By default the provider tries all algorithms of a convolution and takes the fastest.
        "cudnn_conv_algo_search": "DEFAULT",
    }


class OnnxRuntimeSession:
    """A session of ONNX Runtime. A profile of its first run is written to ``profile``, a folder that is removed with it."""

    nodes_on_cpu: tuple[str, ...] | None = None
    providers_at_work: frozenset[str] = frozenset()
    """The providers that computed nodes in the first run, if that was profiled."""

    def __init__(self, session: onnxruntime.InferenceSession, *, profile: Path | None) -> None:
        self._session = session
        self._is_profiled = profile is not None
        if profile is not None:
            weakref.finalize(self, shutil.rmtree, profile, ignore_errors=True)

    @property
    def provider(self) -> str:
        """The device that the session runs on: ONNX Runtime can fall back to the CPU without an error."""
        first = self._session.get_providers()[0]
        return next((device for device, provider in _PROVIDERS.items() if provider == first), first)

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order, for ``inputs`` by name.

        Args:
            seed: the seed for operators that draw from the default generator, such as Dropout. Operators such as RandomNormal
                have their own generator, which is seeded when the file is loaded.
        """
        outputs = [
            _tensor(output) for output in self.run_values({name: _value(each) for name, each in inputs.items()}, seed=seed)
        ]
        if self._is_profiled:
            self._is_profiled = False
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # then it is unknown
                events = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
                self.nodes_on_cpu = tuple(dict.fromkeys(_on_cpu(events)))
                self.providers_at_work = frozenset(each["args"]["provider"] for each in events if each.get("cat") == "Node")
        return outputs

    def run_values(self, feeds: Mapping[str, onnxruntime.OrtValue], *, seed: int | None = None) -> list[onnxruntime.OrtValue]:
        """As :meth:`run`, in ONNX Runtime's own values, and without importing torch."""
        if seed is not None:
            import onnxruntime

            onnxruntime.set_seed(seed)
        return list(self._session.run_with_ort_values(None, feeds))


_FLOATING = ("float", "double", "bfloat16")
"""Prefixes of the floating types' names in a profile."""
_MOST_AXES = 8
"""The longest vector that counts as sizes, one number for each axis; scales for each axis are floating."""


def _on_cpu(events: list[Any]) -> Iterator[str]:
    """The nodes that ran on the CPU according to a profile, except for computations of sizes, which belong there."""
    for event in events:
        node, kind, call = event["name"].rpartition("_kernel_time")[0], event.get("cat"), event.get("args", {})
        if kind == "Node" and call.get("provider") == _PROVIDERS["cpu"] and call["op_name"] not in ("Shape", "Size"):
            tensors = [tensor for each in (*call["input_type_shape"], *call["output_type_shape"]) for tensor in each.items()]
            are_sizes = all(len(shape) <= 1 and math.prod(shape) <= _MOST_AXES for _, shape in tensors)
            if not are_sizes and any(name.startswith(_FLOATING) for name, _ in tensors):
                yield f"{call['op_name']} {node!r}"


def _value(tensor: torch.Tensor) -> Any:
    import onnxruntime
    from onnx_ir.tensor_adapters import from_torch_dtype

    from onnx_ci.pipeline.model.tensors import as_array

    array = as_array(tensor)
    if array.dtype.isbuiltin == 1:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(f"uint{8 * array.itemsize}")  # a type that numpy does not have
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, from_torch_dtype(tensor.dtype).value)


WITHOUT_NUMPY = ("tensor(bfloat16)", "tensor(float8")
"""Prefixes of ONNX Runtime's names of types that numpy does not have."""


def _tensor(value: Any) -> torch.Tensor:
    import torch
    from onnx_ir import DataType
    from onnx_ir.tensor_adapters import to_torch_dtype

    if not value.data_type().startswith(WITHOUT_NUMPY):
        return torch.as_tensor(value.numpy())
    dtype, shape = to_torch_dtype(DataType(value.element_type())), value.shape()
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(ctypes.string_at(value.data_ptr(), size)), dtype=dtype).reshape(shape)
