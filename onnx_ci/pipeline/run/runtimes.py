"""The runtimes by name: ours, and those of other packages, whose answers are checked first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.pipeline.run.runtime import Runtime, Session
from onnx_ci.plugins import RUNTIMES, version_in_name

if TYPE_CHECKING:
    import torch


def make_runtime(name: str, *, tf32: bool = False) -> Runtime:
    """A runtime of :data:`onnx_ci.plugins.RUNTIMES`.

    Args:
        name: its name, with its version if that is not the installed one.
        tf32: whether it may use TensorFloat-32 on CUDA; only ONNX Runtime can.

    Raises:
        EnvironmentLacksError: the version is not installed.
    """
    if version := version_in_name(name):
        other: Runtime = RUNTIMES.versioned_class(name)(version)
        return other
    runtime: Runtime = OnnxRuntime(tf32=tf32) if name == "onnxruntime" else RUNTIMES.load(name)
    return runtime if name in RUNTIMES.ours else _CheckedRuntime(name, runtime)


class _CheckedRuntime:
    """A runtime of another package. What it returns is checked, so that a mistake of the package is told as one.

    Args:
        name: the name of its entry point.
        runtime: the runtime.
    """

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name, self.is_deployed = name, runtime.is_deployed
        self.missing_device = runtime.missing_device
        self._runtime = runtime

    def load(self, path: Path, device: str) -> Session:
        session = self._runtime.load(path, device)
        for member in ("run", "provider", "nodes_on_cpu"):
            if not hasattr(session, member):
                raise TypeError(f"what load() returns has no {member!r}")
        return _CheckedSession(session)


class _CheckedSession:
    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def provider(self) -> str:
        return self._session.provider

    @property
    def nodes_on_cpu(self) -> tuple[str, ...] | None:
        return self._session.nodes_on_cpu

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        import torch

        outputs: Any = self._session.run(inputs, seed=seed)
        if not isinstance(outputs, (list, tuple)) or not all(isinstance(output, torch.Tensor) for output in outputs):
            raise TypeError("run() must return a list of torch tensors")
        return list(outputs)
