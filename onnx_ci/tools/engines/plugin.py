"""Runtimes of other packages. What they return is checked, so that a mistake of the package is named as one."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto

from onnx_ci.onnx_model.files import has_external_data
from onnx_ci.onnx_model.signature import Signature, Value, data_type_name, read_signature
from onnx_ci.pipeline.run.runtime import BrokenRuntimeError, Runtime, Session
from onnx_ci.plugins import RUNTIMES, variant_in_name
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.text import count
from onnx_ci.tools.engines.own_process import OwnProcess

if TYPE_CHECKING:
    import torch


def guarded(name: str, seconds: float) -> Runtime:
    """A runtime that is not part of the gate, by its name. Other versions of ours, and ours with a provider, are trusted.

    Args:
        name: one of :data:`onnx_ci.plugins.RUNTIMES`.
        seconds: the time limit for loading a file and for each run, unless the runtime has its own. With a limit, each of its
            sessions is a process; it is infinite where processes cannot be forked.

    Raises:
        EnvironmentLacksError: the package is broken, or the version or provider is not installed.
    """
    if variant := variant_in_name(name):
        runtime: Runtime = RUNTIMES.variant_class(name)(variant[1:])
        limit = seconds
    else:
        plugin = RUNTIMES.load(name)
        runtime, limit = PluginRuntime(name, plugin), getattr(plugin, "timeout", seconds)
    return runtime if seconds == math.inf else OwnProcess(runtime, limit)


class PluginRuntime:
    """A runtime of another package.

    Attributes:
        timeout: the seconds that it may take to load a file, and for each run. Default: a third of the cell's time limit.
        reads_external_data: whether it reads weights that are beside the file. Default: it does. If not, they are put into a
            copy of the file.
        other_types: the types that it returns instead of those that a file declares, by these: ``{"int64": "int32"}``. What it
            returns is converted. Default: none.
        versions: the versions of what it computes with, by name, for reports. Default: none but that of its package.
    """

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name, self.is_deployed = name, runtime.is_deployed
        self.missing_device = runtime.missing_device
        self._runtime = runtime

    def load(self, path: Path, device: str) -> Session:
        """The file in the runtime, as a session that is checked. Raises what the runtime raises."""
        with self._readable(path) as readable:
            session = self._runtime.load(readable, device)
        for member in ("run", "provider", "nodes_on_cpu"):
            if not hasattr(session, member):
                raise TypeError(f"what load() returns has no {member!r}")
        signature = read_signature(path)
        assert isinstance(signature, Signature)  # noqa: S101 (a file that cannot be read is not run)
        return _CheckedSession(session, signature.outputs, getattr(self._runtime, "other_types", MappingProxyType({})))

    @contextlib.contextmanager
    def _readable(self, path: Path) -> Iterator[Path]:
        """The file as the runtime can read it: without external data, if it reads none."""
        if getattr(self._runtime, "reads_external_data", True) or not has_external_data(path):
            yield path
            return
        with scratch_folder() as scratch:
            try:
                onnx.save_model(onnx.load(path), scratch / path.name)
            except ValueError as error:
                raise ValueError("it reads no external data, and a file with these weights would exceed 2 GB") from error
            yield scratch / path.name


class _CheckedSession:
    def __init__(self, session: Session, outputs: Sequence[Value], other_types: Mapping[str, str]) -> None:
        self._session, self._outputs, self._other_types = session, outputs, other_types
        if close := getattr(session, "close", None):
            weakref.finalize(self, close)

    @property
    def provider(self) -> str:
        return self._session.provider

    @property
    def nodes_on_cpu(self) -> tuple[str, ...] | None:
        return self._session.nodes_on_cpu

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        import torch

        copies = {name: tensor.clone() for name, tensor in inputs.items()}  # other runtimes get the same tensors
        outputs: Any = self._session.run(copies, seed=seed)
        if not isinstance(outputs, (list, tuple)):
            raise BrokenRuntimeError("run-error", f"returned {_kind_of(outputs)} instead of a list of torch tensors")
        if others := [output for output in outputs if not isinstance(output, torch.Tensor)]:
            raise BrokenRuntimeError("run-error", f"returned a list with {_kind_of(others[0])} instead of torch tensors")
        if len(outputs) != len(self._outputs):
            declared = count(len(self._outputs), "output")
            raise BrokenRuntimeError("run-error", f"returned {count(len(outputs), 'tensor')}, and the file has {declared}")
        return [self._in_declared_type(*each) for each in zip(self._outputs, outputs, strict=True)]

    def _in_declared_type(self, value: Value, output: torch.Tensor) -> torch.Tensor:
        """A copy of an output, because the runtime may use its memory again."""
        from onnx_ir import DataType
        from onnx_ir.tensor_adapters import from_torch_dtype, to_torch_dtype

        returned, declared = from_torch_dtype(output.dtype).value, value.element_type
        copy = output.detach().cpu().clone()
        if declared in (TensorProto.UNDEFINED, returned):
            return copy
        if self._other_types.get(data_type_name(declared)) == data_type_name(returned):
            return copy.to(to_torch_dtype(DataType(declared)))
        types = f"{data_type_name(returned)}, and the file declares {data_type_name(declared)}"
        raise BrokenRuntimeError("run-error", f"returned output {value.name!r} as {types}")


def _kind_of(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
