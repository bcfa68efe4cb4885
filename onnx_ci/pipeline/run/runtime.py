"""The protocol of runtimes: one loads a file, and the session that it returns runs it. And the runtimes by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onnx import TensorProto

from onnx_ci.onnx_model.signature import Signature, Value, data_type_name, read_signature
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.plugins import RUNTIMES, version_in_name
from onnx_ci.text import count

if TYPE_CHECKING:
    import torch


class Session(Protocol):
    """A loaded file, ready to run. Inputs and outputs are torch tensors on the CPU."""

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order, for ``inputs`` by name. Raises what the runtime raises.

        Args:
            seed: the seed for random operators, as far as the runtime can be seeded.
        """

    @property
    def provider(self) -> str:
        """The device that the session runs on, such as ``cpu`` or ``cuda``."""

    @property
    def nodes_on_cpu(self) -> tuple[str, ...] | None:
        """Descriptions of the nodes that ran on the CPU in a session on a GPU; ``None`` if the runtime does not report them."""


class Runtime(Protocol):
    """An ONNX runtime. An entry point of the group ``onnx_ci.runtimes`` names its class."""

    name: str
    """Its name in messages: that of its entry point."""
    is_deployed: bool
    """Whether models are deployed with it, so that its errors fail the cell; otherwise it is a reference runtime."""

    def missing_device(self, device: str) -> str | None:
        """Why this runtime cannot use ``device``, or ``None`` if it can."""

    def load(self, path: Path, device: str) -> Session:
        """Load the file at ``path`` for ``device``. Raises what the runtime raises."""


class ArraySession:
    """A session on the CPU that cannot be seeded. It runs the file on numpy arrays by name, and has the outputs in order."""

    provider = "cpu"
    nodes_on_cpu = None

    def __init__(self, run_arrays: Callable[[dict[str, Any]], Iterable[Any]]) -> None:
        self._run_arrays = run_arrays

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """See :meth:`Session.run`."""
        from onnx_ci.pipeline.model.tensors import as_array, as_tensor

        return [as_tensor(output) for output in self._run_arrays({name: as_array(each) for name, each in inputs.items()})]


def make_runtime(name: str, *, tf32: bool = False) -> Runtime:
    """A runtime of :data:`onnx_ci.plugins.RUNTIMES`, by its name with the version if that is not the installed one.

    Raises:
        EnvironmentLacksError: the version is not installed.
    """
    if version := version_in_name(name):
        other: Runtime = RUNTIMES.versioned_class(name)(version)
        return other
    runtime: Runtime = OnnxRuntime(tf32=tf32) if name == "onnxruntime" else RUNTIMES.load(name)
    return runtime if name in RUNTIMES.ours else _CheckedRuntime(name, runtime)


class _CheckedRuntime:
    """A runtime of another package. What it returns is checked, so that a mistake of the package is told as one."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name, self.is_deployed = name, runtime.is_deployed
        self.missing_device = runtime.missing_device
        self._runtime = runtime

    def load(self, path: Path, device: str) -> Session:
        session = self._runtime.load(path, device)
        for member in ("run", "provider", "nodes_on_cpu"):
            if not hasattr(session, member):
                raise TypeError(f"what load() returns has no {member!r}")
        signature = read_signature(path)
        assert isinstance(signature, Signature)  # noqa: S101 (a file that cannot be read is not run)
        return _CheckedSession(session, signature.outputs)


class _CheckedSession:
    def __init__(self, session: Session, outputs: Sequence[Value]) -> None:
        self._session, self._outputs = session, outputs

    @property
    def provider(self) -> str:
        return self._session.provider

    @property
    def nodes_on_cpu(self) -> tuple[str, ...] | None:
        return self._session.nodes_on_cpu

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        import torch
        from onnx_ir.tensor_adapters import from_torch_dtype

        copies = {name: tensor.clone() for name, tensor in inputs.items()}  # other runtimes get the same tensors
        outputs: Any = self._session.run(copies, seed=seed)
        if not isinstance(outputs, (list, tuple)) or not all(isinstance(output, torch.Tensor) for output in outputs):
            raise TypeError("run() must return a list of torch tensors")
        if len(outputs) != len(self._outputs):
            raise TypeError(f"run() returned {count(len(outputs), 'tensor')}, and the file has {len(self._outputs)} outputs")
        for value, output in zip(self._outputs, outputs, strict=True):
            returned, declared = from_torch_dtype(output.dtype).value, value.element_type
            if declared not in (TensorProto.UNDEFINED, returned):
                types = f"{data_type_name(returned)}, and the file declares {data_type_name(declared)}"
                raise TypeError(f"run() returned output {value.name!r} as {types}")
        return [output.detach().cpu().clone() for output in outputs]  # it may use their memory again
